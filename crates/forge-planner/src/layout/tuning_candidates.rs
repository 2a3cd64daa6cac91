//! What a plan leaves to choose: other layouts of its products and of attention, as kernels that may stand in for its own without
//! anybody noticing but by the time they take.
//!
//! A stand-in has the buffers and scalars of the kernel that it stands for. Some of what kernels leave depends on how they are
//! laid out. Partial sums of squares are as many as the plan says, whoever leaves them: a stand-in may have fewer threadgroups and
//! never more. Candidates for the best logit are read one for each threadgroup: a stand-in has as many, of as many outputs.
//! How the cache of attention is shared out is decided by the program, by the cores that it finds: a stand-in takes the same share.
//! How many pairs a tile of experts has is read by all who take rows so, and is not left to choose.

use crate::layout::tuning_key::{Layout, TuningKey};
use crate::plan::Plan;
use forge_kernels::spec::{Epilogue, Rows};
use forge_kernels::{Instance, Spec};

/// A subject, and how else its kernels could be laid out.
#[derive(Clone, Debug, PartialEq)]
pub struct TuningProblem {
    /// The subject.
    pub subject: TuningKey,
    /// The plan's kernels that are of it, by number.
    pub kernels: Vec<usize>,
    /// How they are laid out.
    pub own: Layout,
    /// Other layouts.
    pub others: Vec<Candidate>,
}

/// A layout, and for each kernel of the plan's one that has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The layout.
    pub layout: Layout,
    /// The kernels, in the order of the choice's.
    pub instances: Vec<Instance>,
}

impl Plan {
    /// Everything that there is to choose.
    pub fn choices(&self) -> Vec<TuningProblem> {
        let mut choices: Vec<TuningProblem> = Vec::new();
        for (number, kernel) in self.kernels.iter().enumerate() {
            let Some((subject, own)) = TuningKey::of(&kernel.spec) else { continue };
            match choices.iter_mut().find(|choice| choice.subject == subject && choice.own == own) {
                Some(choice) => choice.kernels.push(number),
                None => {
                    let (kernels, others) = (vec![number], Vec::new());
                    choices.push(TuningProblem { subject, kernels, own, others });
                }
            }
        }
        // Where the rules have none for matrix units there are none that know this, or nothing may be rounded.
        let wants_units = choices.iter().any(|choice| choice.own.wants_units());
        for choice in &mut choices {
            let rows = choice.subject.rows();
            let others = choice.subject.tried().into_iter();
            choice.others = others
                .filter(|layout| *layout != choice.own && (wants_units || !layout.wants_units()))
                .filter_map(|layout| {
                    let stand_in = |number: &usize| stand_in(&self.kernels[*number], layout, rows);
                    let instances = choice.kernels.iter().map(stand_in).collect::<Option<Vec<_>>>()?;
                    Some(Candidate { layout, instances })
                })
                .collect();
        }
        choices.retain(|choice| !choice.others.is_empty());
        choices
    }
}

/// The kernel with another layout, if it can have it and nobody notices.
fn stand_in(kernel: &Instance, layout: Layout, rows: Rows) -> Option<Instance> {
    let spec = layout.lay_out(&kernel.spec)?;
    if candidates_of(&spec) != candidates_of(&kernel.spec) {
        return None;
    }
    let name = format!("{}_{}", kernel.name, layout.name(rows));
    // What its limits refuse is no choice.
    let instance = forge_kernels::render(&name, &spec).ok()?;
    let same = instance.decl.buffers == kernel.decl.buffers && instance.decl.scalars == kernel.decl.scalars;
    same.then_some(instance)
}

/// Outputs that a candidate for the best logit is of, where a kernel leaves any.
fn candidates_of(spec: &Spec) -> Option<usize> {
    match spec {
        Spec::Project(project) if project.epilogue == Epilogue::Best => {
            Some(project.knobs.outputs_of_group())
        }
        _ => None,
    }
}
