//! Specs that tests render: every format, epilogue and regime, at sizes that are round and sizes that are not.

#![allow(dead_code, reason = "each test takes the specs that it needs")]

use forge_ir::{Activation, Format, Gating, Groups, Long, Pairing, Record, Rotation, Scores};
use forge_kernels::spec::{
    Append, Argmax, ArgmaxJoin, Attend, AttendJoin, AttendKnobs, AttendUnfolded, Brings, Convolve,
    DeferredNorm, DeltaChunks, DeltaRule, DeltaStep, Each, EachHead, Elementwise, Embed, Epilogue,
    ExpertsGroup, ExpertsInner, ExpertsJoin, ExpertsSum, ExpertsTiles, Function, Gates, HeadNorm, Knobs,
    LatentAppend, LatentAttend, LatentColumns, LatentPrepare, LatentShare, LayerNorm, LetThrough, NormAdd,
    Operand, OwnNorm, Project, Prologue, RmsNorm, Rotate, RotateAppend, Route, Rows, Sample, Squares, Summed,
    Take,
};
use forge_kernels::{Family, Spec, prologue_fits};

/// A projection with the knobs of an M4.
pub(crate) fn project(
    rows: Rows,
    format: Format,
    outputs: usize,
    inputs: usize,
    epilogue: Epilogue,
) -> Project {
    let leaves = matches!(epilogue, Epilogue::AddSquares(_) | Epilogue::Best);
    let knobs = Knobs::for_chip(Family::Apple9, 10, rows, format, outputs, inputs, leaves);
    Project {
        rows,
        format,
        outputs,
        inputs,
        norm: None,
        own_norm: None,
        bias: false,
        each: None,
        epilogue,
        operand: Operand::F32,
        chooses: false,
        knobs,
    }
}

/// Formats of every kind: every number of bits, each size of groups and both kinds of scales among them.
pub(crate) fn formats() -> Vec<Format> {
    let affine =
        ["affine8_32", "affine6", "affine5_128", "affine4", "affine4_128_bf16", "affine3_32", "affine2_bf16"];
    let plain = ["f32", "f16", "bf16", "q8_0", "q4_0", "q6_k", "q5_k", "q4_k"];
    let named = |name: &str| Format::from_name(name).unwrap_or_else(|| panic!("{name}"));
    plain.into_iter().chain(affine).map(named).collect()
}

/// Projections of every kind; some share rows between simdgroups.
pub(crate) fn projections() -> Vec<Spec> {
    let mut specs = Vec::new();
    for format in formats() {
        for rows in [Rows::One, Rows::Few, Rows::Many] {
            for epilogue in [Epilogue::Store, Epilogue::Add, Epilogue::Gate(Activation::Silu)] {
                for (outputs, inputs, bias) in
                    [(64, 128, false), (50, 56, true), (112, 30, false), (7, 64, true)]
                {
                    if outputs % 2 == 1 && matches!(epilogue, Epilogue::Gate(_)) {
                        continue;
                    }
                    let plain = Project { bias, ..project(rows, format, outputs, inputs, epilogue) };
                    specs.push(Spec::Project(plain.clone()));
                    let knobs = Knobs { simdgroups: 4, split: 2, ..plain.knobs };
                    let each =
                        bias.then_some(if inputs == 56 { Each::Softcap(30.0) } else { Each::Scale(0.22) });
                    specs.push(Spec::Project(Project { knobs, each, operand: Operand::F16, ..plain }));
                }
            }
        }
    }
    for (tile_rows, split) in [(64, 1), (16, 2)] {
        let plain = project(Rows::Many, Format::Q4_0, 320, 96, Epilogue::Add);
        let knobs = Knobs { tile_rows, split, ..plain.knobs };
        specs.push(Spec::Project(Project { knobs, operand: Operand::F16, ..plain }));
    }
    specs.extend(deferred());
    specs
}

