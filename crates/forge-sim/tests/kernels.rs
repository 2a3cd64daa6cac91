//! Every kernel of the catalogue in the kernel checker, at sizes that fill no tile: no faults as it is, and a detected fault for
//! each removed barrier, clamp and guard.

mod cases;

use cases::experts::{experts, experts_by_tiles, experts_of_every_row, group, grouped};
use cases::{Case, Launch, rows_for, script};
use forge_kernels::spec::{
    AttendKernel, AttentionKnobs, AttentionLayout, ChunkLayout, Kernel, Knobs, LinearKernel, LinearLayout,
    MlaExpandedLayout, Operand, PerHeadLayout, Rows,
};
use forge_kernels::{Family, Spec, prologue_fits};
use forge_ops::{
    Activation, Append, Argmax, ArgmaxJoin, Attend, AttendJoin, CausalConv, DeferredNorm, DeltaChunks,
    DeltaRule, DeltaStep, Elementwise, Embed, Epilogue, Format, Function, GatedRmsNorm, Gates, Gating,
    HeadNorm, InlineNorm, KvSource, LatentAppend, LatentAttend, LatentColumns, LatentPrepare, LayerNorm,
    Linear, MlaAttentionExpanded, MlaLoadLatents, NormAdd, Pairing, PerHeadLinear, Prologue, RmsNorm, Rotate,
    RotateAppend, Rotation, Sample, SliceColumns, Squares, UnaryOp,
};
use forge_sim::mutants::{self, MutantOutcome};
use forge_sim::{Program, Replay, Samples, Weights};

fn project(rows: Rows, format: Format, outputs: usize, inputs: usize, epilogue: Epilogue) -> Case {
    let knobs = Knobs::for_chip(Family::Apple9, 10, rows, format, [outputs, inputs], false, false);
    let bias = outputs == 50;
    let (norm, own_norm, each, operand) = (None, None, None, Operand::F32);
    let spec = Spec::Project(Kernel {
        op: Linear { format, outputs, inputs, norm, own_norm, bias, each, epilogue, chooses: false },
        layout: LinearLayout { rows, operand, knobs },
    });
    Case { spec, launches: rows_for(rows) }
}

/// A projection of one row whose columns are split between two simdgroups.
fn shared(format: Format, epilogue: Epilogue) -> Case {
    let mut case = project(Rows::One, format, 50, 96, epilogue);
    if let Spec::Project(project) = &mut case.spec {
        project.layout.knobs = Knobs { simdgroups: 4, split: 2, ..project.layout.knobs };
    }
    case
}

/// Rare options of attention.
#[derive(Clone, Copy, Default)]
struct Extras {
    norm: bool,
    window: Option<usize>,
    ring: Option<usize>,
    softcap: Option<f32>,
    sinks: bool,
    values: bool,
    keys_alone: bool,
    still: bool,
    gated: bool,
}

/// A rotation that leaves two channels alone, where there are more.
fn rotation(width: usize, pairing: Pairing) -> Rotation {
    let pairs = (width / 2 - 1).max(1);
    let frequencies = (0..pairs).map(|k| 10_000f32.powf(-(k as f32) / pairs as f32)).collect();
    Rotation { frequencies, pairing, magnitude: 1.0, long: None }
}

