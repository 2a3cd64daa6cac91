//! What a plan leaves to choose: other layouts of its products, as kernels that may stand in for its own without anybody
//! noticing but by the time they take.
//!
//! A stand-in has the buffers and scalars of the kernel that it stands for. Some of what kernels leave depends on how they are
//! laid out. Partial sums of squares are as many as the plan says, whoever leaves them: a stand-in may have fewer threadgroups and
//! never more. Candidates for the best logit are read one for each threadgroup: a stand-in has as many, of as many outputs.
//! How the cache of attention is shared out is decided by the program, by the cores that it finds; experts are laid out by rule.

use crate::plan::Plan;
use crate::tuned::Product;
use forge_kernels::spec::{Epilogue, Knobs, Project};
use forge_kernels::{Instance, Spec};

/// A product, and how else it could be laid out.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The product.
    pub product: Product,
    /// The plan's kernels that make it, by number.
    pub kernels: Vec<usize>,
    /// How they are laid out.
    pub own: Knobs,
    /// Other layouts.
    pub others: Vec<Other>,
}

/// A layout, and for each kernel of the plan's one that has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Other {
    /// The layout.
    pub knobs: Knobs,
    /// The kernels, in the order of the choice's.
    pub instances: Vec<Instance>,
}

impl Plan {
    /// Everything that there is to choose.
    pub fn choices(&self) -> Vec<Choice> {
        let mut choices: Vec<Choice> = Vec::new();
        for (number, kernel) in self.kernels.iter().enumerate() {
            let Spec::Project(project) = &kernel.spec else { continue };
            let (product, own) = (Product::of(project), project.knobs);
            match choices.iter_mut().find(|choice| choice.product == product && choice.own == own) {
                Some(choice) => choice.kernels.push(number),
                None => {
                    let (kernels, others) = (vec![number], Vec::new());
                    choices.push(Choice { product, kernels, own, others });
                }
            }
        }
        for choice in &mut choices {
            let Product { rows, format, inputs, leaves, .. } = choice.product;
            let others = Knobs::tried(rows, format, inputs, leaves).into_iter();
            choice.others = others
                .filter(|knobs| *knobs != choice.own)
                .filter_map(|knobs| {
                    let stand_in = |number: &usize| stand_in(&self.kernels[*number], knobs);
                    let instances = choice.kernels.iter().map(stand_in).collect::<Option<Vec<_>>>()?;
                    Some(Other { knobs, instances })
                })
                .collect();
        }
        choices.retain(|choice| !choice.others.is_empty());
        choices
    }
}

/// The kernel with another layout, if it can have it and nobody notices.
fn stand_in(kernel: &Instance, knobs: Knobs) -> Option<Instance> {
    let Spec::Project(project) = &kernel.spec else { return None };
    let is_noticed =
        project.epilogue == Epilogue::Best && knobs.outputs_of_group() != project.knobs.outputs_of_group();
    if is_noticed {
        return None;
    }
    let name = format!("{}_{}", kernel.name, knobs.name(project.rows));
    let spec = Spec::Project(Project { knobs, ..project.clone() });
    // What its limits refuse is no choice.
    let instance = forge_kernels::render(&name, &spec).ok()?;
    let same = instance.decl.buffers == kernel.decl.buffers && instance.decl.scalars == kernel.decl.scalars;
    same.then_some(instance)
}
