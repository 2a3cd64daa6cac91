//! Random plans: what was packed comes back.

use crate::common::{checkpoint, graph, pack, packed, read_of, tensors};
use forge_ir::{Format, Layout, Packed, WeightId, WeightRows};
use forge_weights::{CheckpointWeights, PackedFile};
use proptest::prelude::*;

/// Matrices and vectors in random orders, formats and layouts.
fn plans() -> impl Strategy<Value = (Vec<Vec<usize>>, Vec<Packed>)> {
    let flags = [any::<bool>(), any::<bool>(), any::<bool>()];
    let group = (1_usize..4, 1_usize..40, 1_usize..200, flags, 0..Format::ALL.len());
    prop::collection::vec(group, 1..5).prop_map(|groups| {
        let (mut shapes, mut plan) = (Vec::new(), Vec::new());
        for (index, (parts, rows, columns, flags, format)) in groups.into_iter().enumerate() {
            let [vector, alternate, folded] = flags;
            let format = if vector { Format::F32 } else { Format::ALL[format] };
            let layout = match (alternate, vector || folded) {
                (true, _) => Layout::Alternate,
                (false, true) => Layout::Rows,
                (false, false) => Layout::Blocks,
            };
            // Interleaved parts come in pairs, and column blocks are whole groups.
            let parts = if alternate { 2 * parts } else { parts };
            let grow = |part: usize| rows + if alternate { part / 2 } else { part };
            let blocks = |part: usize| if layout == Layout::Blocks { 1 + part } else { 1 };
            let columns =
                if layout == Layout::Blocks { columns.next_multiple_of(format.group()) } else { columns };
            let numbers: Vec<usize> = (0..parts).map(|part| shapes.len() + 1 + part).collect();
            let tail = |blocks| if vector { vec![] } else { vec![blocks * columns] };
            let shape = |rows, blocks| [vec![rows], tail(blocks)].concat();
            let total = (0..parts).map(|part| grow(part) * blocks(part)).sum();
            plan.push(packed(&format!("w{index}"), format, &shape(total, 1), layout, &numbers));
            shapes.extend((0..parts).map(|part| shape(grow(part), blocks(part))));
            if folded && !vector {
                shapes.push(vec![columns]);
                plan.last_mut().unwrap().gain = Some(WeightId(shapes.len()));
            }
        }
        (shapes, plan)
    })
}

pub(crate) fn largest(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The root mean square.
fn mean(a: &[f32], b: &[f32]) -> f32 {
    (a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / a.len() as f32).sqrt()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn packed_weights_round_trip((shapes, plan) in plans(), start in 0_usize..40, length in 0_usize..40) {
        let graph = graph(&shapes);
        let (file, _) = pack(&graph, &plan);
        tensors(&file);
        let stored = CheckpointWeights::new(&graph, checkpoint);
        let back = PackedFile::open(&graph, &plan, read_of(&file)).unwrap();
        for packed in &plan {
            for part in &packed.parts {
                let weight = &graph.weights[part.0];
                let end = weight.rows().min(start + length);
                let rows = start.min(end)..end;
                let (mut a, mut b) = (vec![0.0; rows.len() * weight.columns()], vec![9.0; rows.len() * weight.columns()]);
                stored.rows(*part, rows.clone(), &mut a).unwrap();
                back.rows(*part, rows, &mut b).unwrap();
                let mut gain = vec![1.0; weight.columns()];
                if let Some(id) = packed.gain {
                    let mut ones = gain.clone();
                    back.rows(id, 0..1, &mut ones).unwrap();
                    prop_assert_eq!(&ones, &gain);
                    stored.rows(id, 0..1, &mut gain).unwrap();
                }
                a.iter_mut().zip(gain.iter().cycle()).for_each(|(x, gain)| *x *= gain);
                let groups = |numbers: &'_ [f32]| -> Vec<Vec<f32>> {
                    let rows = numbers.chunks(weight.columns());
                    rows.flat_map(|row| row.chunks(packed.format.group())).map(<[f32]>::to_vec).collect()
                };
                for (a, b) in groups(&a).iter().zip(groups(&b)) {
                    let error = match packed.format {
                        // The search may clip the ends of a group.
                        Format::Affine(affine) if affine.bits.count() <= 4 => mean(a, &b),
                        Format::Iq4Nl | Format::Iq4Xs => mean(a, &b),
                        Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K => mean(a, &b),
                        _ => largest(a, &b),
                    };
                    let bound = match packed.format {
                        Format::F32 => 0.0,
                        Format::F16 => 2_f32.powi(-11),
                        Format::Bf16 => 2_f32.powi(-8),
                        Format::Q8_0 => 0.51 / 127.0 + 2_f32.powi(-11),
                        Format::Q5_0 => 1.01 / 16.0 + 2_f32.powi(-11),
                        Format::Q4_0 => 1.01 / 8.0 + 2_f32.powi(-11),
                        Format::Fp8 => 1.01 / 28.0,
                        Format::Mxfp4 => 0.25,
                        Format::Iq4Nl | Format::Iq4Xs => 12.5 / 113.0,
                        Format::Nvfp4 => 1.0 / 5.5,
                        // An offset rounded to bf16 can be too low by 1/128 of itself.
                        Format::Affine(_)
                        | Format::Q2K
                        | Format::Q3K
                        | Format::Q4K
                        | Format::Q5K
                        | Format::Q6K => {
                            let bits = packed.format.bits().map_or(0, |bits| bits.count());
                            0.515 * 2.0 / (2_f32.powi(bits as i32) - 1.0)
                        }
                    };
                    prop_assert!(error <= bound, "{} {}: {:?} became {:?}", packed.name, packed.format, a, b);
                }
            }
        }
        for (weight, rows, length) in [(99, 0..1, 4), (1, 0..1000, 4), (1, 0..1, 3000)] {
            prop_assert!(back.rows(WeightId(weight), rows.clone(), &mut vec![0.0; length]).is_err());
            prop_assert!(stored.rows(WeightId(weight), rows, &mut vec![0.0; length]).is_err());
        }
    }
}