/// Every kernel of attention at one size.
fn attention(width: usize, query_heads: usize, key_heads: usize, cache: Format, extras: Extras) -> Vec<Case> {
    let Extras { norm, window, ring, softcap, sinks, values, keys_alone, still, gated } = extras;
    let scale = 1.0 / (width as f32).sqrt();
    let norm = norm.then_some(HeadNorm { epsilon: 1e-6, turned: false, values });
    let pairing = if query_heads.is_multiple_of(2) { Pairing::Half } else { Pairing::Interleaved };
    let rotation = if still { Rotation::none() } else { rotation(width, pairing) };
    let brings = match (keys_alone, gated) {
        (true, _) => KvSource::Keys,
        (false, true) => KvSource::KeysValuesAndGates,
        (false, false) => KvSource::KeysAndValues,
    };
    let pitch = brings.row_heads(query_heads, key_heads) * width;
    let gates = gated.then(|| Gates { pitch, first: pitch - query_heads * width });
    let prologue = Prologue { brings, norm, rotation: rotation.clone() };
    let rotate = RotateAppend { query_heads, key_heads, width, cache, ring, brings, norm, rotation };
    let attend = Kernel {
        op: Attend {
            query_heads,
            key_heads,
            width,
            cache,
            ring,
            scale,
            window,
            softcap,
            sinks,
            gates,
            prologue: None,
        },
        layout: AttentionLayout { knobs: AttentionKnobs::for_heads(query_heads, key_heads, width, cache) },
    };
    let knobs = AttentionKnobs::for_chip(Family::Nvidia, Rows::Many, query_heads, key_heads, width, cache);
    let grouped = attend.clone().with_layout(|_| AttentionLayout { knobs });
    let queries = attend.clone().with_op(|op| Attend {
        prologue: Some(Prologue { brings: KvSource::Nothing, ..prologue.clone() }),
        ..op
    });
    let prepared = attend.clone().with_op(|op| Attend { prologue: Some(prologue), ..op });
    let knobs = AttentionKnobs::for_chip(Family::Nvidia, Rows::Few, query_heads, key_heads, width, cache);
    let on_a_card =
        |attend: &AttendKernel| Spec::AttendSplit(attend.clone().with_layout(|_| AttentionLayout { knobs }));
    let few = vec![Launch::rows(1, 71), Launch::rows(3, 50).split(3), Launch::rows(4, 3).mixed(1).split(16)];
    let one = vec![
        Launch::rows(1, 71),
        Launch::rows(1, 0),
        Launch::rows(1, 40).split(3),
        Launch::rows(1, 2).split(5),
    ];
    let many = vec![Launch::rows(17, 16), Launch::rows(21, 60).mixed(10), Launch::rows(3, 71)];
    let mut cases = Vec::new();
    // Elsewhere a card's layout is another of the same text.
    if knobs.units {
        cases.push(Case { spec: on_a_card(&attend), launches: few.clone() });
        cases.push(Case { spec: on_a_card(&prepared), launches: one.clone() });
    }
    cases.extend([
        Case { spec: Spec::RotateAppend(rotate), launches: vec![Launch::rows(5, 40)] },
        Case { spec: Spec::AttendSplit(attend.clone()), launches: few },
        Case { spec: Spec::AttendTiled(attend), launches: many.clone() },
        Case { spec: Spec::AttendTiled(grouped), launches: many },
        Case {
            spec: Spec::AttendJoin(AttendJoin { query_heads, width, gates }),
            launches: vec![Launch::rows(3, 50).split(3)],
        },
    ]);
    if prologue_fits(query_heads, key_heads, width) {
        // Where values are normed some layers have queries alone.
        if values {
            cases.push(Case { spec: Spec::AttendSplit(queries), launches: one.clone() });
        }
        cases.push(Case { spec: Spec::AttendSplit(prepared), launches: one });
    }
    cases
}

