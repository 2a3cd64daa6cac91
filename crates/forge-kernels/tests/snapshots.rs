//! Snapshots of rendered kernels: one per template, at sizes of a small real model and at odd sizes.
//!
//! Longer than 400 lines because it is one list of specs.

mod common;

use forge_ir::Record;
use forge_kernels::spec::{
    ChunkLayout, CombineLayout, ExpertsLayout, ExpertsTileLayout, Kernel, Knobs, LinearKernel, LinearLayout,
    MlaExpandedLayout, Operand, PerHeadLayout, Rows,
};
use forge_kernels::{Spec, assemble, render};
use forge_ops::{
    Activation, Append, Argmax, ArgmaxCombine, Attend, AttendCombine, CausalConv, DeferredNorm, DeltaChunks,
    DeltaRule, DeltaStep, Elementwise, Embed, Epilogue, ExpertsCombine, ExpertsGroup, ExpertsInner,
    ExpertsSum, ExpertsTiles, Format, Function, GatedRmsNorm, Gates, Gating, Groups, HeadNorm, InlineNorm,
    KvSource, LayerNorm, Linear, MlaAppend, MlaAttention, MlaAttentionExpanded, MlaColumns, MlaLoadLatents,
    MlaPrepare, NormAdd, Pairing, PerHeadLinear, RmsNorm, Rope, RopeAppend, RopeParameters, Route, Sample,
    Scores, SliceColumns, Squares, UnaryOp,
};

fn snapshot(name: &str, spec: Spec) {
    let instance = render(name, &spec).unwrap_or_else(|error| panic!("{error}"));
    insta::with_settings!({ omit_expression => true, description => format!("{spec:?}"), prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!(name, format!("{}\n{}", instance.decl, instance.text));
    });
}

#[test]
fn embed() {
    snapshot(
        "embed",
        Spec::Embed(Embed {
            format: Format::Q8_0,
            vocabulary: 512,
            width: 56,
            scale: 1.0,
            adds: false,
            squares: None,
        }),
    );
    let (squares, format) = (Some(Squares { partials: 128, gain: true }), Format::from_name("affine4"));
    let format = format.unwrap_or(Format::Q4_0);
    snapshot(
        "embed_one",
        Spec::Embed(Embed { format, vocabulary: 512, width: 1024, scale: 1.0, adds: false, squares }),
    );
}

#[test]
fn norms() {
    snapshot(
        "norm",
        Spec::RmsNorm(RmsNorm {
            width: 1024,
            parts: 1,
            epsilon: 1e-6,
            gain: true,
            gather: false,
            pitch: None,
        }),
    );
    snapshot(
        "layer_norm",
        Spec::LayerNorm(LayerNorm { width: 768, epsilon: 1e-5, bias: true, gather: false }),
    );
    snapshot(
        "norm_heads",
        Spec::RmsNorm(RmsNorm {
            width: 128,
            parts: 16,
            epsilon: 1e-6,
            gain: true,
            gather: false,
            pitch: None,
        }),
    );
    snapshot(
        "norm_add",
        Spec::NormAdd(NormAdd { width: 30, epsilon: 1e-6, gain: true, factor: false, squares: None }),
    );
    let squares = Some(Squares { partials: 128, gain: true });
    snapshot(
        "norm_add_one",
        Spec::NormAdd(NormAdd { width: 1536, epsilon: 1e-6, gain: true, factor: true, squares }),
    );
    snapshot(
        "norm_wanted",
        Spec::RmsNorm(RmsNorm { width: 30, parts: 1, epsilon: 1e-5, gain: true, gather: true, pitch: None }),
    );
}

/// A projection in another format.
fn linear(rows: Rows, format: &str, outputs: usize, inputs: usize, epilogue: Epilogue) -> LinearKernel {
    let format = Format::from_name(format).unwrap_or_else(|| panic!("{format}"));
    common::linear(rows, format, outputs, inputs, epilogue)
}

