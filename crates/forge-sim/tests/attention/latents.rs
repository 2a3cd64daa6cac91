//! Multi-head latent attention (MLA): the latent cache and attention, with separate and fused preparation.

use crate::{Input, Kernels, compare, rope_error, to_f32};
use forge_kernels::Spec;
use forge_kernels::spec::{CombineLayout, Kernel};
use forge_ops::Format;
use forge_oracle::attention_layers::CONTEXT;
use forge_oracle::compare::to_f32 as rounded;
use forge_oracle::mla::{MlaLayer, appended_rows, batches, mla_attention, samples};
use forge_oracle::{Batch, KvCache, Random, values_of};

/// Minimum positions of a KV split.
const SPLIT_POSITIONS: usize = 4;

/// Checks that rows are appended to a cache, up to rounding, and that the rest is unchanged.
fn check_append(layer: &MlaLayer, caches: [&[f32]; 2], records: &[f64], batch: &Batch) {
    let error = rope_error(&layer.rope) + if layer.cache == Format::F32 { 3e-6 } else { 2e-3 };
    let error = |value: f64| error * value.abs().max(1.0);
    layer.kv_cache().check_append(layer, caches, records, batch, error);
}

#[test]
fn appends_raw_or_prepared_latents() {
    let mut random = Random(31);
    let (batch, layers) = (appended_rows(), samples());
    let kernels =
        Kernels::of(layers.iter().flat_map(|layer| {
            [layer.append(None), layer.append(Some(layer.prepare()))].map(Spec::MlaAppend)
        }));
    let rows = batch.rows();
    for (index, layer) in layers.iter().enumerate() {
        let cache = layer.kv_cache();
        let (bytes, before) = cache.random(&mut random, |_| CONTEXT);
        let scalars = [("rows", rows), ("context", CONTEXT)];
        let ([latent, key], records) = layer.prepared_rows(&mut random, rows);
        let bindings = [
            ("latent", Input::F32(&latent)),
            ("key", Input::F32(&key)),
            ("slots", Input::U32(&batch.slots)),
            ("positions", Input::U32(&batch.positions)),
            ("latents", Input::Bytes(&bytes)),
        ];
        let outputs = kernels.run(2 * index, &scalars, &bindings);
        check_append(layer, [&before, &cache.decode(&outputs[0])], &records, &batch);

        let given = layer.inputs(&mut random, &batch);
        let bindings = [
            ("queries", Input::F32(&given.queries)),
            ("latent", Input::F32(&given.latent)),
            ("key", Input::F32(&given.key)),
            ("gain", Input::F32(&given.gain)),
            ("slots", Input::U32(&batch.slots)),
            ("positions", Input::U32(&batch.positions)),
            ("q_rope", Input::Uninitialized(given.q_rope.len() * 4)),
            ("latents", Input::Bytes(&bytes)),
        ];
        let outputs = kernels.run(2 * index + 1, &scalars, &bindings);
        compare(layer, &outputs[0], given.q_rope, 1e-5);
        check_append(layer, [&before, &cache.decode(&outputs[1])], &given.records, &batch);
    }
}