fn others() -> Vec<Case> {
    let once = |spec| Case { spec, launches: vec![Launch::rows(3, 2)] };
    let norm = |width, parts, gain, gather| {
        Spec::RmsNorm(RmsNorm { width, parts, epsilon: 1e-5, gain, gather, pitch: None })
    };
    let layer_norm = |width, bias, gather| Spec::LayerNorm(LayerNorm { width, epsilon: 1e-5, bias, gather });
    let pairing = Pairing::Half;
    vec![
        once(Spec::Embed(Embed {
            format: Format::Q8_0,
            vocabulary: 40,
            width: 50,
            scale: 1.0,
            adds: false,
            squares: None,
        })),
        once(Spec::Embed(Embed {
            format: Format::F16,
            vocabulary: 40,
            width: 50,
            scale: 1.0,
            adds: true,
            squares: None,
        })),
        once(layer_norm(100, true, false)),
        once(layer_norm(1030, false, true)),
        once(norm(100, 1, true, false)),
        once(norm(1030, 1, true, true)),
        once(norm(20, 3, false, false)),
        once(norm(136, 2, true, true)),
        once(Spec::Rotate(Rotate { heads: 3, width: 14, rotation: rotation(14, pairing) })),
        once(Spec::Append(Append { key_heads: 3, width: 20, cache: Format::F16, ring: None })),
        once(Spec::Append(Append { key_heads: 3, width: 64, cache: Format::Q8_0, ring: None })),
        once(Spec::Elementwise(Elementwise { function: Function::Each(UnaryOp::Softcap(0.5)), width: 300 })),
        once(Spec::Elementwise(Elementwise { function: Function::Multiply, width: 30 })),
        once(Spec::Elementwise(Elementwise { function: Function::ScaleBy, width: 300 })),
        once(Spec::Take(SliceColumns { width: 150, of: 155 })),
        once(Spec::Argmax(Argmax { vocabulary: 1500 })),
        Case { spec: Spec::Sample(Sample { vocabulary: 700 }), launches: vec![Launch::rows(4, 3)] },
    ]
}

/// Kernels with recurrent state or a latent cache.
fn memories() -> Vec<Case> {
    // One that begins, one that goes on, and two at once.
    let remembers = |spec| Case {
        spec,
        launches: vec![Launch::rows(3, 2), Launch::rows(1, 9), Launch::rows(5, 40).mixed(2)],
    };
    // One that goes on, and one that begins.
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

/// Rules of many rows: chunks that are full, that end with a slot's rows and that go on; heads and keys that fill nothing.
fn chunks() -> Vec<Case> {
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
        Case { spec: Spec::LetThrough(through.clone()), launches: vec![Launch::rows(3, 2)] },
        Case {
            spec: Spec::LetThrough(GatedRmsNorm { heads: 9, values: 32, pitch: 600, ..through }),
            launches: vec![Launch::rows(2, 1)],
        },
    ]
}

/// Norms that are added, in rows that fill no simdgroup and rows of several.
fn sums() -> Vec<Case> {
    let sum = |rows, width, gain, factor, squares| Case {
        spec: Spec::NormAdd(NormAdd { width, epsilon: 1e-5, gain, factor, squares }),
        launches: vec![Launch::rows(rows, 2)],
    };
    vec![
        sum(3, 100, true, false, None),
        sum(3, 1030, false, true, None),
        sum(1, 30, true, true, Some(Squares { partials: 40, gain: true })),
        sum(1, 900, true, false, Some(Squares { partials: 300, gain: false })),
    ]
}

/// Keys and values in the place of latents: the first share of a text and one that it goes on with, of which rows see nothing, a part or
/// all.
fn unfolded() -> Vec<Case> {
    let share = |cache| Case {
        spec: Spec::LatentShare(MlaLoadLatents { width: 130, turned: 6, cache }),
        launches: vec![Launch::rows(5, 70).share(66, 71)],
    };
    let attend = |[heads, keys, turned, values]: [usize; 4], operand, tile| {
        let (queries_pitch, scale) = (heads * keys + 3, 0.3);
        let shape = Kernel {
            op: MlaAttentionExpanded { heads, keys, turned, values, queries_pitch, scale },
            layout: MlaExpandedLayout { operand, tile },
        };
        let launches =
            vec![Launch::rows(11, 20), Launch::rows(11, 60).share(0, 50), Launch::rows(19, 60).share(46, 61)];
        Case { spec: Spec::AttendUnfolded(shape), launches }
    };
    vec![
        share(Format::F32),
        share(Format::F16),
        attend([3, 9, 4, 18], Operand::F32, 32),
        attend([2, 20, 8, 36], Operand::Ranged, 16),
        attend([2, 16, 4, 44], Operand::F32, 8),
    ]
}

