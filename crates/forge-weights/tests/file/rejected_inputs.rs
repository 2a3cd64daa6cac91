//! Rejected inputs: mismatched plans, values outside a format's range, files of another plan, and failing writers.

use crate::common::{checkpoint, graph, pack, packed, read_of};
use forge_ir::{Format, Layout, Packed, Records, WeightId};
use forge_weights::{CheckpointWeights, PackedFile, write};

#[test]
fn rejects_plans_that_do_not_fit_the_graph() {
    let graph = graph(&[vec![3, 40], vec![2, 40], vec![5], vec![40]]);
    let rows = |name, shape: &[usize], parts: &[usize]| packed(name, Format::F32, shape, Layout::Rows, parts);
    let gained = |packed: Packed, gain: usize| Packed { gain: Some(WeightId(gain)), ..packed };
    let of_experts = |packed: Packed, tensor: &str, experts: usize| {
        let records = Some(Records { tensor: tensor.to_owned(), experts });
        Packed { records, ..packed }
    };
    let cases = [
        vec![of_experts(rows("experts", &[3, 40], &[1]), "all", 2)],
        vec![of_experts(rows("no experts", &[3, 40], &[1]), "all", 0)],
        vec![of_experts(rows("vector of experts", &[5], &[3]), "all", 5)],
        vec![of_experts(rows("taken", &[3, 40], &[1]), "taken", 3)],
        vec![rows("none", &[0, 40], &[])],
        vec![rows("strange", &[3, 40], &[9])],
        vec![rows("rows", &[4, 40], &[1])],
        vec![rows("columns", &[3, 41], &[1])],
        vec![rows("mixed", &[8, 40], &[1, 3])],
        vec![packed("vector", Format::F16, &[5], Layout::Rows, &[3])],
        vec![packed("turns", Format::F32, &[5, 40], Layout::Alternate, &[1, 2])],
        vec![packed("turns alone", Format::F32, &[3, 40], Layout::Alternate, &[1])],
        vec![packed("blocks", Format::F32, &[4, 30], Layout::Blocks, &[1])],
        vec![rows("not blocks", &[6, 20], &[1])],
        vec![packed("blocks of groups", Format::Q8_0, &[6, 20], Layout::Blocks, &[1])],
        vec![gained(packed("gained blocks", Format::F32, &[3, 20], Layout::Blocks, &[2]), 4)],
        vec![rows("twice", &[3, 40], &[1]), rows("twice", &[3, 40], &[1])],
        vec![rows("_padding.0", &[3, 40], &[1])],
        vec![gained(rows("strange gain", &[3, 40], &[1]), 9)],
        vec![gained(rows("short gain", &[3, 40], &[1]), 3)],
        vec![gained(rows("gain of rows", &[3, 40], &[1]), 2)],
        vec![gained(rows("gained vector", &[40], &[4]), 4)],
        vec![gained(rows("stored gain", &[3, 40], &[1]), 4), rows("gain", &[40], &[4])],
        vec![gained(rows("gained once", &[3, 40], &[1]), 4), rows("plain", &[3, 40], &[1])],
    ];
    for plan in cases {
        let result =
            write(&graph, &plan, &CheckpointWeights::new(&graph, checkpoint), &mut Vec::new(), &mut |_| {});
        let Err(fault) = result else { panic!("{plan:?}: {result:?}") };
        assert!(fault.code == "F0601" && fault.message.contains(&plan[0].name), "{fault}");
    }
}

#[test]
fn reports_the_tensor_of_unrepresentable_values() {
    let graph = graph(&[vec![3, 40], vec![3, 40], vec![5], vec![40]]);
    let poisoned = |value: f32, at: usize| {
        CheckpointWeights::new(&graph, move |tensor: &str, offset: u64, out: &mut [u8]| {
            checkpoint(tensor, offset, out)?;
            let first = offset as usize / 4;
            if tensor != "tensor.1" && (first..first + out.len() / 4).contains(&at) {
                out[(at - first) * 4..][..4].copy_from_slice(&value.to_le_bytes());
            }
            Ok(())
        })
    };
    let matrix = packed("m", Format::F16, &[6, 40], Layout::Alternate, &[1, 2]);
    let vector = packed("v", Format::F32, &[5], Layout::Rows, &[3]);
    let affine = Packed { format: Format::from_name("affine4").unwrap(), ..matrix.clone() };
    let gained = Packed { gain: Some(WeightId(4)), ..matrix.clone() };
    let product = 1e6 * (2.0_f32 + 0.37 * 4.0).sin();
    let product = format!("tensor.2 times tensor.4 has {product:e} in row 1, too large for f16");
    let cases = [
        (&matrix, f32::NAN, 42, "tensor.2[1, 2] is infinite or NaN"),
        (&matrix, 1e6, 42, "tensor.2 has 1e6 in row 1, too large for f16"),
        (&vector, f32::INFINITY, 3, "tensor.3[3] is infinite or NaN"),
        (&affine, -1e6, 42, "tensor.2 has -1e6 in row 1, too large for affine4"),
        (&gained, 1e6, 42, &product),
        (&gained, f32::NAN, 42, "tensor.2[1, 2] times tensor.4 is infinite or NaN"),
    ];
    for (packed, value, at, expected) in cases {
        let result =
            write(&graph, std::slice::from_ref(packed), &poisoned(value, at), &mut Vec::new(), &mut |_| {});
        let Err(fault) = result else { panic!("{result:?}") };
        assert_eq!(fault.message, expected);
    }
}

#[test]
fn rejects_weight_files_of_another_plan() {
    let graph = graph(&[vec![3, 40]]);
    let plan = [packed("w", Format::Q8_0, &[3, 40], Layout::Rows, &[1])];
    let (file, _) = pack(&graph, &plan);
    let other = [packed("w", Format::Q4_0, &[3, 40], Layout::Rows, &[1])];
    let is_fault = |plan: &[Packed], file: &[u8]| PackedFile::open(&graph, plan, read_of(file)).is_err();
    assert!(!is_fault(&plan, &file));
    assert!(is_fault(&other, &file));
    assert!(is_fault(&plan, &file[..file.len() - 1]));
    assert!(is_fault(&plan, &file[..100]));
}

#[test]
fn reports_write_errors() {
    let graph = graph(&[vec![3, 40]]);
    let plan = [packed("w", Format::F32, &[3, 40], Layout::Rows, &[1])];
    let (file, _) = pack(&graph, &plan);
    for (capacity, expected) in [(file.len(), None), (file.len() - 1, Some("F0603")), (100, Some("F0603"))] {
        let mut space = vec![0; capacity];
        let result = write(
            &graph,
            &plan,
            &CheckpointWeights::new(&graph, checkpoint),
            &mut &mut space[..],
            &mut |_| {},
        );
        assert_eq!(result.err().map(|fault| fault.code), expected);
    }
}
