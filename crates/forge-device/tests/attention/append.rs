//! KV cache append, with and without RoPE.

use crate::support::{
    Argument, Batch, Call, Random, absolute, compare, each_level, output, slots_and_positions, to_f32, to_f64,
};
use crate::{cache_error, layers, scalars};
use forge_device::cpu::{self};
use forge_device::ops;
use forge_oracle::attention::prepare;

/// Rows of a pass, most of which fill no block.
const ROWS: [usize; 3] = [1, 5, 9];

#[test]
fn append_writes_keys_and_values() {
    kernel_under_test!(SHAPE, ops::Append, cpu::append);
    let mut random = Random(10);
    for layer in layers() {
        let cache = layer.kv_cache();
        for rows in ROWS.into_iter().filter(|rows| rows.div_ceil(2) <= layer.context) {
            let batch = Batch::of_two_slots(rows, layer.context, &mut random);
            let heads = [0; 2].map(|_| random.floats(rows * layer.key_heads * layer.width));
            let before = [0; 2].map(|_| cache.random(&mut random, |_| layer.context));
            let [key, value] = heads.clone().map(Argument::F32);
            let [keys, values] = before.each_ref().map(|(bytes, _)| Argument::Output(bytes.clone()));
            let call = Call::new(
                "append",
                run,
                [
                    ("key", key),
                    ("value", value),
                    ("slots", Argument::U32(batch.slots.clone())),
                    ("positions", Argument::U32(batch.positions.clone())),
                    ("keys", keys),
                    ("values", values),
                ],
            );
            let op = layer.append();
            *SHAPE.write().unwrap() = Some(op);
            each_level(|level, threads| {
                let found = call.run(&scalars(&layer, rows), level, threads);
                for ((found, (_, before)), own) in found.iter().zip(&before).zip(&heads) {
                    let after = cache.decode(found);
                    let what = format!("{level:?} {rows} rows {op:?}");
                    let error = |_| cache_error(layer.cache);
                    cache.check_append(&what, [before, &after], &to_f64(own), &batch, error);
                }
            });
        }
    }
}

#[test]
fn rope_append_normalizes_rotates_and_appends() {
    kernel_under_test!(SHAPE, ops::RopeAppend, cpu::rope_append);
    let mut random = Random(5);
    for layer in layers().filter(|layer| layer.appends()) {
        let (op, cache) = (layer.rope_append(), layer.kv_cache());
        for rows in ROWS.into_iter().filter(|rows| rows.div_ceil(2) <= layer.context) {
            let batch = Batch::of_two_slots(rows, layer.context, &mut random);
            let inputs = layer.inputs(&mut random, rows);
            let prepared = prepare(&op, layer.context, &inputs.qkv, inputs.gains(), &batch.positions);
            let before = [0; 2].map(|_| cache.random(&mut random, |_| layer.context));
            let mut arguments = vec![("qkv", Argument::F32(inputs.qkv))];
            if layer.norm.is_some() {
                let [query, key] = inputs.gains.map(Argument::F32);
                arguments.extend([("query_gain", query), ("key_gain", key)]);
            }
            let [keys, values] = before.each_ref().map(|(bytes, _)| Argument::Output(bytes.clone()));
            arguments.extend(slots_and_positions(&batch));
            arguments.extend([("q", output(rows * layer.query_width())), ("keys", keys), ("values", values)]);
            let call = Call::new("rope_append", run, arguments);
            *SHAPE.write().unwrap() = Some(op.clone());
            // Normed heads are as large as the norm weight times the root of the width.
            let [of_queries, of_cached] = if layer.norm.is_some() { [10.0, 5.0] } else { [3.0, 1.0] };
            let queries = absolute(prepared.queries, of_queries);
            each_level(|level, threads| {
                let what = format!("{level:?} {op:?}");
                let found = call.run(&scalars(&layer, rows), level, threads);
                compare(&what, &to_f32(&found[0]), &queries);
                let own = [&prepared.keys, &prepared.values];
                for ((found, (_, before)), own) in found[1..].iter().zip(&before).zip(own) {
                    let after = cache.decode(found);
                    let error = |_| of_cached * cache_error(layer.cache);
                    cache.check_append(&what, [before, &after], own, &batch, error);
                }
            });
        }
    }
}
