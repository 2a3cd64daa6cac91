//! Bytes, operations and predicted times of decoders of real sizes, compared with known values.

mod support;

use forge_kernels::Spec;
use forge_ops::Format;
use forge_planner::{
    Chip, Cost, Forecast, Limit, Options, Plan, StepTime, Time, Workload, chip_table, pass_cost, predict,
    predict_prompt, step_cost,
};
use support::{EIGHT, ONE, options_for, planned, planned_for, planned_with};

fn chip(name: &str) -> &'static Chip {
    Chip::from_name(name).expect("it is listed")
}

/// Bytes of keys and values up to and with a position.
fn cache(plan: &Plan, length: u64) -> u64 {
    length * plan.cache_bytes_per_position() as u64
}

#[test]
fn a_token_of_eight_billion_parameters_in_four_bits_reads_four_and_a_half_gigabytes() {
    let plan = planned(&EIGHT, Format::Q4_0);
    // 7.5e9 weights of layers and head at 18 bytes for 32 of them, the row that is looked up, and gains if they are not
    // in the weights.
    let weights = 32_u64 * (4096 * (4096 + 1024) * 2 + 3 * 4096 * 14336) + 128_256 * 4096;
    let gains = (2 * 32 + 1) * 4096 * 4;
    let cost = pass_cost(&plan, Workload::decode(1));
    let matrices = weights / 32 * 18 + 4096 / 32 * 18;
    assert!((matrices..=matrices + gains).contains(&cost.weights_read), "{}", cost.weights_read);
    let token = pass_cost(&plan, Workload::decode(1024));
    assert!((4.2e9..4.7e9).contains(&(token.bytes() as f64)), "{}", token.bytes());
    // The keys and values of the token itself are written, but not read back.
    assert_eq!(token.cache_read + token.cache_written, cache(&plan, 1024));
}

#[test]
fn predictions_have_known_magnitudes() {
    let plan = planned(&EIGHT, Format::Q4_0);
    let token = |chip_name| predict(&plan, chip(chip_name), Workload::decode(1024)).time;
    let ms = |name| token(name).seconds() * 1e3;
    // Memory alone: 4.4 GB at 0.75 of 546 GB/s. The rest is launches and tails.
    assert!((10.0..11.5).contains(&(token("m4-max").memory * 1e3)), "{:?}", token("m4-max"));
    assert!((11.0..13.0).contains(&ms("m4-max")), "{}", ms("m4-max"));
    assert!((45.0..60.0).contains(&ms("m4")), "{}", ms("m4"));
    assert!((85.0..105.0).contains(&ms("m1")), "{}", ms("m1"));
    assert_eq!(token("m4-max").limit(), Limit::Bandwidth);
    // A prompt of 512 tokens is 8 TFLOP, which no chip does at more than its matrix rate.
    let prompt = predict_prompt(&plan, chip("m4-max"), 512);
    assert_eq!(prompt.time.limit(), Limit::Arithmetic);
    let rate = prompt.cost.operations as f64 / prompt.time.seconds();
    assert!((0.5..0.8).contains(&(rate / chip("m4-max").matrix_rate())), "{rate:e}");
    assert!((7.0e12..8.5e12).contains(&(prompt.cost.operations as f64)), "{}", prompt.cost.operations);
}

#[test]
fn decode_reads_little_more_than_weights_and_cache() {
    for format in [Format::Q8_0, Format::Q4_0] {
        let plan = planned(&ONE, format);
        for length in [1, 1024, 8192] {
            let token = pass_cost(&plan, Workload::decode(length));
            let least = token.weights_read + cache(&plan, length);
            let over = token.read() as f64 / least as f64 - 1.0;
            assert!((0.0..0.03).contains(&over), "{format} at {length}: {:.2}% more", 100.0 * over);
            // The whole weight file except the unused rows of the embedding.
            let table = plan.weights.iter().find(|weight| weight.name == "embed").expect("it has a table");
            let rows = table.shape[0] as u64;
            let unread = (rows - 1) * table.format.matrix_bytes(1, table.shape[1]);
            assert_eq!(token.weights_read, plan.weight_bytes() - unread, "{format}");
        }
    }
}