/// Projections of one row with what a decode step asks for: deferred norms, softcaps, squares and candidates left.
fn deferred() -> Vec<Spec> {
    let mut specs = Vec::new();
    let norms = [None, Some(96), Some(128), Some(12), Some(7), Some(256)];
    let squares = |partials, gain| Epilogue::AddSquares(Squares { partials, gain });
    let epilogues = [
        Epilogue::Store,
        Epilogue::Gate(Activation::Silu),
        squares(128, true),
        squares(25, false),
        Epilogue::Best,
        Epilogue::Multiply { of: 60 },
    ];
    let knobs = [(1, 2, 1), (2, 2, 2), (4, 8, 1), (8, 8, 4), (2, 2, 1), (8, 8, 2)];
    for (index, format) in formats().into_iter().enumerate() {
        for (turn, epilogue) in epilogues.into_iter().enumerate() {
            for (rows_per_simdgroup, simdgroups, split) in knobs {
                let turn = index + turn + rows_per_simdgroup * simdgroups;
                let (outputs, inputs) = [(48, 2048), (50, 1056), (22, 30)][turn % 3];
                if matches!(epilogue, Epilogue::Gate(_)) && rows_per_simdgroup == 1 {
                    continue;
                }
                let packets = if split == 1 && inputs > 1024 { 2 } else { 1 };
                let mut plain = project(Rows::One, format, outputs, inputs, epilogue);
                plain.knobs = Knobs { rows_per_simdgroup, simdgroups, split, packets, ..plain.knobs };
                plain.norm = norms[turn % 6].map(|partials| DeferredNorm { partials, epsilon: 1e-6 });
                plain.bias = turn % 2 == 1;
                plain.each = (turn % 5 == 0).then_some(Each::Softcap(30.0));
                // Every other one that norms its x does all of it.
                if plain.norm.is_some() && turn % 2 == 0 {
                    plain.norm = None;
                    plain.own_norm = Some(OwnNorm { gain: turn % 4 == 0, epsilon: 1e-6 });
                }
                let groups = outputs.div_ceil(rows_per_simdgroup * simdgroups / split);
                if !matches!(epilogue, Epilogue::AddSquares(squares) if squares.partials < groups) {
                    specs.push(Spec::Project(plain));
                }
            }
        }
    }
    specs
}

/// Attention, plain.
pub(crate) fn attend(query_heads: usize, key_heads: usize, width: usize, cache: Format) -> Attend {
    let scale = 1.0 / (width as f32).sqrt();
    Attend {
        query_heads,
        key_heads,
        width,
        cache,
        ring: None,
        scale,
        window: None,
        softcap: None,
        sinks: false,
        gates: None,
        prologue: None,
        knobs: AttendKnobs::for_heads(query_heads, key_heads, width, cache),
    }
}

/// Attention of many rows as it is laid out for a card.
pub(crate) fn on_a_card(attend: Attend) -> Spec {
    let Attend { query_heads, key_heads, width, cache, .. } = attend;
    let knobs = AttendKnobs::for_chip(Family::Nvidia, Rows::Many, query_heads, key_heads, width, cache);
    Spec::AttendTiled(Attend { knobs, ..attend })
}

/// What `rotate_append` would do, done by attention.
pub(crate) fn prologue(rotate: &RotateAppend) -> Prologue {
    let RotateAppend { brings, norm, ref rotation, pairing, .. } = *rotate;
    Prologue { brings, norm, rotation: rotation.clone(), pairing }
}