#[test]
fn projections_of_one_row() {
    let norm = Some(DeferredNorm { partials: 128, epsilon: 1e-6 });
    let gate = Epilogue::Gate(Gating::Plain(Activation::Silu));
    let qkv = linear(Rows::One, "q8_0", 4096, 1024, Epilogue::Store).with_op(|op| Linear {
        norm,
        bias: true,
        ..op
    });
    snapshot("qkv_one", Spec::Linear(qkv));
    snapshot(
        "gate_up_one",
        Spec::Linear(linear(Rows::One, "affine4", 6144, 1024, gate).with_op(|op| Linear { norm, ..op })),
    );
    let squares = Epilogue::AddSquares(Squares { partials: 128, gain: true });
    let output = linear(Rows::One, "q4_0", 1024, 4096, squares);
    let knobs = Knobs { rows_per_simdgroup: 4, simdgroups: 8, split: 2, packets: 2, ..output.layout.knobs };
    snapshot("output_one", Spec::Linear(output.with_knobs(knobs)));
    snapshot("down_one", Spec::Linear(linear(Rows::One, "q6_k", 1024, 4096, Epilogue::Add)));
    let by_codes = linear(Rows::One, "q4_0", 1000, 1040, Epilogue::Store);
    let codes = Knobs {
        rows_per_simdgroup: 16,
        simdgroups: 4,
        split: 2,
        packets: 2,
        mma: true,
        ..by_codes.layout.knobs
    };
    snapshot("by_codes_one", Spec::Linear(by_codes.with_op(|op| Linear { norm, ..op }).with_knobs(codes)));
    let batch = |rows| {
        move |layout: LinearLayout| {
            let knobs = layout.knobs.for_decode_batch(rows, Format::Q4_0);
            LinearLayout { rows, knobs, ..layout }
        }
    };
    let by_codes_batch =
        by_codes.with_op(|op| Linear { norm, ..op }).with_knobs(codes).with_layout(batch(Rows::Four));
    snapshot("by_codes_four", Spec::Linear(by_codes_batch));
    snapshot("output_two", Spec::Linear(output.with_knobs(knobs).with_layout(batch(Rows::Two))));
    let with_offsets = linear(Rows::One, "affine8", 1024, 4096, Epilogue::Store);
    let by_floats =
        linear(Rows::One, "bf16", 1000, 1040, Epilogue::Store).with_op(|op| Linear { norm, ..op });
    snapshot("by_float_mma_one", Spec::Linear(by_floats.with_knobs(codes)));
    snapshot("by_float_mma_batch", Spec::Linear(by_floats.with_knobs(codes).with_layout(batch(Rows::Eight))));
    snapshot("by_codes_with_offsets_one", Spec::Linear(with_offsets.with_knobs(codes)));
    let input_gate = linear(Rows::One, "bf16", 50, 300, Epilogue::Multiply { of: 150 });
    snapshot(
        "input_gate_one",
        Spec::Linear(input_gate.with_op(|op| Linear {
            unary: Some(UnaryOp::Activate(Activation::GeluTanh)),
            bias: true,
            ..op
        })),
    );
    let head = linear(Rows::One, "f16", 50_257, 1030, Epilogue::Best { candidates: 1 << 16 });
    let norm = Some(DeferredNorm { partials: 150, epsilon: 1e-6 });
    snapshot(
        "head_one",
        Spec::Linear(head.with_op(|op| Linear { norm, unary: Some(UnaryOp::Softcap(30.0)), ..op })),
    );
}

#[test]
fn projections_of_more_rows() {
    let gate = Epilogue::Gate(Gating::Plain(Activation::Silu));
    snapshot("down_few", Spec::Linear(linear(Rows::Few, "f16", 64, 56, Epilogue::Add)));
    let odd = linear(Rows::Few, "affine4", 50, 200, gate);
    snapshot("gate_up_few", Spec::Linear(odd.with_op(|op| Linear { bias: true, ..op })));
    snapshot("qkv_few", Spec::Linear(linear(Rows::Few, "q4_k", 4096, 1024, Epilogue::Store)));
    let with_f16_operand = |plain: LinearKernel| {
        Spec::Linear(plain.with_layout(|layout| LinearLayout { operand: Operand::F16, ..layout }))
    };
    snapshot("qkv_many", with_f16_operand(linear(Rows::Many, "q4_0", 4096, 1024, Epilogue::Store)));
    snapshot("gate_up_many", with_f16_operand(linear(Rows::Many, "affine8", 6144, 1024, gate)));
    snapshot("down_many", with_f16_operand(linear(Rows::Many, "q6_k", 1024, 3072, Epilogue::Add)));
    let with_f16_weights = |plain: LinearKernel| {
        Spec::Linear(plain.with_layout(|layout| LinearLayout { operand: Operand::F16Weights, ..layout }))
    };
    let down = |format| linear(Rows::Many, format, 1024, 3072, Epilogue::Add);
    snapshot("down_many_f16_weights", with_f16_weights(down("q4_0")));
    snapshot("down_many_bf16_weights", with_f16_weights(down("bf16")));
    let odd = linear(Rows::Many, "bf16", 50, 300, Epilogue::Add);
    snapshot(
        "output_many",
        with_f16_operand(odd.with_op(|op| Linear { bias: true, unary: Some(UnaryOp::Scale(0.22)), ..op })),
    );
}