#[test]
fn longer_contexts_cost_more() {
    let plan = planned(&ONE, Format::Q4_0);
    for chip in &Chip::ALL {
        let mut before = (0, 0, 0.0);
        for length in [1, 63, 64, 65, 1000, 1024, 4096, 8192] {
            let token = predict(&plan, chip, Workload::decode(length));
            let after =
                (token.cost.bytes(), token.cost.operations, token.time.memory + token.time.arithmetic);
            assert!(
                before.0 < after.0 && before.1 < after.1 && before.2 < after.2,
                "{} at {length}: {before:?} {after:?}",
                chip.name
            );
            before = after;
        }
    }
}

#[test]
fn faster_chips_are_not_predicted_slower() {
    let plan = planned(&ONE, Format::Q4_0);
    let slow = *chip("m4");
    let faster = [
        Chip { bandwidth: slow.bandwidth * 2.0, ..slow },
        Chip { dispatch: slow.dispatch / 2.0, ..slow },
        Chip { clock: slow.clock * 2.0, ..slow },
        Chip { efficiency: 0.9, ..slow },
    ];
    let time = |chip: &Chip| {
        let token = predict(&plan, chip, Workload::decode(1024)).time.seconds();
        (token, predict_prompt(&plan, chip, 1000).time.seconds())
    };
    let (token, prompt) = time(&slow);
    for chip in faster {
        let (faster_token, faster_prompt) = time(&chip);
        assert!(faster_token <= token && faster_prompt <= prompt, "{chip:?}");
        assert!(faster_token < token || faster_prompt < prompt, "{chip:?}");
    }
}

