//! CPU kernels of multi-head latent attention (MLA) against plain f64, for every ISA level of this machine:
//! per-head matrices in both directions, the latent KV cache, and attention.

#[macro_use]
mod support;

use forge_device::cpu::{self};
use forge_device::device::Schedule;
use forge_device::ops::{
    Format, MlaAppend, MlaAttention, MlaAttentionExpanded, MlaLoadLatents, PerHeadLinear, Scales,
};
use forge_oracle::attention_layers::CONTEXT;
use forge_oracle::compare::to_f32 as rounded;
use forge_oracle::matrix::affine;
use forge_oracle::mla::{
    EXPANDED_ROWS, ExpandedInputs, MlaInputs, MlaLayer, PER_HEAD_SIZES, appended_rows, attend_expanded,
    batches, expanded_samples, mla_attention, per_head_linear, samples,
};
use support::{
    Argument, Batch, Call, Expected, Matrix, Random, compare, each_level, near, output, plane_arguments,
    plane_buffers, run_kernel_as, slots_and_positions, to_f32,
};

fn each(call: &cpu::KernelArgs<'_>, shape: &PerHeadLinear) {
    match shape.format {
        Format::F32 => cpu::per_head_linear::<cpu::F32>(call, shape),
        Format::Q4_0 => cpu::per_head_linear::<cpu::Q4_0>(call, shape),
        Format::Q6K => cpu::per_head_linear::<cpu::Q6K>(call, shape),
        _ => cpu::per_head_linear::<cpu::AffineBf16<4, 64>>(call, shape),
    }
}

#[test]
fn per_head_matmul_multiplies_each_heads_part() {
    kernel_under_test!(SHAPE, PerHeadLinear, each);
    let mut random = Random(21);
    let sizes = PER_HEAD_SIZES.into_iter();
    let formats = [Format::F32, Format::Q4_0, Format::Q6K, affine(4, 64, Scales::Bf16)];
    for (format, [heads, of_head, columns]) in
        formats.into_iter().flat_map(|format| sizes.clone().map(move |s| (format, s)))
    {
        for (transposed, wider) in [(false, 0), (false, 5), (true, 0), (true, 5)] {
            let weights = Matrix::random(&mut random, format, heads * of_head, columns, 1.0);
            let (takes, gives) = if transposed { (of_head, columns) } else { (columns, of_head) };
            let pitch = heads * takes + wider;
            let op = PerHeadLinear { format, heads, rows: of_head, columns, transposed, pitch };
            for rows in [1, 2, 5, 7] {
                let x = random.floats(rows * pitch);
                let wanted = per_head_linear(&op, &weights, &x);
                let planes = plane_buffers(&weights, "weight").into_iter().zip(plane_arguments(&weights));
                let own = [("x", Argument::F32(x.clone())), ("y", output(wanted.len()))];
                let call = Call::new("per_head_linear", run, planes.chain(own));
                *SHAPE.write().unwrap() = Some(op);
                each_level(|level, threads| {
                    let y = call.run(&[rows], level, threads);
                    let what = format!("{level:?} {rows} rows of {op:?}");
                    compare(&what, &to_f32(&y[0]), &wanted);
                    // A row of a batch has the same bits as when it is alone.
                    let mut first_row = call.arguments.clone();
                    let (x_at, y_at) = (first_row.len() - 2, first_row.len() - 1);
                    first_row[x_at] = Argument::F32(x[..pitch].to_vec());
                    first_row[y_at] = output(heads * gives);
                    let batch = Schedule::Batch;
                    let one = run_kernel_as(call.kernel, &first_row, &[1], batch, level, threads, true);
                    assert!(rows == 1 || one[0] == y[0][..heads * gives * 4], "{what}: one by itself");
                });
            }
        }
    }
}

/// The tolerance of attention: scores are about 4, and so is the error of a weight.
fn attended(expected: Vec<Expected>) -> Vec<Expected> {
    expected.into_iter().map(|(value, magnitude)| (value, 8.0 * magnitude)).collect()
}