/// Attention over latents: matrices of heads in a format, and lines at sizes that fill nothing.
fn latents(format: Format, [heads, width, turned]: [usize; 3], cache: Format) -> Vec<Case> {
    let several = || vec![Launch::rows(3, 2)];
    let each = |turned, together, each| {
        let (rows, columns) = (21, 50);
        let pitch = heads * if turned { rows } else { columns } + 3;
        let spec = Kernel {
            op: PerHeadLinear { format, heads, rows, columns, turned, pitch },
            layout: PerHeadLayout { together, each },
        };
        Case { spec: Spec::EachHead(spec), launches: several() }
    };
    let rotation = rotation(turned, Pairing::Interleaved);
    let columns = LatentColumns {
        queries_pitch: heads * turned + 2,
        turned_first: 2,
        latent_pitch: width + turned,
        latent_first: 0,
        key_pitch: width + turned,
        key_first: width,
    };
    let prepare = Some(LatentPrepare { heads, columns, epsilon: 1e-6, rotation });
    let append = |prepare| Case {
        spec: Spec::LatentAppend(LatentAppend { width, turned, cache, prepare }),
        launches: several(),
    };
    let attend = |prologue, launches| Case {
        spec: Spec::LatentAttend(LatentAttend { heads, width, turned, cache, scale: 0.3, prologue }),
        launches,
    };
    let few = vec![Launch::rows(1, 71), Launch::rows(3, 50).split(3), Launch::rows(4, 3).mixed(1).split(16)];
    let one = vec![
        Launch::rows(1, 71),
        Launch::rows(1, 0),
        Launch::rows(1, 40).split(3),
        Launch::rows(1, 2).split(5),
    ];
    let own_norm = |gain, split| {
        let mut case = project(Rows::One, format, 21, 96, Epilogue::Store);
        if let Spec::Project(project) = &mut case.spec {
            project.op.own_norm = Some(InlineNorm { gain, epsilon: 1e-6 });
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

/// Key heads, heads, keys and values.
fn delta_rule([key_heads, heads, keys, values]: [usize; 4], gated: Option<f32>) -> DeltaRule {
    DeltaRule { key_heads, heads, keys, values, scale: 0.5, epsilon: 1e-6, gated }
}

/// Special cases of projections and related kernels, at sizes that need each of their bounds.
fn planted_projections() -> Vec<Case> {
    let knobs = |rows_per_simdgroup, simdgroups, split, packets| {
        let (tile_rows, tile_outputs) = (16, 16);
        Knobs { rows_per_simdgroup, simdgroups, split, packets, tile_rows, tile_outputs, codes: false }
    };
    let norm = |partials| Some(DeferredNorm { partials, epsilon: 1e-5 });
    let squares = |partials, gain| Epilogue::AddSquares(Squares { partials, gain });
    let stored = |name: &str| Format::from_name(name).unwrap_or_else(|| panic!("{name}"));
    let plain = |rows, format, outputs, inputs, epilogue| match project(
        rows,
        stored(format),
        outputs,
        inputs,
        epilogue,
    ) {
        Case { spec: Spec::Project(project), .. } => project,
        case => panic!("{:?}", case.spec),
    };
    let one = |format, outputs, inputs, epilogue| plain(Rows::One, format, outputs, inputs, epilogue);
    let few = |format, outputs, inputs, epilogue| plain(Rows::Few, format, outputs, inputs, epilogue);
    let many = |format, outputs, inputs, epilogue| plain(Rows::Many, format, outputs, inputs, epilogue);
    let projects = [
        one("affine4", 14, 1300, GATE)
            .with_op(|op| Linear { norm: norm(12), ..op })
            .with_knobs(knobs(4, 2, 1, 2)),
        one("q8_0", 7, 50, Epilogue::Store)
            .with_op(|op| Linear { norm: norm(9), bias: true, ..op })
            .with_knobs(knobs(2, 2, 1, 1)),
        one("affine8_32", 27, 1040, squares(6, true)).with_knobs(knobs(4, 4, 2, 2)),
        one("f16", 21, 31, Epilogue::Best { candidates: 1 << 16 })
            .with_op(|op| Linear { norm: norm(140), ..op })
            .with_knobs(knobs(2, 4, 1, 1)),
        few("affine8_32", 13, 35, Epilogue::Add).with_layout(|layout| LinearLayout {
            knobs: knobs(8, 2, 1, 1),
            operand: Operand::Ranged,
            ..layout
        }),
        few("f32", 38, 64, GATE).with_op(|op| Linear { bias: true, ..op }).with_knobs(knobs(16, 2, 2, 1)),
        many("affine4_32", 22, 66, GATE).with_layout(|layout| LinearLayout {
            knobs: knobs(1, 4, 2, 1),
            operand: Operand::F16,
            ..layout
        }),
        many("q8_0", 50, 32, Epilogue::Store).with_layout(|layout| LinearLayout {
            knobs: Knobs { tile_rows: 64, tile_outputs: 64, ..knobs(1, 1, 1, 1) },
            operand: Operand::F16,
            ..layout
        }),
    ];
    let launches = |rows| match rows {
        Rows::One => vec![Launch::rows(1, 0)],
        Rows::Few => [1, 8, 11].map(|rows| Launch::rows(rows, rows - 1)).to_vec(),
        Rows::Many => [17, 70].map(|rows| Launch::rows(rows, rows - 1)).to_vec(),
    };
    let case = |project: LinearKernel| Case {
        launches: launches(project.layout.rows),
        spec: Spec::Project(project),
    };
    let embed = |width, squares| {
        let format = stored("affine4");
        Case {
            spec: Spec::Embed(Embed { format, vocabulary: 40, width, scale: 2.5, adds: false, squares }),
            launches: vec![Launch::rows(1, 0)],
        }
    };
    let mut cases: Vec<Case> = projects.into_iter().map(case).collect();
    cases.push(embed(1060, Some(Squares { partials: 3, gain: true })));
    cases.push(embed(33, Some(Squares { partials: 2, gain: false })));
    cases.push(Case {
        spec: Spec::ArgmaxJoin(ArgmaxJoin { candidates: 300 }),
        launches: vec![Launch::rows(2, 1)],
    });
    cases
}

const GATE: Epilogue = Epilogue::Gate(Gating::Plain(Activation::Silu));

/// Formats of every kind: every number of bits, each size of groups and both kinds of scales among them.
fn formats() -> Vec<Format> {
    let affine =
        ["affine8_bf16", "affine6_32", "affine5_128", "affine4", "affine4_32_bf16", "affine3", "affine2_128"];
    let plain = ["f32", "f16", "bf16", "q8_0", "q4_0", "q6_k", "q5_k", "q4_k"];
    let named = |name: &str| Format::from_name(name).unwrap_or_else(|| panic!("{name}"));
    plain.into_iter().chain(affine).chain(["mxfp4"]).map(named).collect()
}

#[test]
fn kernels_are_silent() {
    let mut cases = others();
    for rows in [Rows::One, Rows::Few, Rows::Many] {
        for format in formats() {
            cases.push(project(rows, format, 50, 56, Epilogue::Add));
            cases.push(project(rows, format, 112, 30, GATE));
            cases.push(project(rows, format, 7, 96, Epilogue::Store));
        }
    }
    for format in formats() {
        cases.extend(experts(format));
        let clamped = Gating::Clamped { limit: 0.5, sharpness: 1.702 };
        cases.extend(experts_by_tiles(format, &[Gating::Plain(Activation::Silu), clamped]));
        cases.push(shared(format, GATE));
        cases.push(Case {
            spec: Spec::Embed(Embed {
                format,
                vocabulary: 40,
                width: 64,
                scale: 1.0,
                adds: false,
                squares: None,
            }),
            launches: vec![Launch::rows(5, 4)],
        });
    }
    let all = Extras { norm: true, window: Some(30), softcap: Some(5.0), sinks: true, ..Extras::default() };
    let capped = Extras { window: Some(60), softcap: Some(5.0), ..Extras::default() };
    let plain = Extras::default();
    let ring = Extras { ring: Some(51), ..all };
    for (width, query_heads, key_heads, cache, extras) in [
        (64, 4, 2, Format::F16, plain),
        (64, 10, 2, Format::F32, all),
        (64, 5, 1, Format::F16, capped),
        (128, 8, 2, Format::F16, ring),
        (20, 9, 3, Format::F32, capped),
        (6, 6, 1, Format::F16, Extras { sinks: true, ..plain }),
        (80, 3, 1, Format::F16, all),
        (250, 2, 1, Format::F16, Extras { norm: true, ..plain }),
        (256, 9, 1, Format::F16, capped),
        (2, 32, 1, Format::F32, plain),
        (64, 4, 2, Format::F16, ring),
        (20, 3, 3, Format::F32, Extras { norm: false, ..ring }),
        (64, 4, 2, Format::Q8_0, plain),
        (128, 6, 1, Format::Q8_0, ring),
        (64, 4, 2, Format::F16, Extras { values: true, ..ring }),
        (20, 6, 3, Format::F32, Extras { values: true, keys_alone: true, ..all }),
        (64, 2, 1, Format::Q8_0, Extras { norm: true, values: true, keys_alone: true, ..plain }),
    ] {
        cases.extend(attention(width, query_heads, key_heads, cache, extras));
    }
    cases.extend(grouped());
    cases.push(group(50, 1, 20));
    cases.extend(memories());
    cases.extend(sums());
    for format in formats() {
        cases.extend(latents(format, [5, 21, 6], Format::F32));
    }
    cases.extend(latents(Format::F16, [19, 132, 64], Format::F16));
    cases.extend(latents(Format::F16, [1, 120, 8], Format::F16));
    cases.push(project(Rows::One, Format::Q8_0, 7, 96, Epilogue::Multiply { of: 12 }));
    cases.extend(attention(20, 4, 2, Format::F16, Extras { gated: true, ..Extras::default() }));
    cases.extend(attention(20, 4, 2, Format::F32, Extras { still: true, ..Extras::default() }));
    for format in formats() {
        cases.extend(experts_of_every_row(format));
    }
    cases.extend(chunks());
    cases.extend(unfolded());
    let script = script(&cases);
    let program = Program::compile(&script.text).unwrap_or_else(|error| panic!("{error}"));
    let weights = Weights::Bytes(&script.weights);
    let mut replay =
        Replay::new(&program, &script.recording, weights).unwrap_or_else(|error| panic!("{error}"));
    let report = replay.run(&mut |_, _| ());
    let faults: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(report.steps, script.recording.passes.len());
}

#[test]
fn planted_faults_are_caught() {
    let mut cases = others();
    cases.push(project(Rows::One, Format::Q8_0, 50, 56, Epilogue::Add));
    cases.push(shared(Format::Q4_0, GATE));
    cases.push(project(Rows::Many, Format::Q4_0, 50, 56, Epilogue::Add));
    cases.extend(planted_projections());
    // Groups of many heads, so that a threadgroup has few simdgroups for positions and each of them has several blocks.
    let all = Extras { norm: true, window: Some(70), softcap: Some(5.0), sinks: true, ..Extras::default() };
    // A ring that is not full yet: in a full one, the element past the last position is an earlier position and valid. Its window is
    // more than one round of loads.
    let ring = Extras { window: Some(70), ring: Some(200), ..Extras::default() };
    cases.extend(attention(20, 13, 1, Format::F16, all));
    cases.extend(attention(20, 9, 1, Format::F32, Extras::default()));
    cases.extend(attention(20, 13, 1, Format::F16, ring));
    // Matrix units, two simdgroups of which share positions.
    let by_units = |case: &Case| matches!(&case.spec, Spec::AttendSplit(attend) if attend.layout.knobs.units);
    cases.extend(attention(64, 13, 1, Format::F16, all).into_iter().filter(by_units));
    cases.extend(attention(64, 13, 1, Format::F16, ring).into_iter().filter(by_units));
    // Several positions at once, and lanes that have no channels.
    cases.extend(attention(96, 3, 1, Format::Q8_0, Extras { norm: true, ..Extras::default() }));
    cases.extend(memories());
    cases.extend(sums());
    cases.push(project(Rows::One, Format::Mxfp4, 50, 56, Epilogue::Add));
    cases.push(project(Rows::Many, Format::Mxfp4, 50, 56, Epilogue::Add));
    cases.extend(experts(Format::Q8_0));
    cases.extend(latents(Format::Q8_0, [19, 21, 6], Format::F32));
    // Values with a norm, computed from the key heads; and queries only.
    let of_keys = Extras { values: true, keys_alone: true, ..all };
    let prepares = |case: &Case| match &case.spec {
        Spec::RotateAppend(_) => true,
        Spec::AttendSplit(attend) => attend.op.prologue.is_some(),
        _ => false,
    };
    cases.extend(attention(20, 13, 1, Format::F16, of_keys).into_iter().filter(prepares));
    // Results that are multiplied by the last columns of a row, as `first` is 5.
    let multiplied = Epilogue::Multiply { of: 12 };
    cases.push(project(Rows::One, Format::F16, 7, 50, multiplied));
    cases.extend(experts_by_tiles(Format::Q8_0, &[Gating::Plain(Activation::Silu)]));
    cases.extend(grouped());
    // Heads without RoPE.
    let still = Extras { still: true, ..Extras::default() };
    cases.extend(attention(20, 13, 1, Format::F16, still).into_iter().filter(prepares));
    // Gates, where heads are joined and where they are prepared.
    let gated = Extras { gated: true, norm: true, ..Extras::default() };
    let joins = |case: &Case| prepares(case) || matches!(case.spec, Spec::AttendJoin(_));
    cases.extend(attention(20, 13, 1, Format::F16, gated).into_iter().filter(joins));
    cases.extend(experts_of_every_row(Format::Q8_0));
    cases.extend(chunks());
    cases.extend(unfolded());
    let script = script(&cases);
    let program = Program::compile(&script.text).unwrap_or_else(|error| panic!("{error}"));
    let weights = Weights::Bytes(&script.weights);
    let mut replay =
        Replay::new(&program, &script.recording, weights).unwrap_or_else(|error| panic!("{error}"));
    replay.sampling(Samples::new(4, 1 << 24));
    replay.run(&mut |_, _| ());
    let samples = replay.into_samples();
    let planted = mutants::mutants(&script.text).unwrap_or_else(|error| panic!("{error}"));
    let fates = mutants::run(&script.text, &planted, &samples, 20_000_000, &|_, _| ())
        .unwrap_or_else(|error| panic!("{error}"));
    let mut missed = Vec::new();
    let mut counts = [0, 0];
    for (mutant, fate) in planted.iter().zip(&fates) {
        match fate {
            MutantOutcome::Caught(_) => counts[0] += 1,
            // These conditions are arithmetic, such as masks of scores, not bounds: the results differ, but no access is out of bounds.
            MutantOutcome::Different => counts[1] += 1,
            fate => {
                let line = script.text.lines().nth(mutant.line - 1).unwrap_or_default().trim();
                missed.push(format!(
                    "{} line {}: {}: {line}: {fate:?}",
                    mutant.kernel, mutant.line, mutant.change
                ));
            }
        }
    }
    println!(
        "{} planted: {} caught by the checker, {} by their results",
        planted.len(),
        counts[0],
        counts[1]
    );
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    assert!(counts[1] * 5 < planted.len(), "{counts:?} of {}", planted.len());
}