/// Rotation, and attention in each of its kernels, for every width and size of group; each with one of the things that
/// few models have, and once with all of them.
pub(crate) fn attentions() -> Vec<Spec> {
    let norm = Some(HeadNorm { epsilon: 1e-6, turned: false, values: false });
    let mut specs = Vec::new();
    for width in [6, 16, 20, 30, 64, 80, 96, 120, 128, 250, 256] {
        for (query_heads, key_heads) in [(1, 1), (4, 2), (9, 3), (10, 2), (6, 1), (9, 1), (32, 1), (14, 2)] {
            let coded = (width % 32 == 0).then_some(Format::Q8_0);
            for cache in [Format::F16, Format::F32].into_iter().chain(coded) {
                let plain = rotate(query_heads, key_heads, width, cache, width / 2, Pairing::Half);
                let still = RotateAppend {
                    rotation: Rotation::none(),
                    pairing: Pairing::Interleaved,
                    ..plain.clone()
                };
                specs.push(Spec::RotateAppend(still.clone()));
                specs.push(Spec::RotateAppend(RotateAppend { norm, ..still.clone() }));
                let split = attend(query_heads, key_heads, width, cache);
                let brings = Brings::KeysValuesAndGates;
                let pitch = brings.row_heads(query_heads, key_heads) * width;
                let gates = Some(Gates { pitch, first: pitch - query_heads * width });
                let beside = RotateAppend { brings, ..plain.clone() };
                specs.push(Spec::RotateAppend(beside.clone()));
                specs.push(Spec::AttendSplit(Attend { gates, ..split.clone() }));
                specs.push(Spec::AttendTiled(Attend { gates, ..split.clone() }));
                specs.push(Spec::AttendJoin(AttendJoin { query_heads, width, gates }));
                if prologue_fits(query_heads, key_heads, width) {
                    let prologue = Some(prologue(&beside));
                    specs.push(Spec::AttendSplit(Attend { gates, prologue, ..split.clone() }));
                }
                let tiled = attend(query_heads, key_heads, width, cache);
                specs.push(Spec::AttendSplit(Attend { window: Some(40), ..split.clone() }));
                let (window, ring) = (Some(40), Some(320));
                specs.push(Spec::AttendSplit(Attend { window, ring, ..split.clone() }));
                specs.push(Spec::AttendTiled(Attend { window, ring, ..tiled.clone() }));
                specs.push(Spec::RotateAppend(RotateAppend { ring, ..plain.clone() }));
                specs.push(Spec::RotateAppend(RotateAppend { ring, norm, ..plain.clone() }));
                specs.push(Spec::AttendSplit(Attend { softcap: Some(50.0), ..split.clone() }));
                specs.push(Spec::AttendSplit(Attend { sinks: true, ..split.clone() }));
                if prologue_fits(query_heads, key_heads, width) {
                    let whole = Some(prologue(&plain));
                    let part = rotate(query_heads, key_heads, width, cache, width / 2 - 1, Pairing::Half);
                    let part = Some(prologue(&RotateAppend { norm, ..part }));
                    for norm in [None, norm] {
                        let prologue = Some(prologue(&RotateAppend { norm, ..still.clone() }));
                        specs.push(Spec::AttendSplit(Attend { prologue, ..split.clone() }));
                    }
                    let prologue = whole.clone();
                    specs.push(Spec::AttendSplit(Attend { prologue, window, ring, ..split.clone() }));
                    specs.push(Spec::AttendSplit(Attend { prologue: whole, ..split.clone() }));
                    specs.push(Spec::AttendSplit(Attend {
                        window: Some(40),
                        softcap: Some(50.0),
                        sinks: true,
                        prologue: part,
                        ..split.clone()
                    }));
                }
                specs.push(Spec::AttendTiled(Attend {
                    window: Some(40),
                    softcap: Some(50.0),
                    sinks: true,
                    ..tiled.clone()
                }));
                specs.push(Spec::RotateAppend(RotateAppend { norm, ..plain.clone() }));
                specs.push(Spec::RotateAppend(plain));
                specs.push(Spec::AttendSplit(split));
                specs.push(on_a_card(tiled.clone()));
                specs.push(on_a_card(Attend {
                    window: Some(40),
                    softcap: Some(50.0),
                    sinks: true,
                    gates,
                    ..tiled.clone()
                }));
                specs.push(Spec::AttendTiled(tiled));
            }
        }
        for (heads, cache) in [(1, Format::F16), (7, Format::F32), (32, Format::F16)] {
            for pairing in [Pairing::Half, Pairing::Interleaved] {
                for pairs in [width / 2, width / 2 - 1] {
                    let RotateAppend { rotation, .. } = rotate(1, 1, width, cache, pairs, pairing);
                    specs.push(Spec::Rotate(Rotate { heads, width, rotation, pairing }));
                }
            }
            for ring in [None, Some(320)] {
                specs.push(Spec::Append(Append { key_heads: heads, width, cache, ring }));
            }
            if width % 32 == 0 {
                let (cache, ring) = (Format::Q8_0, None);
                specs.push(Spec::Append(Append { key_heads: heads, width, cache, ring }));
            }
        }
        specs.push(Spec::AttendJoin(AttendJoin { query_heads: 4, width, gates: None }));
    }
    for pairs in [10, 32] {
        for pairing in [Pairing::Half, Pairing::Interleaved] {
            let plain = rotate(4, 2, 64, Format::F16, pairs, pairing);
            let with = |rotate: &RotateAppend| Attend {
                prologue: Some(prologue(rotate)),
                ..attend(4, 2, 64, rotate.cache)
            };
            specs.push(Spec::AttendSplit(with(&plain)));
            specs.push(Spec::RotateAppend(RotateAppend { norm, ..plain.clone() }));
            specs.push(Spec::RotateAppend(plain));
            // Normed after they are turned; and turned otherwise in a long context.
            let turned = rotate(4, 2, 64, Format::F16, pairs, Pairing::Half);
            let turned = RotateAppend { norm: norm.map(|norm| HeadNorm { turned: true, ..norm }), ..turned };
            let mut long = rotate(4, 2, 64, Format::F32, pairs, pairing);
            long.rotation.long =
                Some(Long::Other { beyond: 4096, frequencies: long.rotation.frequencies.clone() });
            let mut stretched = long.clone();
            stretched.rotation.long = Some(Long::Stretched { beyond: 4096, factor: 4.0 });
            for rotate in [turned, long, stretched] {
                specs.push(Spec::AttendSplit(with(&rotate)));
                let RotateAppend { width, ref rotation, pairing, .. } = rotate;
                specs.push(Spec::Rotate(Rotate { heads: 3, width, rotation: rotation.clone(), pairing }));
                specs.push(Spec::RotateAppend(rotate));
            }
        }
    }
    // Values that are normed, or made of the heads that keys are made of; and queries alone.
    for (cache, pairing) in [(Format::F16, Pairing::Half), (Format::Q8_0, Pairing::Interleaved)] {
        for turned in [None, Some(false), Some(true)] {
            let norm = turned.map(|turned| HeadNorm { epsilon: 1e-6, turned, values: true });
            for brings in [Brings::KeysAndValues, Brings::Keys, Brings::Nothing] {
                let mut rotate = RotateAppend { brings, norm, ..rotate(9, 3, 96, cache, 20, pairing) };
                rotate.rotation.magnitude = 1.0;
                let (window, ring) = (Some(40), Some(320));
                let attend =
                    Attend { prologue: Some(prologue(&rotate)), window, ring, ..attend(9, 3, 96, cache) };
                specs.push(Spec::AttendSplit(attend));
                if brings != Brings::Nothing {
                    specs.push(Spec::RotateAppend(rotate));
                }
            }
        }
    }
    specs
}