/// The buffers that a row is prepared from.
fn raw_rows(given: &MlaInputs) -> [(&'static str, Argument); 4] {
    let floats = |numbers: &[f32]| Argument::F32(numbers.to_vec());
    [
        ("queries", floats(&given.queries)),
        ("latent", floats(&given.latent)),
        ("key", floats(&given.key)),
        ("gain", floats(&given.gain)),
    ]
}

/// Checks that rows are appended to a cache, up to rounding, and that the rest is unchanged.
fn check_append(layer: &MlaLayer, caches: [&[f32]; 2], records: &[f64], batch: &Batch) {
    let error = |value: f64| match layer.cache {
        Format::F32 => 1e-6 * value.abs().max(4.0),
        _ => 6e-4 * value.abs().max(1.0),
    };
    layer.kv_cache().check_append(layer, caches, records, batch, error);
}

/// Rows are appended to the latent cache, and other entries do not change.
#[test]
fn mla_append_writes_plain_or_prepared_lines() {
    kernel_under_test!(SHAPE, MlaAppend, cpu::mla_append);
    let mut random = Random(22);
    let batch = appended_rows();
    let rows = batch.rows();
    for layer in samples() {
        let cache = layer.kv_cache();
        let (bytes, before) = cache.random(&mut random, |_| CONTEXT);
        let ([latent, key], records) = layer.prepared_rows(&mut random, rows);
        let mut arguments = vec![("latent", Argument::F32(latent)), ("key", Argument::F32(key))];
        arguments.extend(slots_and_positions(&batch));
        arguments.push(("latents", Argument::Output(bytes.clone())));
        let plain = Call::new("append", run, arguments);
        *SHAPE.write().unwrap() = Some(layer.append(None));
        each_level(|level, threads| {
            let left = plain.run(&[rows, CONTEXT], level, threads);
            check_append(&layer, [&before, &cache.decode(&left[0])], &records, &batch);
        });

        let given = layer.inputs(&mut random, &batch);
        let mut arguments = raw_rows(&given).to_vec();
        arguments.extend(slots_and_positions(&batch));
        arguments.extend([("q_rope", output(given.q_rope.len())), ("latents", Argument::Output(bytes))]);
        let prepared = Call::new("append", run, arguments);
        *SHAPE.write().unwrap() = Some(layer.append(Some(layer.prepare())));
        each_level(|level, threads| {
            let left = prepared.run(&[rows, CONTEXT], level, threads);
            compare(&format!("{level:?} {layer:?}"), &to_f32(&left[0]), &near(given.q_rope.clone()));
            check_append(&layer, [&before, &cache.decode(&left[1])], &given.records, &batch);
        });
    }
}

#[test]
fn mla_heads_share_latents() {
    kernel_under_test!(SHAPE, MlaAttention, cpu::mla_attention);
    let mut random = Random(23);
    for (layer, batch) in
        samples().into_iter().flat_map(|layer| batches().into_iter().map(move |b| (layer.clone(), b)))
    {
        let (op, cache) = (layer.attend(None), layer.kv_cache());
        let given = layer.inputs(&mut random, &batch);
        let scalars = [batch.rows(), CONTEXT, 1];
        let q = ("q", Argument::F32(given.q.clone()));
        let wanted =
            |latents: &[f32]| attended(mla_attention(&op, &cache, &given.q, &given.q_rope, latents, &batch));

        let (bytes, latents) = cache.random(&mut random, |slot| batch.reach(slot));
        let q_rope = Argument::F32(rounded(given.q_rope.iter().copied()));
        let mut arguments = vec![q.clone(), ("q_rope", q_rope), ("latents", Argument::Bytes(bytes))];
        arguments.extend(slots_and_positions(&batch));
        arguments.push(("heads", output(given.q.len())));
        let plain = Call::new("attend", run, arguments);
        *SHAPE.write().unwrap() = Some(op.clone());
        each_level(|level, threads| {
            let left = plain.run(&scalars, level, threads);
            compare(&format!("{level:?} {layer:?}"), &to_f32(&left[0]), &wanted(&latents));
        });

        let (bytes, before) = cache.random(&mut random, |slot| batch.reach(slot).saturating_sub(1));
        let mut arguments = vec![q];
        arguments.extend(raw_rows(&given));
        arguments.push(("latents", Argument::Output(bytes)));
        arguments.extend(slots_and_positions(&batch));
        arguments.push(("heads", output(given.q.len())));
        let fused = Call::new("attend", run, arguments);
        *SHAPE.write().unwrap() = Some(layer.attend(Some(layer.prepare())));
        each_level(|level, threads| {
            let left = fused.run(&scalars, level, threads);
            let after = cache.decode(&left[0]);
            check_append(&layer, [&before, &after], &given.records, &batch);
            compare(&format!("{level:?} {layer:?}"), &to_f32(&left[1]), &wanted(&after));
        });
    }
}

#[test]
fn load_latents_reads_a_kv_tile() {
    kernel_under_test!(SHAPE, MlaLoadLatents, cpu::load_latents);
    let mut random = Random(24);
    for layer in samples() {
        let cache = layer.kv_cache();
        let (bytes, latents) = cache.random(&mut random, |slot| 140 * slot as usize);
        for (begin, rows) in [(0, 1), (7, 70), (7, 120)] {
            let records = latents[cache.place(1, 0, begin)..][..rows * cache.width].chunks_exact(cache.width);
            let (latent, key): (Vec<_>, Vec<_>) = records.map(|record| record.split_at(layer.width)).unzip();
            let arguments = [
                ("latents", Argument::Bytes(bytes.clone())),
                ("slots", Argument::U32(vec![1])),
                ("latent_tile", output(rows * layer.width)),
                ("k_rope", output(rows * layer.rope_width)),
            ];
            let call = Call::new("load_latents", run, arguments);
            *SHAPE.write().unwrap() = Some(layer.load_latents());
            each_level(|level, threads| {
                let left = call.run(&[rows, CONTEXT, begin], level, threads);
                assert_eq!(to_f32(&left[0]), latent.concat(), "{level:?} {layer:?}");
                assert_eq!(to_f32(&left[1]), key.concat(), "{level:?} {layer:?}");
            });
        }
    }
}

/// Attention tile by tile equals attention over all positions.
#[test]
fn attention_over_kv_splits_is_exact() {
    kernel_under_test!(SHAPE, MlaAttentionExpanded, cpu::attend_expanded);
    let mut random = Random(25);
    let names = ["q", "q_rope", "keys", "k_rope", "values", "positions", "heads", "carried"];
    for (op, [rows, first, tile]) in
        expanded_samples().into_iter().flat_map(|op| EXPANDED_ROWS.map(|rows| (op, rows)))
    {
        let length = first + rows;
        let given = ExpandedInputs::random(&mut random, &op, rows, first);
        let wanted = attended(attend_expanded(&op, &given));
        *SHAPE.write().unwrap() = Some(op);
        each_level(|level, threads| {
            let mut written = [wanted.len(), rows * op.heads * 2].map(output);
            for begin in (0..length).step_by(tile) {
                let end = length.min(begin + tile);
                let part =
                    |x: &[f32]| Argument::F32(x[x.len() / length * begin..x.len() / length * end].to_vec());
                let read = [
                    Argument::F32(given.q.clone()),
                    Argument::F32(given.q_rope.clone()),
                    part(&given.keys),
                    part(&given.k_rope),
                    part(&given.values),
                    Argument::U32(given.positions()),
                ];
                let call = Call::new("attend", run, names.into_iter().zip(read.into_iter().chain(written)));
                let left: [Vec<u8>; 2] =
                    call.run(&[rows, begin, end], level, threads).try_into().expect("it writes two");
                written = left.map(Argument::Output);
            }
            let Argument::Output(heads) = &written[0] else { unreachable!("it is written") };
            compare(&format!("{level:?} {op:?} {rows} {first}"), &to_f32(heads), &wanted);
        });
    }
}
