//! The q8_0 KV cache: its contents are bitwise identical to a quantized f32 cache, and attention equals
//! attention over the dequantized values.

use crate::scalars;
use crate::support::{
    Argument, Call, Random, absolute, bytes_of, compare, each_level, output, to_f32, to_f64,
};
use forge_device::cpu::{self};
use forge_device::ops::{self, Format, HeadNorm};
use forge_oracle::attention_layers::AttentionLayer;

const HEADS: usize = 2;
const CONTEXT: usize = 70;

#[test]
fn quantization_matches_f32_rounding() {
    kernel_under_test!(SHAPE, ops::RopeAppend, cpu::rope_append);
    let mut random = Random(31);
    let norm = Some(HeadNorm { epsilon: 1e-6, after_rope: false, values: false });
    for (width, rows, norm) in [(32, 3, None), (64, 7, norm), (96, 1, None), (128, 5, norm)] {
        let [of_numbers, of_codes] = [Format::F32, Format::Q8_0].map(|cache| AttentionLayer {
            norm,
            context: CONTEXT,
            ..AttentionLayer::plain(2 * HEADS, HEADS, width, cache)
        });
        let inputs = of_numbers.inputs(&mut random, rows);
        let before = random.floats(HEADS * CONTEXT * width);
        let with = |layer: &AttentionLayer| {
            let mut arguments = vec![("qkv", Argument::F32(inputs.qkv.clone()))];
            if norm.is_some() {
                let [query, key] = inputs.gains.clone().map(Argument::F32);
                arguments.extend([("query_gain", query), ("key_gain", key)]);
            }
            let cache = layer.kv_cache().encode(&before);
            arguments.extend([
                ("slots", Argument::U32(vec![0; rows])),
                ("positions", Argument::U32((0..rows as u32).map(|row| row + 40).collect())),
                ("q", output(rows * 2 * HEADS * width)),
                ("keys", Argument::Output(cache.clone())),
                ("values", Argument::Output(cache)),
            ]);
            Call::new("rope_append", run, arguments)
        };
        let calls = [(with(&of_numbers), &of_numbers), (with(&of_codes), &of_codes)];
        each_level(|level, threads| {
            let [numbers, codes] = calls.each_ref().map(|(call, layer)| {
                *SHAPE.write().unwrap() = Some(layer.rope_append());
                call.run(&scalars(layer, rows), level, threads)
            });
            assert_eq!(codes[0], numbers[0], "{level:?} {width}: queries");
            for which in [1, 2] {
                let wanted = of_codes.kv_cache().encode(&to_f32(&numbers[which]));
                assert!(codes[which] == wanted, "{level:?} {width}");
            }
        });
    }
}

#[test]
fn attention_reads_dequantized_caches() {
    kernel_under_test!(SHAPE, ops::Attend, cpu::attend);
    let mut random = Random(32);
    for (width, rows, window) in
        [(32, 1, None), (64, 9, Some(20)), (96, 30, None), (256, 2, None), (512, 1, None)]
    {
        let [of_numbers, of_codes] = [Format::F32, Format::Q8_0].map(|cache| AttentionLayer {
            window,
            scale: 0.3,
            context: CONTEXT,
            ..AttentionLayer::plain(3 * HEADS, HEADS, width, cache)
        });
        let cache = of_codes.kv_cache();
        let caches = [0; 2].map(|_| cache.encode(&random.floats(HEADS * CONTEXT * width)));
        let q = random.floats(rows * 3 * HEADS * width);
        let given = |[keys, values]: [Vec<u8>; 2]| {
            let arguments = [
                ("q", Argument::F32(q.clone())),
                ("keys", Argument::Bytes(keys)),
                ("values", Argument::Bytes(values)),
                ("slots", Argument::U32(vec![0; rows])),
                ("positions", Argument::U32((0..rows as u32).map(|row| row + 40).collect())),
                ("heads", output(q.len())),
            ];
            Call::new("attend", run, arguments)
        };
        let decoded = caches.each_ref().map(|bytes| bytes_of(&cache.decode(bytes)));
        let calls = [(given(decoded), &of_numbers), (given(caches), &of_codes)];
        each_level(|level, threads| {
            let [wanted, got] = calls.each_ref().map(|(call, layer)| {
                *SHAPE.write().unwrap() = Some(layer.attend());
                to_f32(&call.run(&scalars(layer, rows), level, threads)[0])
            });
            compare(&format!("{level:?} {width} {rows}"), &got, &absolute(to_f64(&wanted), 2.0));
        });
    }
}
