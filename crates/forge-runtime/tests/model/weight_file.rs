//! Weight files that do not belong to the model.

use crate::model::Tiny;
use crate::runtime::weights::WeightFile;
use crate::support::reference::Reference;

#[test]
fn rejects_weight_files_of_other_models() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let open = || match WeightFile::open(&path) {
        Err(failure) => failure.to_string(),
        Ok(file) => match Tiny::load(&file, 8, 1) {
            Err(failure) => failure.to_string(),
            Ok(_) => "nothing wrong".to_owned(),
        },
    };
    assert!(open().contains("weights.safetensors: cannot be opened"), "{}", open());
    Reference::new().write_weights(&path);
    assert_eq!(open(), "nothing wrong");
    let whole = std::fs::read(&path).unwrap();
    let header = |from: &str, to: &str| {
        let text = String::from_utf8(whole[8..16384].to_vec()).unwrap();
        assert!(text.contains(from) && from.len() == to.len());
        [&whole[..8], text.replacen(from, to, 1).as_bytes(), &whole[16384..]].concat()
    };
    for (bytes, part) in [
        (whole[..whole.len() - 1].to_vec(), "not a complete safetensors file"),
        (whole[..20].to_vec(), "not a complete safetensors file"),
        (Vec::new(), "weights.safetensors: "),
        (header("layers.1.down.codes", "layers.1.down.codex"), "tensor `layers.1.down.codes` is missing"),
        (
            header(r#""layers.0.qkv.codes":{"dtype":"U8""#, r#""layers.0.qkv.codes":{"dtype":"I8""#),
            "tensor `layers.0.qkv.codes` is I8 [80, 32], but the program expects U8 [80, 32]",
        ),
        (
            header("\"shape\":[50, 64]", "\"shape\":[64, 50]"),
            "tensor `embed.codes` is I8 [64, 50], but the program expects I8 [50, 64]",
        ),
        (
            [&(16384_u64 - 9).to_le_bytes(), &whole[8..16383], &whole[16384..]].concat(),
            "is not a multiple of 64",
        ),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let message = open();
        assert!(message.contains(part), "{part}: {message}");
        assert!(message.contains("weights.safetensors"), "{message}");
    }
}
