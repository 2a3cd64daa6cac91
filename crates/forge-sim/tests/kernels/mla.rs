//! Kernels of multi-head latent attention.

use crate::attention::partial_rope;
use crate::cases::{Case, Launch};
use crate::matmul::project;
use forge_kernels::Spec;
use forge_kernels::spec::{Kernel, Knobs, MlaExpandedLayout, Operand, PerHeadLayout, Rows};
use forge_ops::{
    Epilogue, Format, InlineNorm, MlaAppend, MlaAttention, MlaAttentionExpanded, MlaColumns, MlaLoadLatents,
    MlaPrepare, Pairing, PerHeadLinear, RmsNorm,
};

/// Expanded MLA: the first tile of a sequence and a later one, of which rows attend to no position, some or
/// all.
pub(crate) fn expanded() -> Vec<Case> {
    let load_latents = |cache| Case {
        spec: Spec::MlaLoadLatents(MlaLoadLatents { width: 130, rope_width: 6, cache }),
        launches: vec![Launch::rows(5, 70).kv_range(66, 71)],
    };
    let attend = |[heads, keys, rope_width, values]: [usize; 4], operand, tile| {
        let (queries_pitch, scale) = (heads * keys + 3, 0.3);
        let shape = Kernel {
            op: MlaAttentionExpanded { heads, keys, rope_width, values, queries_pitch, scale },
            layout: MlaExpandedLayout { operand, tile },
        };
        let launches = vec![
            Launch::rows(11, 20),
            Launch::rows(11, 60).kv_range(0, 50),
            Launch::rows(19, 60).kv_range(46, 61),
        ];
        Case { spec: Spec::MlaAttentionExpanded(shape), launches }
    };
    vec![
        load_latents(Format::F32),
        load_latents(Format::F16),
        attend([3, 9, 4, 18], Operand::F32, 32),
        attend([2, 20, 8, 36], Operand::Ranged, 16),
        attend([2, 16, 4, 44], Operand::F32, 8),
    ]
}

/// Absorbed MLA: per-head matrices in a format, and cache lines, at sizes that fill no tile.
pub(crate) fn latents(format: Format, [heads, width, rope_width]: [usize; 3], cache: Format) -> Vec<Case> {
    let several = || vec![Launch::rows(3, 2)];
    let each = |transposed, together, each| {
        let (rows, columns) = (21, 50);
        let pitch = heads * if transposed { rows } else { columns } + 3;
        let spec = Kernel {
            op: PerHeadLinear { format, heads, rows, columns, transposed, pitch },
            layout: PerHeadLayout { together, each },
        };
        Case { spec: Spec::PerHeadLinear(spec), launches: several() }
    };
    let rope = partial_rope(rope_width, Pairing::Interleaved);
    let columns = MlaColumns {
        queries_pitch: heads * rope_width + 2,
        q_rope_first: 2,
        latent_pitch: width + rope_width,
        latent_first: 0,
        key_pitch: width + rope_width,
        key_first: width,
    };
    let prepare = Some(MlaPrepare { heads, columns, epsilon: 1e-6, rope });
    let append = |prepare| Case {
        spec: Spec::MlaAppend(MlaAppend { width, rope_width, cache, prepare }),
        launches: several(),
    };
    let attend = |prologue, launches| Case {
        spec: Spec::MlaAttention(MlaAttention { heads, width, rope_width, cache, scale: 0.3, prologue }),
        launches,
    };
    let few = vec![Launch::rows(1, 71), Launch::rows(3, 50).split(3), Launch::rows(4, 3).mixed(1).split(16)];
    let one = vec![
        Launch::rows(1, 71),
        Launch::rows(1, 0),
        Launch::rows(1, 40).split(3),
        Launch::rows(1, 2).split(5),
        Launch::rows(3, 50).appended(),
    ];
    let own_norm = |gain, split| {
        let mut case = project(Rows::One, format, 21, 96, Epilogue::Store);
        if let Spec::Linear(project) = &mut case.spec {
            project.op.own_norm = Some(InlineNorm { gain, epsilon: 1e-6, pitch: None });
            project.layout.knobs =
                Knobs { rows_per_simdgroup: 2, simdgroups: 4, split, packets: 1, ..project.layout.knobs };
        }
        case
    };
    vec![
        each(false, 1, 2),
        each(false, 2, 1),
        each(true, 1, 1),
        each(true, 2, 2),
        append(None),
        append(prepare.clone()),
        attend(None, few),
        attend(prepare, one),
        own_norm(true, 2),
        own_norm(false, 1),
        Case {
            spec: Spec::RmsNorm(RmsNorm {
                width: 30,
                parts: 1,
                epsilon: 1e-6,
                gain: true,
                gather: false,
                pitch: Some(41),
            }),
            launches: several(),
        },
    ]
}