/// Rotation and append with frequencies as of base 10,000.
pub(crate) fn rotate(
    query_heads: usize,
    key_heads: usize,
    width: usize,
    cache: Format,
    pairs: usize,
    pairing: Pairing,
) -> RotateAppend {
    let frequencies = (0..pairs).map(|k| 10_000_f32.powf(-(k as f32) / pairs as f32)).collect();
    let magnitude = if pairing == Pairing::Half { 1.0 } else { 1.25 };
    let rotation = Rotation { frequencies, pairing, magnitude, long: None };
    RotateAppend {
        query_heads,
        key_heads,
        width,
        cache,
        ring: None,
        brings: Brings::KeysAndValues,
        norm: None,
        rotation,
        pairing,
    }
}

/// Embedding, norms, functions element by element, and argmax.
pub(crate) fn others() -> Vec<Spec> {
    let mut specs = Vec::new();
    for format in formats() {
        for width in [64, 56, 30] {
            let squares = |gain| Squares { partials: 100, gain };
            for squares in [None, Some(squares(false)), Some(squares(true))] {
                specs.push(Spec::Embed(Embed {
                    format,
                    vocabulary: 512,
                    width,
                    scale: 22.627417,
                    adds: false,
                    squares,
                }));
            }
        }
    }
    for width in [64, 50] {
        let (format, squares) = (Format::Q8_0, None);
        specs.push(Spec::Embed(Embed { format, vocabulary: 512, width, scale: 1.0, adds: true, squares }));
    }
    for width in [64, 56, 30, 4096] {
        for (bias, gather) in [(true, false), (false, true)] {
            specs.push(Spec::LayerNorm(LayerNorm { width, epsilon: 1e-5, bias, gather }));
        }
        for (parts, gather, gain) in
            [(1, false, true), (1, true, true), (1, false, false), (6, false, true), (6, true, true)]
        {
            specs.push(Spec::RmsNorm(RmsNorm { width, parts, epsilon: 1e-5, gain, gather, pitch: None }));
        }
        for (gain, factor, squares) in [
            (true, false, None),
            (false, true, None),
            (true, true, Some(Squares { partials: 4, gain: true })),
            (true, false, Some(Squares { partials: 1, gain: false })),
        ] {
            specs.push(Spec::NormAdd(NormAdd { width, epsilon: 1e-6, gain, factor, squares }));
        }
        for function in [
            Function::Each(Each::Activate(Activation::GeluTanh)),
            Function::Each(Each::Activate(Activation::Gelu)),
            Function::Each(Each::Activate(Activation::Relu)),
            Function::Each(Each::Activate(Activation::Sigmoid)),
            Function::Each(Each::Softcap(30.0)),
            Function::Each(Each::Scale(0.22)),
            Function::Multiply,
            Function::Times,
            Function::Add,
            Function::ScaleBy,
        ] {
            specs.push(Spec::Elementwise(Elementwise { function, width }));
        }
        specs.push(Spec::Take(Take { width, of: 3 * width }));
    }
    for (width, taps, pitch, activation) in [
        (64, 4, 64, None),
        (300, 2, 311, None),
        (10_240, 4, 14_400, Some(Activation::Silu)),
        (50, 3, 51, Some(Activation::GeluTanh)),
    ] {
        specs.push(Spec::Convolve(Convolve { width, taps, pitch, activation }));
    }
    for (key_heads, heads, keys, values) in [(16, 32, 128, 128), (2, 4, 16, 16), (3, 3, 10, 6), (1, 3, 7, 11)]
    {
        let (scale, epsilon) = (0.25, 1e-6);
        for gated in [None, Some(1e-5)] {
            let rule = DeltaRule { key_heads, heads, keys, values, scale, epsilon, gated };
            specs.push(Spec::DeltaRule(rule.clone()));
            specs.extend(DeltaChunks::of(rule.clone()).map(Spec::DeltaChunks));
            specs.push(Spec::DeltaChunks(DeltaChunks { rule: rule.clone(), rows: 8 }));
            specs.extend(gated.map(|_| Spec::DeltaStep(DeltaStep { rule, taps: 4 })));
        }
    }
    for (heads, values) in [(32, 128), (3, 40)] {
        let (pitch, first, epsilon) = (heads * (2 * values + 2), heads * values, 1e-6);
        specs.push(Spec::LetThrough(LetThrough { heads, values, pitch, first, epsilon }));
    }
    specs.push(Spec::RmsNorm(RmsNorm {
        width: 64,
        parts: 1,
        epsilon: 1e-5,
        gain: true,
        gather: false,
        pitch: Some(90),
    }));
    specs.extend(latents());
    specs.extend(experts());
    specs.extend([512, 50_257].map(|vocabulary| Spec::Argmax(Argmax { vocabulary })));
    specs.extend([1, 512, 50_257].map(|vocabulary| Spec::Sample(Sample { vocabulary })));
    specs.extend([3, 4_749].map(|candidates| Spec::ArgmaxJoin(ArgmaxJoin { candidates })));
    specs
}

