//! Attention, with separate and with fused preparation of queries and keys.

use crate::support::{
    Argument, Batch, Call, Random, absolute, compare, each_level, output, slots_and_positions, to_f32,
    to_f64, values_of,
};
use crate::{cache_error, layers, scalars};
use forge_device::cpu::{self};
use forge_device::ops::{self, Format};
use forge_oracle::attention::{attend, gated_heads, prepare};

#[test]
fn attend_is_softmax_times_values() {
    kernel_under_test!(SHAPE, ops::Attend, cpu::attend);
    let mut random = Random(6);
    for (layer, few) in layers().zip([2_usize, 3, 6, 20, 30, 40].into_iter().cycle()) {
        let (op, cache) = (layer.attend(), layer.kv_cache());
        for rows in [1, few, 75].into_iter().filter(|rows| rows.div_ceil(2) <= layer.context) {
            let batch = Batch::of_two_slots(rows, layer.context, &mut random);
            let inputs = layer.inputs(&mut random, rows);
            let q = random.floats(rows * layer.query_width());
            let [(key_bytes, keys), (value_bytes, values)] =
                [0; 2].map(|_| cache.random(&mut random, |slot| batch.reach(slot)));
            let heads = attend(&op, &cache, &to_f64(&q), [&keys, &values], &inputs.sinks, &batch);
            let heads = absolute(values_of(&gated_heads(op.gates, heads, &inputs.qkv)), 2.0);
            let mut arguments = vec![
                ("q", Argument::F32(q)),
                ("keys", Argument::Bytes(key_bytes)),
                ("values", Argument::Bytes(value_bytes)),
            ];
            arguments.extend(layer.sinks.then_some(("sinks", Argument::F32(inputs.sinks))));
            arguments.extend(layer.gated.then_some(("gates", Argument::F32(inputs.qkv))));
            arguments.extend(slots_and_positions(&batch));
            arguments.push(("heads", output(heads.len())));
            let call = Call::new("attend", run, arguments);
            *SHAPE.write().unwrap() = Some(op.clone());
            each_level(|level, _| {
                let what = format!("{level:?} {rows} rows {op:?}");
                let found = call.run(&scalars(&layer, rows), level, 1);
                compare(&what, &to_f32(&found[0]), &heads);
                assert_eq!(found, call.run(&scalars(&layer, rows), level, 3), "{what} on more threads");
            });
        }
    }
}

#[test]
fn attention_prologue_prepares_its_row() {
    kernel_under_test!(SHAPE, ops::Attend, cpu::attend);
    let mut random = Random(11);
    for layer in layers() {
        let (op, cache) = (layer.attend_with_prologue(), layer.kv_cache());
        for batch in layer.decode_batches() {
            let rows = batch.rows();
            let inputs = layer.inputs(&mut random, rows);
            let prepared =
                prepare(&layer.rope_append(), layer.context, &inputs.qkv, inputs.gains(), &batch.positions);
            let written = usize::from(layer.appends());
            let reach = |slot| batch.reach(slot).saturating_sub(written);
            let before = [0; 2].map(|_| cache.random(&mut random, reach));
            let own = ["query_gain", "key_gain"].into_iter().zip(&inputs.gains).take(1 + written);
            let mut arguments =
                vec![(if layer.appends() { "qkv" } else { "q" }, Argument::F32(inputs.qkv.clone()))];
            arguments
                .extend(own.filter(|_| layer.norm.is_some()).map(|(n, g)| (n, Argument::F32(g.clone()))));
            let cached = if layer.appends() { Argument::Output } else { Argument::Bytes };
            for (name, (bytes, _)) in ["keys", "values"].into_iter().zip(&before) {
                arguments.push((name, cached(bytes.clone())));
            }
            arguments.extend(layer.sinks.then(|| ("sinks", Argument::F32(inputs.sinks.clone()))));
            arguments.extend(layer.gated.then(|| ("gates", Argument::F32(inputs.qkv.clone()))));
            arguments.extend(slots_and_positions(&batch));
            arguments.push(("heads", output(rows * layer.query_width())));
            let call = Call::new("attend", run, arguments);
            *SHAPE.write().unwrap() = Some(op.clone());
            each_level(|level, _| {
                let what = format!("{level:?} {batch:?} {op:?}");
                let found = call.run(&scalars(&layer, rows), level, 1);
                let (heads, caches) = found.split_last().unwrap();
                let mut after = before.each_ref().map(|(_, values)| values.clone());
                for (which, bytes) in caches.iter().enumerate() {
                    after[which] = cache.decode(bytes);
                    let own = [&prepared.keys, &prepared.values][which];
                    let error = |value: f64| {
                        let rounding = cache_error(layer.cache) * value.abs().max(1.0);
                        let is_quantized = layer.cache == Format::Q8_0;
                        if is_quantized { rounding } else { rounding.min(1e-3 * value.abs().max(1e-3)) }
                    };
                    cache.check_append(&what, [&before[which].1, &after[which]], own, &batch, error);
                }
                // Attention over the cache that the kernel wrote.
                let caches = after.each_ref().map(|values| &values[..]);
                let wanted = attend(&op, &cache, &prepared.queries, caches, &inputs.sinks, &batch);
                let wanted = gated_heads(op.gates, wanted, &inputs.qkv);
                compare(&what, &to_f32(heads), &absolute(values_of(&wanted), 5.0));
                assert_eq!(found, call.run(&scalars(&layer, rows), level, 3), "{what} on more threads");
            });
        }
    }
}
