//! Weights that are repacked in the background during generation. The tokens are those of mapped weights
//! before, during and after the repacking.

use tests::{all_built, id_list, parallel_map};

#[test]
fn output_is_independent_of_weight_copying() {
    let prompt = id_list(&(0..9).map(|index| index * index * 31 % 60).collect::<Vec<u32>>());
    parallel_map(all_built().iter(), |built| {
        for sampling in [["--temperature", "0"], ["--temperature", "1"]] {
            let of_a_text = ["generate", "--token-ids", &prompt, "-n", "24", "--seed", "5", "--ignore-eos"];
            let arguments = [&of_a_text[..], &sampling].concat();
            let copied = built.run_by_default(&arguments);
            let mapped = built.run_by_default(&[&arguments[..], &["--mmap"]].concat());
            assert_eq!(copied, mapped, "{}, {sampling:?}", built.name());
        }
    });
}