/// Attention over latents: matrices of heads both ways and in every format, and each size of a line.
pub(crate) fn latents() -> Vec<Spec> {
    let mut specs = Vec::new();
    for format in formats() {
        for (heads, rows, columns) in [(16, 128, 512), (3, 7, 30), (2, 100, 56)] {
            for turned in [false, true] {
                let of_heads = heads * if turned { rows } else { columns };
                for (pitch, together, each) in [(of_heads, 1, 4), (of_heads + 3, 4, 2), (of_heads + 8, 2, 1)]
                {
                    specs.push(Spec::EachHead(EachHead {
                        format,
                        heads,
                        rows,
                        columns,
                        turned,
                        pitch,
                        together,
                        each,
                    }));
                }
            }
        }
    }
    for (heads, width, turned) in [(128, 512, 64), (5, 21, 4), (1, 24, 8), (16, 256, 128), (7, 700, 100)] {
        for cache in [Format::F16, Format::F32] {
            for prepare in prepares(heads, width, turned) {
                let prologue = prepare.clone();
                specs.push(Spec::LatentAppend(LatentAppend { width, turned, cache, prepare }));
                specs.push(Spec::LatentAttend(LatentAttend {
                    heads,
                    width,
                    turned,
                    cache,
                    scale: 0.1,
                    prologue,
                }));
            }
        }
        for cache in [Format::F16, Format::F32] {
            specs.push(Spec::LatentShare(LatentShare { width, turned, cache }));
        }
        specs.push(Spec::AttendJoin(AttendJoin { query_heads: heads, width, gates: None }));
    }
    for (heads, keys, turned, values) in [(128, 128, 64, 128), (5, 9, 10, 5), (3, 6, 8, 12), (2, 20, 4, 96)] {
        for (operand, more) in [(Operand::F32, 0), (Operand::Ranged, 3)] {
            let tile = AttendUnfolded::tile_for(keys, turned, values).expect("there is room");
            let (queries_pitch, scale) = (heads * keys + more, 0.1);
            specs.push(Spec::AttendUnfolded(AttendUnfolded {
                heads,
                keys,
                turned,
                values,
                queries_pitch,
                scale,
                operand,
                tile,
            }));
        }
    }
    specs
}