#[test]
fn mla_attention_over_latents_matches_the_reference() {
    let mut random = Random(32);
    let layers = samples();
    let kernels = Kernels::of(layers.iter().flat_map(|layer| {
        let [alone, fused] =
            [layer.attend(None), layer.attend(Some(layer.prepare()))].map(Spec::MlaAttention);
        let join = Kernel { op: layer.combine(), layout: CombineLayout::default() };
        [alone, fused, Spec::AttendCombine(join)]
    }));
    for (index, layer) in layers.iter().enumerate() {
        let (op, cache): (_, KvCache) = (layer.attend(None), layer.kv_cache());
        for (batch, splits) in batches().into_iter().zip([1, 1, 5, 16, 1]) {
            let rows = batch.rows();
            let scalars = [
                ("rows", rows),
                ("context", CONTEXT),
                ("splits", splits),
                ("split_positions", SPLIT_POSITIONS),
                ("appends", 1),
            ];
            let given = layer.inputs(&mut random, &batch);
            let many = splits > 1;
            let numbers = rows * layer.heads * layer.width;
            let partials = rows * layer.heads * splits * (layer.width + 2) * 4;
            let (partials, heads) = if many { (partials, 0) } else { (0, numbers * 4) };
            let joined = |mut outputs: Vec<Vec<u8>>| {
                let whole = outputs.pop().unwrap_or_default();
                let whole = match outputs.pop().filter(|_| many) {
                    None => whole,
                    Some(partials) => {
                        let heads = Input::Uninitialized(numbers * 4);
                        let inputs = [("partials", Input::Bytes(&partials)), ("heads", heads)];
                        kernels.run(3 * index + 2, &scalars, &inputs).swap_remove(0)
                    }
                };
                (whole, outputs)
            };
            let expected =
                |latents: &[f32]| mla_attention(&op, &cache, &given.q, &given.q_rope, latents, &batch);

            // The filled cache, and queries after RoPE.
            let (bytes, latents) = cache.random(&mut random, |slot| batch.reach(slot));
            let q_rope = rounded(given.q_rope.iter().copied());
            let bindings = [
                ("q", Input::F32(&given.q)),
                ("q_rope", Input::F32(&q_rope)),
                ("latents", Input::Bytes(&bytes)),
                ("slots", Input::U32(&batch.slots)),
                ("positions", Input::U32(&batch.positions)),
                ("partials", Input::Uninitialized(partials)),
                ("heads", Input::Uninitialized(heads)),
            ];
            let (found, _) = joined(kernels.run(3 * index, &scalars, &bindings));
            compare(layer, &found, values_of(&expected(&latents)), 1e-5);

            // A row with one split has the bits that it has in a pass where no row has more.
            for row in (0..rows).filter(|row| many && batch.positions[*row] < SPLIT_POSITIONS as u32) {
                let of_row = |x: &[f32]| x[x.len() / rows * row..][..x.len() / rows].to_vec();
                let alone = batch.row(row);
                let bindings = [
                    ("q", Input::F32(&of_row(&given.q))),
                    ("q_rope", Input::F32(&of_row(&q_rope))),
                    ("latents", Input::Bytes(&bytes)),
                    ("slots", Input::U32(&alone.slots)),
                    ("positions", Input::U32(&alone.positions)),
                    ("partials", Input::Uninitialized(0)),
                    ("heads", Input::Uninitialized(numbers / rows * 4)),
                ];
                let scalars = [("rows", 1), ("context", CONTEXT), ("splits", 1), scalars[3]];
                let alone = kernels.run(3 * index, &scalars, &bindings).pop().unwrap_or_default();
                assert_eq!(to_f32(&alone), of_row(&to_f32(&found)), "{layer:?}, row {row}");
            }

            // A row that the kernel prepares and appends to the cache.
            let (bytes, before) = cache.random(&mut random, |slot| batch.reach(slot).saturating_sub(1));
            let bindings = [
                ("q", Input::F32(&given.q)),
                ("queries", Input::F32(&given.queries)),
                ("latent", Input::F32(&given.latent)),
                ("key", Input::F32(&given.key)),
                ("gain", Input::F32(&given.gain)),
                ("latents", Input::Bytes(&bytes)),
                ("slots", Input::U32(&batch.slots)),
                ("positions", Input::U32(&batch.positions)),
                ("partials", Input::Uninitialized(partials)),
                ("heads", Input::Uninitialized(heads)),
            ];
            let (found, outputs) = joined(kernels.run(3 * index + 1, &scalars, &bindings));
            let after = cache.decode(&outputs[0]);
            check_append(layer, [&before, &after], &given.records, &batch);
            compare(layer, &found, values_of(&expected(&after)), 2e-5);
        }
    }
}

#[test]
fn loads_latents_of_a_tile_from_the_cache() {
    let mut random = Random(34);
    let layers = samples();
    let kernels = Kernels::of(layers.iter().map(|layer| Spec::MlaLoadLatents(layer.load_latents())));
    for (index, layer) in layers.iter().enumerate() {
        let cache = layer.kv_cache();
        let (bytes, latents) = cache.random(&mut random, |slot| 140 * slot as usize);
        for (begin, rows) in [(0, 1), (7, 120)] {
            let bindings = [
                ("latents", Input::Bytes(&bytes)),
                ("slots", Input::U32(&[1])),
                ("latent_tile", Input::Uninitialized(rows * layer.width * 4)),
                ("k_rope", Input::Uninitialized(rows * layer.rope_width * 4)),
            ];
            let scalars = [("rows", rows), ("context", CONTEXT), ("begin", begin)];
            let outputs = kernels.run(index, &scalars, &bindings);
            let records = latents[cache.place(1, 0, begin)..][..rows * cache.width].chunks_exact(cache.width);
            let (latent, key): (Vec<_>, Vec<_>) = records.map(|record| record.split_at(layer.width)).unzip();
            assert_eq!(to_f32(&outputs[0]), latent.concat());
            assert_eq!(to_f32(&outputs[1]), key.concat());
        }
    }
}
