//! Experts: one record each.

use crate::common::{checkpoint, graph, pack, packed, read_of, tensors};
use forge_ir::{Format, Layout, Packed, Record, Records, WeightId, WeightRows};
use forge_weights::{CheckpointWeights, PackedFile, Summary};
use safetensors::{Dtype, SafeTensors};

#[test]
fn stores_all_matrices_of_an_expert_in_one_record() {
    let graph = graph(&[vec![6, 40], vec![6, 40], vec![9], vec![15, 33]]);
    let records = Some(Records { tensor: "layers.0.experts".to_owned(), experts: 3 });
    let inner = packed("layers.0.inner", Format::Q8_0, &[12, 40], Layout::Alternate, &[1, 2]);
    let bias = packed("layers.0.bias", Format::F32, &[9], Layout::Rows, &[3]);
    let sum = packed("layers.0.sum", Format::F16, &[15, 33], Layout::Rows, &[4]);
    let apart = [inner.clone(), bias.clone(), sum.clone()];
    let of_record = |packed| Packed { records: records.clone(), ..packed };
    let together = [of_record(inner), bias, of_record(sum)];
    let record = Record::of(&[(Format::Q8_0, [4, 40]), (Format::F16, [5, 33])]);
    let (file, summary) = pack(&graph, &together);
    let written = tensors(&file);
    assert_eq!(written[0], ("layers.0.experts".to_owned(), Dtype::U8, vec![3, record.bytes]));
    assert_eq!(written[1..], [("layers.0.bias".to_owned(), Dtype::F32, vec![9])]);
    let (plain, plain_summary) = pack(&graph, &apart);
    let sizes =
        |summary: &Summary| summary.weights.iter().map(|stat| (stat.bytes, stat.error)).collect::<Vec<_>>();
    assert_eq!(sizes(&summary), sizes(&plain_summary), "padding has no effect");
    // Every plane of every expert is at the offset in its record.
    let (records, plain) =
        (SafeTensors::deserialize(&file).unwrap(), SafeTensors::deserialize(&plain).unwrap());
    let of_experts = records.tensor("layers.0.experts").unwrap().data();
    let planes = [["layers.0.inner.codes", "layers.0.inner.scales"], ["layers.0.sum", ""]];
    for (names, places) in planes.iter().zip(&record.matrices) {
        for (name, place) in names.iter().zip(places).filter(|(name, _)| !name.is_empty()) {
            let rows = plain.tensor(name).unwrap().data().chunks_exact(place.len());
            for (own, rows) in of_experts.chunks_exact(record.bytes).zip(rows) {
                assert_eq!(own[place.clone()], *rows, "{name}");
            }
        }
    }
    // Reading returns the same values, for any range of rows.
    let back = PackedFile::open(&graph, &together, read_of(&file)).unwrap();
    let stored = CheckpointWeights::new(&graph, checkpoint);
    for (part, width, rows) in [(1, 40, 1..6), (2, 40, 0..6), (4, 33, 3..14), (4, 33, 4..5)] {
        let (mut found, mut given) = (vec![0.0; rows.len() * width], vec![0.0; rows.len() * width]);
        back.rows(WeightId(part), rows.clone(), &mut found).unwrap();
        stored.rows(WeightId(part), rows, &mut given).unwrap();
        let near = found.iter().zip(&given).all(|(found, given)| (found - given).abs() < 0.01);
        assert!(near, "part {part}");
    }
}
