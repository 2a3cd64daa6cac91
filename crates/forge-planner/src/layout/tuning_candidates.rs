//! Tuning problems of a plan: alternative layouts for matmul and attention kernels.
//!
//! A candidate has the same buffers and scalars as the kernel it replaces, and differs only in time. Some
//! outputs depend on the layout:
//!
//! * Partial sums of squares: the plan fixes their number, so a candidate has at most as many threadgroups.
//! * Argmax candidates: one is read for each threadgroup, so a candidate has the same outputs per
//!   threadgroup.
//! * KV splits: the program chooses them from the number of GPU cores, so a candidate has the same splits.
//! * Rows of a grouped-GEMM tile: several kernels depend on it, so it is not tuned.

use crate::layout::tuning_key::{Layout, TuningKey};
use crate::plan::Plan;
use forge_kernels::spec::Rows;
use forge_kernels::{Instance, Spec};
use forge_ops::Epilogue;

/// A tuning key, and the alternative layouts of its kernels.
#[derive(Clone, Debug, PartialEq)]
pub struct TuningProblem {
    /// The key.
    pub subject: TuningKey,
    /// Kernels of the plan with this key, by index.
    pub kernels: Vec<usize>,
    /// Their layout in the plan.
    pub default: Layout,
    /// Alternative layouts.
    pub candidates: Vec<Candidate>,
}

/// A layout, and an instance of it for each kernel of the problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The layout.
    pub layout: Layout,
    /// Instances, in the order of the problem's kernels.
    pub instances: Vec<Instance>,
}

impl Plan {
    /// All tuning problems of the plan.
    pub fn choices(&self) -> Vec<TuningProblem> {
        let mut choices: Vec<TuningProblem> = Vec::new();
        for (number, kernel) in self.kernels.iter().enumerate() {
            let Some((subject, default)) = TuningKey::of(&kernel.spec) else { continue };
            match choices.iter_mut().find(|choice| choice.subject == subject && choice.default == default) {
                Some(choice) => choice.kernels.push(number),
                None => {
                    let (kernels, candidates) = (vec![number], Vec::new());
                    choices.push(TuningProblem { subject, kernels, default, candidates });
                }
            }
        }
        // If no kernel of the plan uses the integer MMA layout, the target has none, or rounding is disabled.
        let uses_mma = choices.iter().any(|choice| choice.default.uses_mma());
        for choice in &mut choices {
            let rows = choice.subject.rows();
            let candidates = choice.subject.tried().into_iter();
            choice.candidates = candidates
                .filter(|layout| *layout != choice.default && (uses_mma || !layout.uses_mma()))
                .filter_map(|layout| {
                    let candidate_kernel =
                        |number: &usize| candidate_kernel(&self.kernels[*number], layout, rows);
                    let instances =
                        choice.kernels.iter().map(candidate_kernel).collect::<Option<Vec<_>>>()?;
                    Some(Candidate { layout, instances })
                })
                .collect();
        }
        choices.retain(|choice| !choice.candidates.is_empty());
        choices
    }
}

/// The kernel with another layout, if it supports that layout and keeps its interface.
fn candidate_kernel(kernel: &Instance, layout: Layout, rows: Rows) -> Option<Instance> {
    let spec = layout.apply_to(&kernel.spec)?;
    if candidates_of(&spec) != candidates_of(&kernel.spec) {
        return None;
    }
    let name = format!("{}_{}", kernel.name, layout.name(rows));
    // Layouts beyond the kernel's limits are not candidates.
    let instance = forge_kernels::render(&name, &spec).ok()?;
    let same = instance.decl.buffers == kernel.decl.buffers && instance.decl.scalars == kernel.decl.scalars;
    same.then_some(instance)
}

/// Outputs per argmax candidate, if the kernel writes any.
fn candidates_of(spec: &Spec) -> Option<usize> {
    match spec {
        Spec::Linear(linear) if matches!(linear.op.epilogue, Epilogue::Best { .. }) => {
            Some(linear.layout.knobs.outputs_of_group())
        }
        _ => None,
    }
}
