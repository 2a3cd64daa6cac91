//! Buffers, scalars and grids of every kernel, which planner and devices rely on.

mod common;

use forge_kernels::spec::{Rows, mla_attention_heads};
use forge_kernels::{KernelDecl, Spec, render};
use forge_ops::{DeltaRule, Epilogue, Format, Function, KvSource, Prologue};

/// Names of the planes of a weight, with `*` before written buffers.
fn planes(weight: &str, format: Format) -> Vec<String> {
    format.planes().iter().map(|plane| format!("{weight}_{}", plane.name)).collect()
}

/// Scalars of a kernel with a ring cache, or with a full one.
fn with_ring(ring: Option<usize>, these: &'static str, those: &'static str) -> &'static str {
    if ring.is_some() { these } else { those }
}

/// Buffers, scalars and grid as the documentation of [`Spec`] states them.
fn expected(spec: &Spec) -> (Vec<String>, &'static str, [String; 3]) {
    let buffers = |names: &str| names.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let grid = |x: String, y: &str, z: &str| [x, y.to_owned(), z.to_owned()];
    let rows = || "rows".to_owned();
    match spec {
        Spec::Embed(embed) => {
            let rest = match embed.squares {
                None => "ids *stream",
                Some(squares) if squares.gain => "ids gain *stream *gained *squares",
                Some(_) => "ids *stream *squares",
            };
            let names = [planes("table", embed.format), buffers(rest)].concat();
            (names, "rows", grid(rows(), "1", "1"))
        }
        Spec::LayerNorm(norm) => {
            let bias = if norm.bias { " bias" } else { "" };
            let wanted = if norm.gather { " wanted" } else { "" };
            (buffers(&format!("x gain{bias}{wanted} *y")), "rows", grid(rows(), "1", "1"))
        }
        Spec::NormAdd(norm) => {
            let mut names = vec!["x"];
            names.extend(norm.gain.then_some("norm_gain"));
            names.extend(norm.factor.then_some("factor"));
            let gained = norm.squares.is_some_and(|squares| squares.gain);
            names.extend(gained.then_some("gain"));
            names.push("*stream");
            names.extend(gained.then_some("*gained"));
            names.extend(norm.squares.map(|_| "*squares_out"));
            (buffers(&names.join(" ")), "rows", grid(rows(), "1", "1"))
        }
        Spec::RmsNorm(norm) => {
            let gain = if norm.gain { " gain" } else { "" };
            let wanted = if norm.gather { " wanted" } else { "" };
            let names = buffers(&format!("x{gain}{wanted} *y"));
            (names, "rows", grid(norm.parts.to_string(), "rows", "1"))
        }
        Spec::Linear(linear) => {
            let mut names = planes("weight", linear.op.format);
            let mut rest = |named: &str| names.extend(buffers(named));
            if linear.op.bias {
                rest("bias");
            }
            let batch = linear.layout.rows.of_decode_batch();
            if batch.is_some() && linear.layout.knobs.quantizes_x(linear.op.format) {
                rest("quantized_x");
                if linear.op.own_norm.is_some() {
                    rest("squares_of_x");
                }
            } else {
                rest("x");
                if linear.op.own_norm.is_some_and(|norm| norm.gain) {
                    rest("x_gain");
                }
            }
            if linear.op.norm.is_some() {
                rest("squares");
            }
            let multiplies = matches!(linear.op.epilogue, Epilogue::Multiply { .. });
            if multiplies {
                rest("factors");
            }
            rest("*y");
            match linear.op.epilogue {
                Epilogue::AddSquares(squares) if squares.gain => rest("gain *gained *squares_out"),
                Epilogue::AddSquares(_) => rest("*squares_out"),
                Epilogue::Best { .. } => rest("*candidates"),
                Epilogue::Store | Epilogue::Add | Epilogue::Multiply { .. } | Epilogue::Gate(_) => {}
            }
            let knobs = linear.layout.knobs;
            let groups = |each: usize| linear.op.outputs.div_ceil(each).to_string();
            let grid = match linear.layout.rows {
                Rows::One | Rows::Few => {
                    grid(groups(knobs.rows_per_simdgroup * knobs.simdgroups / knobs.split), "1", "1")
                }
                Rows::Two | Rows::Four | Rows::Eight | Rows::Sixteen => {
                    let together = format!("rows.div_ceil({})", batch.unwrap());
                    grid(together, &groups(knobs.outputs_of_group()), "1")
                }
                Rows::Many => {
                    grid(format!("rows.div_ceil({})", knobs.tile_rows), &groups(knobs.tile_outputs), "1")
                }
            };
            (names, if multiplies { "rows first" } else { "rows" }, grid)
        }
        Spec::Quantize(quantize) => {
            let gain = if quantize.gain { " x_gain" } else { "" };
            let squares = if quantize.parts > 0 { " *squares_of_x" } else { "" };
            let chunks = if quantize.parts > 0 { 1 } else { quantize.width.div_ceil(256) };
            let names = buffers(&format!("x{gain} *quantized_x{squares}"));
            (names, "rows", grid("rows.div_ceil(4)".to_owned(), &chunks.to_string(), "1"))
        }
        Spec::Rope(rope) => {
            let pairs = rope.heads * rope.width / 2;
            let scalars = if rope.rope.long.is_some() { "rows context" } else { "rows" };
            (buffers("x positions *y"), scalars, grid(pairs.div_ceil(128).to_string(), "rows", "1"))
        }
        Spec::Append(append) => {
            let step = match append.cache {
                Format::Q8_0 => 1,
                _ if append.width % 4 == 0 => 4,
                _ => 2,
            };
            let groups = (append.key_heads * append.width / step).div_ceil(128).to_string();
            let scalars = with_ring(append.ring, "rows context capacity", "rows context");
            (buffers("key value slots positions *keys *values"), scalars, grid(groups, "rows", "1"))
        }
        Spec::RopeAppend(rope_append) => {
            let heads = rope_append.query_heads + 2 * rope_append.key_heads;
            let gains = if rope_append.norm.is_some() { " query_gain key_gain" } else { "" };
            // One simdgroup per head if heads are normed or quantized.
            let groups = match rope_append.norm.is_some() || rope_append.cache == Format::Q8_0 {
                true => heads / [4, 2, 1].into_iter().find(|&n| heads % n == 0).unwrap_or(1),
                false => (heads * rope_append.width / 2).div_ceil(128),
            };
            let names = buffers(&format!("qkv{gains} slots positions *q *keys *values"));
            let scalars = with_ring(rope_append.ring, "rows context capacity", "rows context");
            (names, scalars, grid(groups.to_string(), "rows", "1"))
        }
        Spec::AttendSplit(attend) => {
            let grid = grid("splits".to_owned(), &attend.op.key_heads.to_string(), "rows");
            let row = match &attend.op.prologue {
                Some(Prologue { norm: Some(_), kv_source: KvSource::Nothing, .. }) => {
                    "q query_gain keys values"
                }
                Some(Prologue { kv_source: KvSource::Nothing, .. }) | None => "q keys values",
                Some(Prologue { norm: Some(_), .. }) => "qkv query_gain key_gain *keys *values",
                Some(Prologue { norm: None, .. }) => "qkv *keys *values",
            };
            let sinks = if attend.op.sinks { " sinks" } else { "" };
            let gates = if attend.op.gates.is_some() { " gates" } else { "" };
            let quantized = if attend.layout.quantizes { " *quantized_heads" } else { "" };
            let names = buffers(&format!("{row}{sinks}{gates} slots positions *partials *heads{quantized}"));
            let scalars = match attend.op.appends() {
                true => with_ring(
                    attend.op.ring,
                    "rows context capacity splits split_positions appends",
                    "rows context splits split_positions appends",
                ),
                false => with_ring(
                    attend.op.ring,
                    "rows context capacity splits split_positions",
                    "rows context splits split_positions",
                ),
            };
            (names, scalars, grid)
        }
        Spec::AttendCombine(combine) => {
            let gates = if combine.op.gates.is_some() { " gates" } else { "" };
            let quantized = if combine.layout.quantizes { " *quantized_heads" } else { "" };
            (
                buffers(&format!("partials{gates} *heads{quantized}")),
                "rows splits",
                grid(combine.op.query_heads.to_string(), "rows", "1"),
            )
        }
        Spec::AttendTiled(attend) => {
            let group = attend.op.query_heads / attend.op.key_heads;
            let lines = attend.layout.knobs.lines;
            let [rows, heads] = if lines == 8 { [8, 1] } else { [lines / group, group] };
            let grid =
                grid(format!("rows.div_ceil({rows})"), &(attend.op.query_heads / heads).to_string(), "1");
            let sinks = if attend.op.sinks { " sinks" } else { "" };
            let scalars = with_ring(attend.op.ring, "rows context capacity", "rows context");
            let gates = if attend.op.gates.is_some() { " gates" } else { "" };
            (buffers(&format!("q keys values{sinks}{gates} slots positions *heads")), scalars, grid)
        }
        Spec::PerHeadLinear(each) => {
            let mut names = planes("weight", each.op.format);
            names.extend(buffers("x *y"));
            let columns = match each.op.format.name() {
                "f32" => 4,
                "f16" | "bf16" => 8,
                "fp8" | "q8_0" => 16,
                name if name.starts_with("affine8") => 16,
                _ => 32,
            };
            let packets = each.op.columns.div_ceil(columns);
            let groups = match each.op.transposed {
                true => packets.div_ceil(each.layout.each),
                // Two simdgroups, whose lanes share a row.
                false => each
                    .op
                    .rows
                    .div_ceil(2 * (32 / packets.next_power_of_two().clamp(4, 32)) * each.layout.each),
            };
            let rows = if each.layout.together > 1 {
                format!("rows.div_ceil({})", each.layout.together)
            } else {
                rows()
            };
            (names, "rows", grid(groups.to_string(), &each.op.heads.to_string(), &rows))
        }
        Spec::MlaAppend(append) => match &append.prepare {
            None => {
                let groups = (append.width + append.rope_width).div_ceil(128).to_string();
                let names = buffers("latent key slots positions *latents");
                (names, "rows context", grid(groups, "rows", "1"))
            }
            Some(prepare) => {
                let groups = (prepare.heads * append.rope_width / 2).div_ceil(128) + 1;
                let names = buffers("queries latent key gain slots positions *q_rope *latents");
                (names, "rows context", grid(groups.to_string(), "rows", "1"))
            }
        },
        Spec::MlaAttention(attend) => {
            let row = match &attend.prologue {
                Some(_) => "q queries latent key gain *latents",
                None => "q q_rope latents",
            };
            let names = buffers(&format!("{row} slots positions *partials *heads"));
            let [_, _, groups] = mla_attention_heads(attend);
            (
                names,
                if attend.prologue.is_some() {
                    "rows context splits split_positions appends"
                } else {
                    "rows context splits split_positions"
                },
                grid("splits".to_owned(), &groups.to_string(), "rows"),
            )
        }
        Spec::MlaLoadLatents(load) => {
            let groups = (load.width + load.rope_width).div_ceil(128).to_string();
            (buffers("latents slots *latent_tile *k_rope"), "rows context begin", grid(groups, "rows", "1"))
        }
        Spec::MlaAttentionExpanded(attend) => {
            let names = buffers("q q_rope keys k_rope values positions *heads *carried");
            let grid = grid("rows.div_ceil(8)".to_owned(), &attend.op.heads.to_string(), "1");
            (names, "rows begin end", grid)
        }
        Spec::Convolve(convolve) => {
            let threads = convolve.width.next_multiple_of(32).min(128);
            let names = buffers("x taps slots positions *conv_state *y");
            (names, "rows", grid(convolve.width.div_ceil(threads).to_string(), "1", "1"))
        }
        Spec::DeltaRule(rule) => {
            let names = match rule.gated {
                None => "query key value dt beta a_log dt_bias slots positions *recurrent_state *heads",
                Some(_) => "convolved inputs a_log dt_bias gain slots positions *recurrent_state *heads",
            };
            (buffers(names), "rows", grid(rule.heads.to_string(), "1", "1"))
        }
        Spec::DeltaChunks(chunks) => {
            let names = match chunks.op.rule.gated {
                None => "query key value dt beta a_log dt_bias slots positions *recurrent_state *heads",
                Some(_) => "convolved inputs a_log dt_bias slots positions *recurrent_state *heads",
            };
            let DeltaRule { heads, values, .. } = chunks.op.rule;
            let of_group = if values > 16 { 32 } else { 16 };
            (buffers(names), "rows", grid(values.div_ceil(of_group).to_string(), &heads.to_string(), "1"))
        }
        Spec::GatedRmsNorm(_) => (buffers("inputs gain *heads"), "rows", grid(rows(), "1", "1")),
        Spec::DeltaStep(step) => {
            let names = "inputs taps a_log dt_bias gain slots positions *conv_state *recurrent_state *heads";
            (buffers(names), "rows", grid(step.rule.heads.to_string(), "rows", "1"))
        }
        Spec::Route(route) => {
            let correction = if route.correction { " correction" } else { "" };
            let scale = if route.scale { " scale" } else { "" };
            (buffers(&format!("logits{correction}{scale} *routes")), "rows", grid(rows(), "1", "1"))
        }
        Spec::ExpertsInner(inner) => {
            let routes = match &inner.op.route {
                None => "routes".to_owned(),
                Some(route) => {
                    let correction = if route.correction { " correction" } else { "" };
                    let scale = if route.scale { " scale" } else { "" };
                    format!("logits{correction}{scale} *routes")
                }
            };
            let squares = if inner.op.norm.is_some() { " squares" } else { "" };
            let groups = inner.op.outputs.div_ceil(inner.layout.rows_per_simdgroup * inner.layout.simdgroups);
            let mut names = planes("weight", inner.op.format);
            let bias = if inner.op.bias { " bias" } else { "" };
            names.extend(buffers(&format!("expert_slots {routes} x{bias}{squares} *y")));
            (names, "rows", grid(groups.to_string(), &inner.op.chosen.to_string(), "rows"))
        }
        Spec::ExpertsSum(sum) => {
            let left = match sum.op.epilogue {
                Epilogue::AddSquares(squares) if squares.gain => " gain *gained *squares_out",
                Epilogue::AddSquares(_) => " *squares_out",
                _ => "",
            };
            let groups = sum.op.outputs.div_ceil(sum.layout.rows_per_simdgroup * sum.layout.simdgroups);
            let mut names = planes("weight", sum.op.format);
            let bias = if sum.op.bias { " bias" } else { "" };
            names.extend(buffers(&format!("expert_slots routes x{bias} *y{left}")));
            (names, "rows", grid(groups.to_string(), "rows", "1"))
        }
        Spec::ExpertsGroup(_) => (buffers("routes *pairs *tiles"), "rows", grid("1".to_owned(), "1", "1")),
        Spec::ExpertsTiles(tiles) => {
            let bias = if tiles.op.bias { " bias" } else { "" };
            let mut names = planes("weight", tiles.op.format);
            names.extend(buffers(&format!("expert_slots pairs tiles x{bias} *y")));
            let free = (tiles.op.experts - 1) * (tiles.op.tile_rows - 1);
            let pairs = format!("(rows * {} + {free}).div_ceil({})", tiles.op.chosen, tiles.op.tile_rows);
            let outputs = tiles.op.outputs.div_ceil(tiles.layout.tile_outputs).to_string();
            (names, "rows", grid(pairs, &outputs, "1"))
        }
        Spec::ExpertsCombine(combine) => {
            (buffers("routes each *y"), "rows", grid(combine.width.div_ceil(128).to_string(), "rows", "1"))
        }
        Spec::Elementwise(elementwise) => {
            let names = match elementwise.function {
                Function::Unary(_) => "a *y",
                Function::Multiply | Function::ScaleRows | Function::ScaleBy | Function::Add => "a b *y",
            };
            (buffers(names), "rows", grid(elementwise.width.div_ceil(256).to_string(), "rows", "1"))
        }
        Spec::SliceColumns(take) => {
            (buffers("x *y"), "rows first", grid(take.width.div_ceil(128).to_string(), "rows", "1"))
        }
        Spec::Argmax(_) => (buffers("logits *ids"), "rows", grid(rows(), "1", "1")),
        Spec::Sample(_) => (buffers("logits draws *ids"), "rows", grid(rows(), "1", "1")),
        Spec::ArgmaxCombine(_) => (buffers("candidates *ids"), "rows", grid(rows(), "1", "1")),
    }
}