#[test]
fn attention() {
    let cache = Format::F16;
    let whole = common::rope_append(16, 8, 128, cache, 64, Pairing::Half);
    let interleaved = common::rope_append(16, 8, 128, cache, 64, Pairing::Interleaved);
    let part = common::rope_append(4, 2, 20, Format::F32, 4, Pairing::Half);
    let norm = Some(HeadNorm { epsilon: 1e-6, after_rope: false, values: false });
    snapshot("rope_append", Spec::RopeAppend(interleaved));
    snapshot("rope_append_part", Spec::RopeAppend(part.clone()));
    snapshot("rope_append_norm", Spec::RopeAppend(RopeAppend { norm, ..part.clone() }));
    snapshot("rope_heads", Spec::Rope(Rope { heads: 4, width: 20, rope: part.rope.clone() }));
    snapshot("append", Spec::Append(Append { key_heads: 8, width: 128, cache, ring: None }));
    let split = common::attend(16, 8, 128, cache);
    let prologue = Some(common::prologue(&RopeAppend { norm, ..whole }));
    snapshot("attend_split", Spec::AttendSplit(split.clone().with_op(|op| Attend { prologue, ..op })));
    let gates = Some(Gates { pitch: 48, first: 32 });
    snapshot(
        "attend_combine_gated",
        Spec::AttendCombine(Kernel {
            op: AttendCombine { query_heads: 4, width: 4, gates },
            layout: CombineLayout::default(),
        }),
    );
    let rope = RopeParameters::none();
    let still = RopeAppend { rope, ..part.clone() };
    snapshot("rope_append_still", Spec::RopeAppend(still));
    let norm = Some(HeadNorm { epsilon: 1e-6, after_rope: false, values: true });
    let keys = RopeAppend { norm, kv_source: KvSource::Keys, ..part };
    let of_keys = |kv_source| {
        let prologue = Some(common::prologue(&RopeAppend { kv_source, ..keys.clone() }));
        Spec::AttendSplit(common::attend(4, 2, 20, Format::F32).with_op(|op| Attend { prologue, ..op }))
    };
    snapshot("attend_split_keys", of_keys(KvSource::Keys));
    snapshot("attend_split_queries", of_keys(KvSource::Nothing));
    snapshot("rope_append_keys", Spec::RopeAppend(keys));
    snapshot("attend_split_few", Spec::AttendSplit(split));
    snapshot("attend_split_mma", common::few_on_a_card(common::attend(32, 8, 128, cache)));
    let odd = common::attend(10, 2, 6, Format::F32).with_op(|op| Attend {
        window: Some(40),
        softcap: Some(50.0),
        sinks: true,
        ..op
    });
    snapshot("attend_split_odd", Spec::AttendSplit(odd));
    snapshot(
        "attend_combine",
        Spec::AttendCombine(Kernel {
            op: AttendCombine { query_heads: 16, width: 80, gates: None },
            layout: CombineLayout::default(),
        }),
    );
    snapshot("attend_tiled", Spec::AttendTiled(common::attend(16, 8, 128, cache)));
    let odd = common::attend(9, 1, 6, Format::F32).with_op(|op| Attend {
        window: Some(40),
        softcap: Some(50.0),
        sinks: true,
        ..op
    });
    snapshot("attend_tiled_odd", Spec::AttendTiled(odd));
    snapshot("attend_grouped", common::on_a_card(common::attend(16, 8, 128, cache)));
    let odd = common::attend(9, 3, 20, Format::F32);
    snapshot(
        "attend_grouped_odd",
        common::on_a_card(odd.with_op(|op| Attend {
            window: Some(40),
            softcap: Some(50.0),
            sinks: true,
            ..op
        })),
    );
    snapshot("attend_direct", common::on_a_mac(common::attend(16, 8, 128, cache)));
    let odd = common::attend(9, 3, 20, Format::F32);
    snapshot(
        "attend_direct_odd",
        common::on_a_mac(odd.with_op(|op| Attend {
            window: Some(40),
            ring: Some(320),
            softcap: Some(50.0),
            sinks: true,
            ..op
        })),
    );
    snapshot("attend_direct_wide", common::on_a_mac(common::attend(9, 1, 256, Format::Q8_0)));
}

