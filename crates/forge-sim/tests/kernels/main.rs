//! Every kernel of the catalog in the kernel checker, at sizes that fill no tile: no faults as it is, and a
//! detected fault for each removed barrier, clamp and guard.

#[path = "../cases/mod.rs"]
mod cases;

mod attention;
mod matmul;
mod mla;
mod recurrent;

use crate::attention::{AttentionVariant, attention, partial_rope};
use crate::matmul::{formats, mutated_projections, project, shared};
use crate::mla::{expanded, latents};
use crate::recurrent::{chunks, recurrent_states};
use cases::experts::{experts, experts_by_tiles, group, grouped, shared_experts};
use cases::{Case, Launch, script};
use forge_kernels::Spec;
use forge_kernels::spec::{Knobs, Operand, Rows};
use forge_msl::for_language;
use forge_ops::{
    Activation, Append, Argmax, Elementwise, Embed, Epilogue, Format, Function, Gating, LayerNorm, NormAdd,
    Pairing, RmsNorm, Rope, Sample, SliceColumns, Squares, UnaryOp,
};
use forge_oracle::matmul::SWIGLU;
use forge_sim::mutants::MutantOutcome;
use forge_sim::{Program, Replay, Samples, Weights, mutants};

/// Versions of the language.
const METAL_3: u32 = 300;
const METAL_4: u32 = 400;

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
        once(Spec::Rope(Rope { heads: 3, width: 14, rope: partial_rope(14, pairing) })),
        once(Spec::Append(Append { key_heads: 3, width: 20, cache: Format::F16, ring: None })),
        once(Spec::Append(Append { key_heads: 3, width: 64, cache: Format::Q8_0, ring: None })),
        once(Spec::Elementwise(Elementwise { function: Function::Unary(UnaryOp::Softcap(0.5)), width: 300 })),
        once(Spec::Elementwise(Elementwise { function: Function::Multiply, width: 30 })),
        once(Spec::Elementwise(Elementwise { function: Function::ScaleBy, width: 300 })),
        once(Spec::SliceColumns(SliceColumns { width: 150, of: 155 })),
        once(Spec::Argmax(Argmax { vocabulary: 1500 })),
        Case { spec: Spec::Sample(Sample { vocabulary: 700 }), launches: vec![Launch::rows(4, 3)] },
    ]
}

/// Norms with a residual sum, in rows that fill no simdgroup and rows of several.
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