/// Nothing to prepare, and rows of every kind: in two buffers and in one, and turned in each way.
fn prepares(heads: usize, width: usize, turned: usize) -> Vec<Option<LatentPrepare>> {
    let apart = LatentColumns {
        queries_pitch: heads * turned,
        turned_first: 0,
        latent_pitch: 40 + width + turned,
        latent_first: 40,
        key_pitch: 40 + width + turned,
        key_first: 40 + width,
    };
    let all = heads * (width + turned);
    let together = LatentColumns {
        queries_pitch: all + width + turned,
        turned_first: heads * width,
        latent_pitch: all + width + turned,
        latent_first: all,
        key_pitch: all + width + turned,
        key_first: all + width,
    };
    let prepare = |columns, rotation: Rotation| {
        let pairing = rotation.pairing;
        Some(LatentPrepare { heads, columns, epsilon: 1e-6, rotation, pairing })
    };
    let turns = |pairs, pairing| rotate(1, 1, turned, Format::F16, pairs, pairing).rotation;
    let mut long = turns(turned / 2, Pairing::Interleaved);
    long.long = Some(Long::Other { beyond: 4096, frequencies: long.frequencies.clone() });
    let mut stretched = turns(turned / 2, Pairing::Half);
    stretched.long = Some(Long::Stretched { beyond: 4096, factor: 4.0 });
    vec![
        None,
        prepare(apart, turns(turned / 2, Pairing::Interleaved)),
        prepare(together, turns(turned / 2 - 1, Pairing::Half)),
        prepare(apart, long),
        prepare(together, stretched),
    ]
}