#[test]
fn rings() {
    let (cache, window, ring) = (Format::F16, Some(40), Some(320));
    snapshot("append_ring", Spec::Append(Append { key_heads: 8, width: 128, cache, ring }));
    let rope_append = common::rope_append(4, 2, 32, cache, 16, Pairing::Half);
    snapshot("rope_append_ring", Spec::RopeAppend(RopeAppend { ring, ..rope_append.clone() }));
    let prologue = Some(common::prologue(&rope_append));
    let split = common::attend(4, 2, 32, cache).with_op(|op| Attend { prologue, window, ring, ..op });
    snapshot("attend_split_ring", Spec::AttendSplit(split));
    let tiled = common::attend(4, 2, 32, cache).with_op(|op| Attend { window, ring, ..op });
    snapshot("attend_tiled_ring", Spec::AttendTiled(tiled));
}

#[test]
fn codes() {
    let cache = Format::Q8_0;
    snapshot("append_q8_0", Spec::Append(Append { key_heads: 3, width: 32, cache, ring: None }));
    let rope_append = common::rope_append(4, 2, 128, cache, 64, Pairing::Half);
    snapshot("rope_append_q8_0", Spec::RopeAppend(rope_append.clone()));
    let prologue = Some(common::prologue(&rope_append));
    snapshot(
        "attend_split_q8_0",
        Spec::AttendSplit(common::attend(4, 2, 128, cache).with_op(|op| Attend { prologue, ..op })),
    );
    snapshot("attend_tiled_q8_0", Spec::AttendTiled(common::attend(4, 2, 96, cache)));
}

#[test]
fn elementwise() {
    let function = Function::Unary(UnaryOp::Softcap(30.0));
    snapshot("soft_cap", Spec::Elementwise(Elementwise { function, width: 50_257 }));
    snapshot("scale_by", Spec::Elementwise(Elementwise { function: Function::ScaleBy, width: 256 }));
    snapshot("slice_columns", Spec::SliceColumns(SliceColumns { width: 200, of: 7000 }));
}

#[test]
fn convolutions_and_delta_rules() {
    let activation = Some(Activation::Silu);
    snapshot("convolve", Spec::Convolve(CausalConv { width: 8192, taps: 4, pitch: 12_352, activation }));
    let (scale, epsilon) = (0.088_388_35, 1e-6);
    let gated = Some(1e-6);
    let rule = DeltaRule { key_heads: 16, heads: 32, keys: 128, values: 128, scale, epsilon, gated };
    snapshot("delta_rule", Spec::DeltaRule(rule));
    snapshot(
        "delta_chunks",
        Spec::DeltaChunks(Kernel { op: DeltaChunks { rule }, layout: ChunkLayout { rows: 8 } }),
    );
    let odd = DeltaRule { key_heads: 3, heads: 3, keys: 10, values: 20, scale, epsilon, gated: None };
    snapshot(
        "delta_chunks_odd",
        Spec::DeltaChunks(Kernel { op: DeltaChunks { rule: odd }, layout: ChunkLayout { rows: 16 } }),
    );
    let (pitch, first) = (rule.inputs(), rule.channels());
    snapshot(
        "gated_rms_norm",
        Spec::GatedRmsNorm(GatedRmsNorm { heads: 32, values: 128, pitch, first, epsilon }),
    );
    snapshot("delta_step", Spec::DeltaStep(DeltaStep { rule, taps: 4 }));
}

#[test]
fn argmax() {
    snapshot("argmax", Spec::Argmax(Argmax { vocabulary: 151_936 }));
    snapshot("sample", Spec::Sample(Sample { vocabulary: 151_936 }));
    snapshot("argmax_combine", Spec::ArgmaxCombine(ArgmaxCombine { candidates: 4748 }));
}