#[test]
fn signatures_match_their_documentation() {
    for spec in [common::others(), common::projections(), common::attentions()].concat() {
        let instance = render("some_kernel", &spec).unwrap_or_else(|error| panic!("{error}"));
        let decl = &instance.decl;
        let star = |written| if written { "*" } else { "" };
        let buffers = decl.buffers.iter().map(|buffer| format!("{}{}", star(buffer.written), buffer.name));
        let (names, scalars, grid) = expected(&spec);
        assert_eq!(buffers.collect::<Vec<_>>(), names, "{spec:?}");
        assert_eq!(decl.scalars.join(" "), scalars, "{spec:?}");
        assert_eq!(decl.grid.each_ref().map(ToString::to_string), grid, "{spec:?}");
        // Kernels that share data of 64 query rows or eight heads may use so much threadgroup memory that a
        // core holds only one threadgroup. NVIDIA GPUs have enough.
        let shared_by_many = match &spec {
            Spec::AttendTiled(attend) => attend.layout.knobs.lines == 64,
            Spec::AttendSplit(attend) => attend.layout.knobs.mma,
            _ => false,
        };
        let fits = shared_by_many || !decl.is_crowded();
        assert!(fits, "{spec:?} takes {} bytes of threadgroup memory", decl.threadgroup_bytes);
        assert_eq!(KernelDecl::parse(&instance.text).as_ref(), Ok(decl));
    }
}
