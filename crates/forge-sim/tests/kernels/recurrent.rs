//! Kernels with recurrent state or a latent cache.

use crate::cases::{Case, Launch};
use forge_kernels::Spec;
use forge_kernels::spec::{ChunkLayout, Kernel};
use forge_ops::{CausalConv, DeltaChunks, DeltaRule, DeltaStep, GatedRmsNorm};

/// Kernels with recurrent state or a latent cache.
pub(crate) fn recurrent_states() -> Vec<Case> {
    // A slot that starts, one that continues, and both at once.
    let remembers = |spec| Case {
        spec,
        launches: vec![Launch::rows(3, 2), Launch::rows(1, 9), Launch::rows(5, 40).mixed(2)],
    };
    // A slot that continues, and one that starts.
    let step = |sizes| Case {
        spec: Spec::DeltaStep(DeltaStep { rule: delta_rule(sizes, Some(1e-5)), taps: 4 }),
        launches: vec![Launch::rows(2, 9).mixed(1)],
    };
    vec![
        remembers(Spec::Convolve(CausalConv { width: 140, taps: 4, pitch: 147, activation: None })),
        remembers(Spec::DeltaRule(delta_rule([2, 4, 10, 6], None))),
        remembers(Spec::DeltaRule(delta_rule([1, 2, 20, 3], None))),
        remembers(Spec::DeltaRule(delta_rule([2, 4, 10, 9], Some(1e-5)))),
        step([2, 4, 10, 9]),
        step([1, 2, 16, 8]),
    ]
}

/// Delta rules of many rows: full chunks, and chunks that end with the rows of a slot or continue; heads and
/// keys that fill no tile.
pub(crate) fn chunks() -> Vec<Case> {
    let launches = || vec![Launch::rows(19, 18), Launch::rows(21, 60).mixed(9), Launch::rows(1, 9)];
    let chunks = |sizes, gated, rows| Case {
        spec: Spec::DeltaChunks(Kernel {
            op: DeltaChunks { rule: delta_rule(sizes, gated) },
            layout: ChunkLayout { rows },
        }),
        launches: launches(),
    };
    let (heads, values, epsilon) = (3, 40, 1e-5);
    let through = GatedRmsNorm { heads, values, pitch: 250, first: 121, epsilon };
    vec![
        chunks([2, 4, 10, 6], None, 8),
        chunks([1, 2, 20, 35], None, 16),
        chunks([2, 4, 10, 9], Some(1e-5), 16),
        chunks([1, 1, 36, 20], Some(1e-5), 8),
        chunks([1, 2, 16, 32], Some(1e-5), 32),
        Case { spec: Spec::GatedRmsNorm(through), launches: vec![Launch::rows(3, 2)] },
        Case {
            spec: Spec::GatedRmsNorm(GatedRmsNorm { heads: 9, values: 32, pitch: 600, ..through }),
            launches: vec![Launch::rows(2, 1)],
        },
    ]
}

/// Key heads, value heads, and widths of keys and values.
fn delta_rule([key_heads, heads, keys, values]: [usize; 4], gated: Option<f32>) -> DeltaRule {
    DeltaRule { key_heads, heads, keys, values, scale: 0.5, epsilon: 1e-6, gated }
}