#[test]
fn a_file_contains_each_support_unit_once() {
    let specs = [Rows::One, Rows::Few].map(|rows| common::linear(rows, Format::F32, 8, 32, Epilogue::Store));
    let names = ["head_one", "head_few"];
    let instances: Result<Vec<_>, _> =
        names.iter().zip(specs).map(|(name, spec)| render(name, &Spec::Linear(spec))).collect();
    let file = assemble(&instances.unwrap_or_else(|error| panic!("{error}")), "Made for a test.\n\nTwice.");
    let outline: Vec<&str> = file
        .lines()
        .take_while(|line| !line.contains("y = W x"))
        .chain(file.lines().filter(|line| line.starts_with("kernel")))
        .collect();
    insta::assert_snapshot!(outline.join("\n"), @r"
    // Made for a test.
    //
    // Twice.

    #include <metal_stdlib>
    #include <metal_simdgroup_matrix>
    using namespace metal;

    // A packet of f32 weights: 16 bytes, 4 columns.
    inline void f32_decode(uint4 packet, thread float4* weights) {
        weights[0] = as_type<float4>(packet);
    }

    // Loads four columns of a row whose width is a multiple of a whole load.
    inline float4 load4_whole(device const float* row, uint column) {
        return *(device const float4*)(row + column);
    }

    // With programmatic dependent launch, waits for the preceding kernels, before their results are read or overwritten.
    // Metal does not start kernels early.
    #ifndef OWN_WAIT
    inline void wait_for_others() {}
    inline void wait_for_others_if(bool) {}
    #endif

    kernel void head_one(
    kernel void head_few(
    ");
}

/// At the sizes of Qwen3-30B-A3B, and with groups as DeepSeek V3 has them.
#[test]
fn experts() {
    let route = Route {
        experts: 128,
        chosen: 8,
        scores: Scores::Softmax,
        correction: false,
        groups: None,
        renormalize: true,
        factor: 1.0,
        scale: false,
        shared: 0,
        gated: false,
    };
    let record = Record::of(&[(Format::Q4_0, [1536, 2048]), (Format::Q8_0, [2048, 768])]).bytes;
    let inner = Kernel {
        op: ExpertsInner {
            format: Format::Q4_0,
            experts: 128,
            chosen: 8,
            shared: 0,
            outputs: 1536,
            inputs: 2048,
            record,
            norm: Some(DeferredNorm { partials: 128, epsilon: 1e-6 }),
            bias: false,
            gating: Gating::Plain(Activation::Silu),
            route: Some(route),
        },
        layout: ExpertsLayout { rows_per_simdgroup: 8, simdgroups: 2 },
    };
    snapshot("experts_inner_one", Spec::ExpertsInner(inner));
    snapshot(
        "experts_inner",
        Spec::ExpertsInner(inner.with_op(|op| ExpertsInner { norm: None, route: None, ..op })),
    );
    let clamped = inner.with_op(|op| ExpertsInner {
        format: Format::Mxfp4,
        bias: true,
        gating: Gating::Clamped { limit: 7.0, sharpness: 1.702 },
        ..op
    });
    snapshot("experts_inner_clamped", Spec::ExpertsInner(clamped));
    let epilogue = Epilogue::AddSquares(Squares { partials: 128, gain: false });
    let sum = Kernel {
        op: ExpertsSum {
            format: Format::Q8_0,
            experts: 128,
            chosen: 8,
            shared: 0,
            outputs: 2048,
            inputs: 768,
            record,
            bias: false,
            epilogue,
        },
        layout: ExpertsLayout { rows_per_simdgroup: 4, simdgroups: 4 },
    };
    snapshot("experts_sum_one", Spec::ExpertsSum(sum));
    snapshot(
        "experts_sum",
        Spec::ExpertsSum(sum.with_op(|op| ExpertsSum { epilogue: Epilogue::Store, ..op })),
    );
    snapshot("experts_sum_biased", Spec::ExpertsSum(sum.with_op(|op| ExpertsSum { bias: true, ..op })));
    let tiles = Kernel {
        op: ExpertsTiles {
            format: Format::Q4_0,
            experts: 128,
            chosen: 8,
            shared: 0,
            outputs: 1536,
            inputs: 2048,
            record,
            bias: false,
            gating: Some(Gating::Plain(Activation::Silu)),
            tile_rows: 32,
        },
        layout: ExpertsTileLayout { operand: Operand::F16, tile_outputs: 64 },
    };
    snapshot("experts_tiles_gated", Spec::ExpertsTiles(tiles));
    let down =
        tiles.with_op(|op| ExpertsTiles { outputs: 2000, inputs: 768, bias: true, gating: None, ..op });
    snapshot(
        "experts_tiles",
        Spec::ExpertsTiles(down.with_layout(|layout| ExpertsTileLayout { operand: Operand::F32, ..layout })),
    );
    snapshot("experts_group", Spec::ExpertsGroup(ExpertsGroup { experts: 128, chosen: 8, tile_rows: 32 }));
    snapshot("experts_combine", Spec::ExpertsCombine(ExpertsCombine { chosen: 8, width: 2048, adds: true }));
    snapshot("route", Spec::Route(route));
    let groups = Some(Groups { count: 8, kept: 4, best: 2 });
    let of_groups =
        Route { experts: 256, scores: Scores::Sigmoid, correction: true, groups, factor: 2.5, ..route };
    snapshot("route_groups", Spec::Route(of_groups));
    snapshot("route_gated", Spec::Route(Route { experts: 60, chosen: 4, shared: 4, gated: true, ..route }));
    let route = Some(Route { shared: 1, ..of_groups });
    let shared = inner.with_op(|op| ExpertsInner { experts: 257, chosen: 9, shared: 1, route, ..op });
    snapshot("experts_inner_shared", Spec::ExpertsInner(shared));
}

#[test]
fn latents() {
    let each = Kernel {
        op: PerHeadLinear {
            format: Format::Q4_0,
            heads: 128,
            rows: 128,
            columns: 512,
            transposed: true,
            pitch: 128 * 192,
        },
        layout: PerHeadLayout { together: 1, each: 8 },
    };
    snapshot("absorb_one", Spec::PerHeadLinear(each));
    snapshot(
        "absorb",
        Spec::PerHeadLinear(each.with_layout(|layout| PerHeadLayout { together: 2, ..layout })),
    );
    let plain = each
        .with_op(|op| PerHeadLinear { transposed: false, pitch: 128 * 512, ..op })
        .with_layout(|layout| PerHeadLayout { each: 4, ..layout });
    snapshot("values_one", Spec::PerHeadLinear(plain));
    snapshot(
        "values_odd",
        Spec::PerHeadLinear(
            plain
                .with_op(|op| PerHeadLinear { rows: 21, columns: 50, ..op })
                .with_layout(|layout| PerHeadLayout { together: 4, ..layout }),
        ),
    );
    let (width, rope_width, cache) = (512, 64, Format::F16);
    let rope = common::rope_append(1, 1, rope_width, cache, 32, Pairing::Interleaved).rope;
    let columns = MlaColumns {
        queries_pitch: 128 * 192,
        q_rope_first: 128 * 128,
        latent_pitch: 1536 + 576,
        latent_first: 1536,
        key_pitch: 1536 + 576,
        key_first: 2048,
    };
    let prepare = MlaPrepare { heads: 128, columns, epsilon: 1e-6, rope };
    let append = MlaAppend { width, rope_width, cache, prepare: Some(prepare.clone()) };
    snapshot("mla_append", Spec::MlaAppend(append.clone()));
    snapshot("mla_append_plain", Spec::MlaAppend(MlaAppend { prepare: None, ..append }));
    let attend = MlaAttention { heads: 128, width, rope_width, cache, scale: 0.1, prologue: Some(prepare) };
    snapshot("mla_attention_one", Spec::MlaAttention(attend.clone()));
    snapshot("mla_attention", Spec::MlaAttention(MlaAttention { prologue: None, ..attend }));
    snapshot("load_latents", Spec::MlaLoadLatents(MlaLoadLatents { width, rope_width, cache }));
    let expanded = Kernel {
        op: MlaAttentionExpanded {
            heads: 128,
            keys: 128,
            rope_width,
            values: 128,
            queries_pitch: 128 * 192,
            scale: 0.1,
        },
        layout: MlaExpandedLayout { operand: Operand::Ranged, tile: 16 },
    };
    snapshot("attend_expanded", Spec::MlaAttentionExpanded(expanded));
    let odd = expanded
        .with_op(|op| MlaAttentionExpanded {
            heads: 5,
            keys: 9,
            rope_width: 4,
            values: 18,
            queries_pitch: 66,
            ..op
        })
        .with_layout(|_| MlaExpandedLayout { operand: Operand::F32, tile: 32 });
    snapshot("attend_expanded_odd", Spec::MlaAttentionExpanded(odd));
    let own_norm = Some(InlineNorm { gain: true, epsilon: 1e-6, pitch: None });
    let queries = linear(Rows::One, "q4_0", 192 * 16, 1536, Epilogue::Store);
    let knobs = Knobs { rows_per_simdgroup: 4, simdgroups: 2, split: 2, packets: 1, ..queries.layout.knobs };
    snapshot("queries_one", Spec::Linear(queries.with_op(|op| Linear { own_norm, ..op }).with_knobs(knobs)));
}