#[test]
fn wider_formats_are_slower() {
    let formats = [Format::Q4_0, Format::Q8_0, Format::F16, Format::F32];
    let times = formats.map(|format| {
        let plan = planned(&ONE, format);
        predict(&plan, chip("m2-pro"), Workload::decode(1024)).time.seconds()
    });
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn totals_are_the_sums_of_their_steps() {
    let plan = planned(&ONE, Format::Q8_0);
    let loads = [
        Workload::decode(1),
        Workload::decode(1024),
        Workload::decode_batch(8, 1024),
        Workload { rows: 5, sequences: 1, wanted: 3, length: 70, splits: 1, drawn: false },
    ];
    for load in
        loads.into_iter().chain([Workload::prefill(256), Workload { wanted: 0, ..Workload::prefill(100) }])
    {
        let whole = predict(&plan, chip("m1-max"), load);
        let (mut cost, mut time) = (Cost::default(), Time { launches: Chip::SUBMISSION, ..Time::default() });
        for (section, step) in plan.steps_of(whole.load) {
            cost += step_cost(&plan, section, step, whole.load);
            let known =
                whole.steps.iter().find(|known| (&known.section, &known.step) == (&section.name, &step.name));
            time += known.expect("a step that runs is predicted").time;
        }
        assert_eq!(cost, whole.cost);
        assert_eq!(cost, pass_cost(&plan, whole.load));
        assert!((time.seconds() / whole.time.seconds() - 1.0).abs() < 1e-9);
        let counts = plan.counts(whole.load);
        assert_eq!((counts.dispatches as u64, counts.barriers as u64), (whole.dispatches, whole.barriers));
        let Time { memory, arithmetic, on_core, tail, launches } = whole.time;
        let all = [memory, arithmetic, on_core, tail, launches];
        assert!(all.into_iter().all(|part| part.is_finite() && part >= 0.0), "{:?}", whole.time);
    }
}

#[test]
fn prefill_is_the_sum_of_its_passes_with_one_head() {
    let plan = planned(&ONE, Format::Q4_0);
    let prompt = predict_prompt(&plan, chip("m4-max"), 600);
    let pass = |rows, wanted, length| {
        let load = Workload { rows, sequences: 1, wanted, length, splits: 1, drawn: false };
        let pass = predict(&plan, chip("m4-max"), load);
        (pass.dispatches, pass.cost.operations)
    };
    let passes = [pass(256, 0, 256), pass(256, 0, 512), pass(88, 1, 600)];
    assert_eq!(prompt.dispatches, passes.iter().map(|pass| pass.0).sum::<u64>());
    assert_eq!(prompt.cost.operations, passes.iter().map(|pass| pass.1).sum::<u64>());
    // Causal attention: 600 positions see 600 · 601 / 2 of each other, a head's 64 channels twice, 32 heads, 16 layers.
    let seen = 600 * 601 / 2 * 4 * 64 * 32 * 16;
    let matrices = 2 * 600 * 16 * (2048 * (2048 + 512) * 2 + 3 * 2048 * 8192) + 2 * 32_000 * 2048;
    let rest = prompt.cost.operations - seen - matrices;
    assert!(rest < prompt.cost.operations / 200, "norms and RoPE: {rest}");
}

/// Weights are read once for all sequences, and each sequence has its own cache.
#[test]
fn sequences_share_weights() {
    let plan = planned(&ONE, Format::Q4_0);
    let pass = |sequences| predict(&plan, chip("h200"), Workload::decode_batch(sequences, 1024));
    let one = pass(1);
    for sequences in [2, 4, 8, 16, 64] {
        let several = pass(sequences);
        // The embeddings of other tokens.
        let embeddings = (sequences - 1) * 2048 / 32 * 18;
        assert_eq!(several.cost.weights_read, one.cost.weights_read + embeddings, "{sequences}");
        assert_eq!(several.cost.cache_read, sequences * one.cost.cache_read, "{sequences}");
        assert!(several.time.seconds() < sequences as f64 * one.time.seconds(), "{sequences}");
    }
}

#[test]
fn predictions_cover_the_context() {
    let plan = planned(&ONE, Format::Q4_0);
    let forecast = Forecast::of(&plan, chip("m5-max-32"));
    let lengths: Vec<u64> = forecast.decode.iter().map(|token| token.load.length).collect();
    assert_eq!(lengths, [1, 1024, 4096], "the context is 8192");
    let text = forecast.to_string();
    assert!(text.contains("predicted") && text.contains("m5-max-32") && text.contains("layer.qkv"), "{text}");
    let json = forecast.to_json();
    assert!(json["note"].as_str().is_some_and(|note| note.contains("predicted")));
    assert_eq!(json["decode"][1]["load"]["length"], 1024);
    assert_eq!(json["decode_batches"][0]["load"]["sequences"], 2);
    assert!(text.contains("8 tokens at 1024"), "{text}");
    assert!(json["prefill"][0]["tokens_per_second"].as_f64().is_some_and(|speed| speed > 100.0));
    let table = chip_table(&plan);
    assert!(Chip::ALL.iter().all(|chip| table.lines().any(|line| line.starts_with(chip.name))), "{table}");
    assert!(!text.contains("NaN") && !table.contains("NaN"));
}

/// The share of attention in the prefill of a long prompt, and what limits each step for many rows.
#[test]
fn attention_is_less_than_a_third_of_a_long_prompt_on_apple_gpus() {
    for name in ["m1", "m2-pro", "m4-max", "m5-max"] {
        let (chip, tokens) = (chip(name), 16384);
        let plan = planned_for(chip, &EIGHT, Format::Q4_0);
        let mut attention = 0.0;
        for length in (0..=tokens).step_by(plan.chunk).skip(1) {
            let load = Workload { wanted: 0, length, ..Workload::prefill(plan.chunk as u64) };
            let pass = predict(&plan, chip, load);
            let attend = pass.steps.iter().find(|step| step.step == "attend").expect("it has attention");
            assert_eq!(attend.time.limit(), Limit::Arithmetic, "{name} at {length}");
            attention += attend.times as f64 * attend.time.seconds();
        }
        let share = attention / predict_prompt(&plan, chip, tokens).time.seconds();
        assert!((0.2..1.0 / 3.0).contains(&share), "{name}: {share}");
    }
}

/// The report plots steps below this rate.
#[test]
fn no_step_exceeds_the_peak_rate_of_its_chip() {
    for name in ["m1", "m4-max", "m5-max"] {
        let chip = chip(name);
        let plan = planned_for(chip, &EIGHT, Format::Q4_0);
        for step in predict(&plan, chip, Workload::prefill(plan.chunk as u64)).steps {
            let rate = step.cost.operations as f64 / step.time.seconds();
            assert!(rate < chip.peak_rate(), "{name} {}: {rate:e}", step.step);
        }
    }
    // Products of tensors are faster than arithmetic in f32.
    assert!(chip("m5-max").peak_rate() > chip("m5-max").f32_rate());
}

/// Limits of the steps of a pass with matrix products for many rows.
fn prefill_limits(plan: &Plan, name: &str) -> Vec<Limit> {
    let pass = predict(plan, chip(name), Workload::prefill(plan.chunk as u64));
    let of_products = |step: &&StepTime| step.cost.on_core > 0;
    pass.steps.iter().filter(of_products).map(|step| step.time.limit()).collect()
}

/// Tiles are small enough, except those of f32, for exact results: they are moved in more time than they are multiplied
/// in.
#[test]
fn loads_on_a_core_limit_only_f32_tiles() {
    let chip = chip("m1");
    for format in [Format::Q4_0, Format::Bf16] {
        assert_eq!(
            prefill_limits(&planned_for(chip, &EIGHT, format), "m1"),
            [Limit::Arithmetic; 5],
            "{format}"
        );
    }
    let exact = Options { cache: Some(Format::F32), ..options_for(chip, Format::Q4_0) };
    let exact = prefill_limits(&planned_with(&EIGHT, &exact), "m1");
    assert!(exact.contains(&Limit::OnCore), "{exact:?}");
}

/// The rate of an NVIDIA GPU is not known.
#[test]
fn loads_on_a_core_do_not_limit_nvidia_gpus() {
    let pass =
        predict(&planned_for(chip("h200"), &EIGHT, Format::Q4_0), chip("h200"), Workload::prefill(512));
    assert!(pass.cost.on_core > 0 && pass.time.on_core == 0.0);
}

#[test]
fn large_matrices_of_floats_use_mma_in_decode_passes_on_nvidia_gpus() {
    let plan = planned_for(chip("h200"), &EIGHT, Format::Bf16);
    let decoded = plan.kernels.iter().filter_map(|kernel| match &kernel.spec {
        Spec::Linear(linear) if linear.layout.rows.is_decode() => Some(linear),
        _ => None,
    });
    for linear in decoded {
        let is_large = linear.op.outputs * linear.op.inputs > 20_000_000;
        assert_eq!(linear.layout.knobs.mma, is_large, "{linear:?}");
    }
    let on_a_mac = planned_for(chip("m4-max"), &EIGHT, Format::Bf16);
    let uses_mma = |spec: &Spec| matches!(spec, Spec::Linear(linear) if linear.layout.knobs.mma);
    assert!(!on_a_mac.kernels.iter().any(|kernel| uses_mma(&kernel.spec)));
}

#[test]
fn more_rows_are_decoded_the_smaller_the_weights() {
    let most = |chip_name, format| planned_for(chip(chip_name), &EIGHT, format).max_decoded_rows();
    assert_eq!(most("h200", Format::Q4_0), 256);
    assert_eq!(most("h200", Format::F16), 128);
    assert_eq!(most("m4-max", Format::F16), 64);
}