/// Ways of choosing experts.
pub(crate) fn routes() -> Vec<Route> {
    let plain = Route {
        experts: 128,
        chosen: 8,
        scores: Scores::Softmax,
        correction: false,
        groups: None,
        shares: true,
        factor: 1.0,
        scale: false,
        shared: 0,
        gated: false,
    };
    let groups = |count, kept, best| Some(Groups { count, kept, best });
    vec![
        Route { experts: 5, chosen: 5, shares: false, factor: 2.5, scale: true, ..plain.clone() },
        Route { experts: 60, chosen: 4, scores: Scores::Sigmoid, ..plain.clone() },
        Route { correction: true, ..plain.clone() },
        Route {
            experts: 512,
            chosen: 16,
            scores: Scores::Sigmoid,
            correction: true,
            factor: 2.5,
            ..plain.clone()
        },
        Route {
            experts: 96,
            chosen: 6,
            groups: groups(8, 4, 2),
            scores: Scores::Sigmoid,
            correction: true,
            ..plain.clone()
        },
        Route { experts: 60, chosen: 3, groups: groups(6, 3, 1), shares: false, ..plain.clone() },
        Route { shared: 1, ..plain.clone() },
        Route { experts: 60, chosen: 4, shared: 4, gated: true, shares: false, ..plain.clone() },
        plain,
    ]
}

/// Bytes from one expert's matrix to the next one's, where each has another beside it.
fn record(format: Format, matrix: [usize; 2]) -> usize {
    Record::of(&[(format, matrix), (Format::Q8_0, [50, 100])]).bytes
}

/// Every kernel of experts.
fn experts() -> Vec<Spec> {
    let mut specs: Vec<Spec> = routes().into_iter().map(Spec::Route).collect();
    let squares = |gain| Summed::AddSquares(Squares { partials: 64, gain });
    for format in Format::ALL.into_iter().filter(|format| format.takes(768)) {
        let plain = Gating::Plain(Activation::Silu);
        let clamped = Gating::Clamped { limit: 7.0, sharpness: 1.702 };
        for (norm, route, (bias, gating)) in [
            (None, None, (false, plain)),
            (None, None, (true, plain)),
            (None, None, (true, clamped)),
            (Some(DeferredNorm { partials: 64, epsilon: 1e-6 }), routes().pop(), (true, clamped)),
            (Some(DeferredNorm { partials: 64, epsilon: 1e-6 }), routes().pop(), (false, plain)),
            (
                Some(DeferredNorm { partials: 33, epsilon: 1e-6 }),
                Some(routes().swap_remove(3)),
                (false, clamped),
            ),
            (None, Some(routes().swap_remove(4)), (false, plain)),
            (None, Some(routes().swap_remove(8)), (false, plain)),
        ] {
            let shared = route.as_ref().map_or(0, |route| route.shared);
            let (experts, chosen) =
                route.as_ref().map_or((128, 8), |route| (route.experts + shared, route.routes()));
            specs.push(Spec::ExpertsInner(ExpertsInner {
                format,
                experts,
                chosen,
                shared,
                outputs: 100,
                inputs: 768,
                record: record(format, [100, 768]),
                norm,
                bias,
                gating,
                route,
                rows_per_simdgroup: 4,
                simdgroups: 2,
            }));
        }
        for (ending, bias) in
            [(Summed::Store, false), (Summed::Add, true), (squares(true), true), (squares(false), false)]
        {
            specs.push(Spec::ExpertsSum(ExpertsSum {
                format,
                experts: 128,
                chosen: 8,
                shared: 0,
                outputs: 100,
                inputs: 768,
                record: record(format, [100, 768]),
                bias,
                ending,
                rows_per_simdgroup: 4,
                simdgroups: 2,
            }));
        }
        for (outputs, gating, operand) in [
            (100, Some(plain), Operand::F32),
            (128, Some(clamped), Operand::F16),
            (100, None, Operand::F32),
            (64, None, Operand::F16),
        ] {
            specs.push(Spec::ExpertsTiles(ExpertsTiles {
                format,
                experts: 128,
                chosen: 8,
                shared: 0,
                outputs,
                inputs: 768,
                record: record(format, [outputs, 768]),
                bias: outputs == 100,
                gating,
                operand,
                tile_rows: 32,
                tile_outputs: 64,
            }));
        }
    }
    for (experts, chosen, tile_rows) in [(1, 1, 16), (60, 4, 16), (512, 16, 32)] {
        specs.push(Spec::ExpertsGroup(ExpertsGroup { experts, chosen, tile_rows }));
    }
    for (width, adds) in [(100, false), (256, true)] {
        specs.push(Spec::ExpertsJoin(ExpertsJoin { chosen: 8, width, adds }));
    }
    specs
}