#[test]
fn kernels_run_without_faults() {
    let mut cases = others();
    for rows in [Rows::One, Rows::Few, Rows::Many] {
        for format in formats() {
            cases.push(project(rows, format, 50, 56, Epilogue::Add));
            cases.push(project(rows, format, 112, 30, SWIGLU));
            cases.push(project(rows, format, 7, 96, Epilogue::Store));
        }
    }
    for format in formats() {
        cases.extend(experts(format));
        let clamped = Gating::Clamped { limit: 0.5, sharpness: 1.702 };
        cases.extend(experts_by_tiles(format, &[Gating::Plain(Activation::Silu), clamped]));
        cases.push(shared(format, SWIGLU));
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
    let all = AttentionVariant {
        norm: true,
        window: Some(30),
        softcap: Some(5.0),
        sinks: true,
        ..AttentionVariant::default()
    };
    let capped = AttentionVariant { window: Some(60), softcap: Some(5.0), ..AttentionVariant::default() };
    let plain = AttentionVariant::default();
    let ring = AttentionVariant { ring: Some(51), ..all };
    for (width, query_heads, key_heads, cache, extras) in [
        (64, 4, 2, Format::F16, plain),
        (64, 10, 2, Format::F32, all),
        (64, 5, 1, Format::F16, capped),
        (128, 8, 2, Format::F16, ring),
        (20, 9, 3, Format::F32, capped),
        (6, 6, 1, Format::F16, AttentionVariant { sinks: true, ..plain }),
        (80, 3, 1, Format::F16, all),
        (250, 2, 1, Format::F16, AttentionVariant { norm: true, ..plain }),
        (256, 9, 1, Format::F16, capped),
        (2, 32, 1, Format::F32, plain),
        (64, 4, 2, Format::F16, ring),
        (20, 3, 3, Format::F32, AttentionVariant { norm: false, ..ring }),
        (64, 4, 2, Format::Q8_0, plain),
        (128, 6, 1, Format::Q8_0, ring),
        (64, 4, 2, Format::F16, AttentionVariant { values: true, ..ring }),
        (20, 6, 3, Format::F32, AttentionVariant { values: true, keys_alone: true, ..all }),
        (64, 2, 1, Format::Q8_0, AttentionVariant { norm: true, values: true, keys_alone: true, ..plain }),
    ] {
        cases.extend(attention(width, query_heads, key_heads, cache, extras));
    }
    cases.extend(grouped());
    cases.push(group(50, 1, 20));
    cases.extend(recurrent_states());
    cases.extend(sums());
    for format in formats() {
        cases.extend(latents(format, [5, 21, 6], Format::F32));
    }
    cases.extend(latents(Format::F16, [19, 132, 64], Format::F16));
    cases.extend(latents(Format::F16, [1, 120, 8], Format::F16));
    cases.push(project(Rows::One, Format::Q8_0, 7, 96, Epilogue::Multiply { of: 12 }));
    cases.extend(attention(
        20,
        4,
        2,
        Format::F16,
        AttentionVariant { gated: true, ..AttentionVariant::default() },
    ));
    cases.extend(attention(
        20,
        4,
        2,
        Format::F32,
        AttentionVariant { still: true, ..AttentionVariant::default() },
    ));
    for format in formats() {
        cases.extend(shared_experts(format));
    }
    cases.extend(chunks());
    cases.extend(expanded());
    run_without_faults(&cases, METAL_3);
}

/// Kernels that multiply tensors in Metal 4.
fn tensor_kernels(formats: &[Format]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &format in formats {
        // A tile whose results are stored in two parts, and x in f32.
        for (operand, tile_rows) in [(Operand::F16, 64), (Operand::F16Weights, 32)] {
            let mut case = project(Rows::Many, format, 70, 66, Epilogue::Add);
            if let Spec::Linear(linear) = &mut case.spec {
                linear.layout.operand = operand;
                linear.layout.knobs = Knobs { tile_rows, tile_outputs: 64, split: 1, ..linear.layout.knobs };
            }
            cases.push(case);
        }
        cases.extend(experts_by_tiles(format, &[]).into_iter().filter(|case| match &case.spec {
            Spec::ExpertsTiles(tiles) => tiles.layout.operand == Operand::F16,
            _ => false,
        }));
    }
    cases
}

/// Prefill attention that multiplies tensors in Metal 4, with every option.
fn tensor_attention() -> Vec<Case> {
    let plain = AttentionVariant::default();
    let all = AttentionVariant { window: Some(40), softcap: Some(5.0), sinks: true, ..plain };
    let gated = AttentionVariant { gated: true, ..plain };
    let variants = [(64, 6, 2, plain), (16, 5, 1, all), (128, 4, 1, gated)];
    let mut cases: Vec<Case> = variants
        .into_iter()
        .flat_map(|(width, query_heads, key_heads, extras)| {
            attention(width, query_heads, key_heads, Format::F16, extras)
        })
        .collect();
    cases.retain(|case| case.spec.tensor_operand().is_some());
    assert_eq!(cases.len(), variants.len());
    cases
}

#[test]
#[cfg_attr(feature = "gpu", ignore = "NVIDIA GPUs have no tensors of Metal 4")]
fn tensor_kernels_run_without_faults() {
    run_without_faults(&[tensor_kernels(&formats()), tensor_attention()].concat(), METAL_4);
}

/// Dispatches every case as a version of the language sees its kernel.
fn run_without_faults(cases: &[Case], version: u32) {
    let script = script(cases);
    let text = for_language(&script.text, version);
    let program = Program::compile(&text).unwrap_or_else(|error| panic!("{error}"));
    let weights = Weights::Bytes(&script.weights);
    let mut replay =
        Replay::new(&program, &script.recording, weights).unwrap_or_else(|error| panic!("{error}"));
    let report = replay.run(&mut |_, _| ());
    let faults: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(report.steps, script.recording.passes.len());
}

#[test]
fn detects_kernel_mutants() {
    let mut cases = others();
    cases.push(project(Rows::One, Format::Q8_0, 50, 56, Epilogue::Add));
    cases.push(shared(Format::Q4_0, SWIGLU));
    cases.push(project(Rows::Many, Format::Q4_0, 50, 56, Epilogue::Add));
    cases.extend(mutated_projections());
    // Groups of many heads, so that a threadgroup has few simdgroups for positions and each of them has
    // several blocks.
    let all = AttentionVariant {
        norm: true,
        window: Some(70),
        softcap: Some(5.0),
        sinks: true,
        ..AttentionVariant::default()
    };
    // A ring that is not full yet: in a full one, the element past the last position is an earlier position
    // and valid. Its window is more than one round of loads.
    let ring = AttentionVariant { window: Some(70), ring: Some(200), ..AttentionVariant::default() };
    cases.extend(attention(20, 13, 1, Format::F16, all));
    cases.extend(attention(20, 9, 1, Format::F32, AttentionVariant::default()));
    cases.extend(attention(20, 13, 1, Format::F16, ring));
    // MMA, with two simdgroups that share positions.
    let with_mma = |case: &Case| matches!(&case.spec, Spec::AttendSplit(attend) if attend.layout.knobs.mma);
    cases.extend(attention(64, 13, 1, Format::F16, all).into_iter().filter(with_mma));
    cases.extend(attention(64, 13, 1, Format::F16, ring).into_iter().filter(with_mma));
    // Several positions at once, and lanes without channels.
    cases.extend(attention(
        96,
        3,
        1,
        Format::Q8_0,
        AttentionVariant { norm: true, ..AttentionVariant::default() },
    ));
    cases.extend(recurrent_states());
    cases.extend(sums());
    cases.push(project(Rows::One, Format::Mxfp4, 50, 56, Epilogue::Add));
    cases.push(project(Rows::Many, Format::Mxfp4, 50, 56, Epilogue::Add));
    cases.extend(experts(Format::Q8_0));
    cases.extend(latents(Format::Q8_0, [19, 21, 6], Format::F32));
    // Values with a norm, computed from the key heads; and queries only.
    let of_keys = AttentionVariant { values: true, keys_alone: true, ..all };
    let prepares = |case: &Case| match &case.spec {
        Spec::RopeAppend(_) => true,
        Spec::AttendSplit(attend) => attend.op.prologue.is_some(),
        _ => false,
    };
    cases.extend(attention(20, 13, 1, Format::F16, of_keys).into_iter().filter(prepares));
    // Results multiplied by the last columns of a row: `first` is 5.
    let multiplied = Epilogue::Multiply { of: 12 };
    cases.push(project(Rows::One, Format::F16, 7, 50, multiplied));
    cases.extend(experts_by_tiles(Format::Q8_0, &[Gating::Plain(Activation::Silu)]));
    cases.extend(grouped());
    // Heads without RoPE.
    let still = AttentionVariant { still: true, ..AttentionVariant::default() };
    cases.extend(attention(20, 13, 1, Format::F16, still).into_iter().filter(prepares));
    // Gates in the combine kernel and in the fused prologue.
    let gated = AttentionVariant { gated: true, norm: true, ..AttentionVariant::default() };
    let joins = |case: &Case| prepares(case) || matches!(case.spec, Spec::AttendCombine(_));
    cases.extend(attention(20, 13, 1, Format::F16, gated).into_iter().filter(joins));
    cases.extend(shared_experts(Format::Q8_0));
    cases.extend(chunks());
    cases.extend(expanded());
    detect_mutants(&cases, METAL_3);
}

#[test]
#[cfg_attr(feature = "gpu", ignore = "NVIDIA GPUs have no tensors of Metal 4")]
fn detects_tensor_kernel_mutants() {
    let kernels = tensor_kernels(&[Format::Q4_0, Format::Bf16]);
    detect_mutants(&[kernels, tensor_attention()].concat(), METAL_4);
}

/// Injects every fault into the kernels of the cases, as a version of the language sees them. Each must be found.
fn detect_mutants(cases: &[Case], version: u32) {
    let script = script(cases);
    let text = for_language(&script.text, version);
    let program = Program::compile(&text).unwrap_or_else(|error| panic!("{error}"));
    let weights = Weights::Bytes(&script.weights);
    let mut replay =
        Replay::new(&program, &script.recording, weights).unwrap_or_else(|error| panic!("{error}"));
    replay.sampling(Samples::new(4, 1 << 24));
    replay.run(&mut |_, _| ());
    let samples = replay.into_samples();
    let planted = mutants::mutants(&text).unwrap_or_else(|error| panic!("{error}"));
    let fates = mutants::run(&text, &planted, &samples, 20_000_000, &|_, _| ())
        .unwrap_or_else(|error| panic!("{error}"));
    let mut missed = Vec::new();
    let mut counts = [0, 0];
    for (mutant, fate) in planted.iter().zip(&fates) {
        match fate {
            MutantOutcome::Caught(_) => counts[0] += 1,
            // These conditions are arithmetic, such as masks of scores, not bounds: the results differ, but
            // no access is out of bounds.
            MutantOutcome::Different => counts[1] += 1,
            fate => {
                let line = text.lines().nth(mutant.line - 1).unwrap_or_default().trim();
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
