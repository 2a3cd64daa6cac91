//! Matrices in mxfp4, the way OpenAI publishes them: `X_blocks` has the codes, 16 bytes for every 32 columns, and `X_scales` the
//! exponent of each of these blocks, a byte. Rows are outputs. The names and types of the two tensors say all of this; where
//! the configuration speaks of it, it has to agree.

use crate::config::Section;
use crate::mlx_quant;
use crate::safetensors_header::Tensor;
use crate::tensors::Tensors;
use forge_ir::{BLOCK, Diagnostic, Format};

const BLOCKS: &str = "_blocks";

/// The name of a tensor of codes, by that of the matrix.
pub(crate) fn blocks(matrix: &str) -> String {
    format!("{matrix}{BLOCKS}")
}

/// Reads `quantization_config`, if it is there and no copy of what MLX says of its own codes.
pub(crate) fn read(config: &Section<'_>) {
    const KEY: &str = "quantization_config";
    if config.get(mlx_quant::KEY).is_some() {
        return;
    }
    config.absent_if_empty(KEY);
    let Some(section) = config.section(KEY) else { return };
    // Its tensors say of each module whether it is one of codes.
    section.pass_over("modules_to_not_convert");
    if section.word("quant_method") != Some("mxfp4") {
        let why = "of this architecture forge reads codes of the method mxfp4, and those that MLX writes";
        config.refuse(KEY, why, &[]);
        section.ask_all();
    }
}

/// The tensor that has the scales of a tensor of codes, if it is one.
pub(crate) fn companion(tensor: &Tensor) -> Option<String> {
    let matrix = tensor.name.strip_suffix(BLOCKS).filter(|_| tensor.dtype == "U8")?;
    Some(format!("{matrix}_scales"))
}

/// The format of a tensor of codes that is to be a weight of this shape, or what is wrong with it.
pub(crate) fn format(tensors: &Tensors, tensor: &Tensor, shape: &[usize]) -> Result<Format, Diagnostic> {
    let fault = |code: &'static str, message: String| {
        Err(Diagnostic::new(code, message).note(format!("it is in {}", tensor.file)))
    };
    let name = &tensor.name;
    let [rows @ .., columns] = shape else { return fault("F0304", format!("{name} is no matrix")) };
    if !columns.is_multiple_of(BLOCK) {
        let message = format!("{name} has {columns} columns, which are not whole blocks of {BLOCK}");
        return fault("F0304", message);
    }
    let of_blocks = [rows, &[columns / BLOCK]].concat();
    let of_codes = [&of_blocks[..], &[BLOCK / 2]].concat();
    let scales = companion(tensor).and_then(|scales| tensors.get(&scales));
    let Some(scales) = scales.filter(|scales| scales.dtype == "U8") else {
        return fault("F0304", format!("{name} is stored as U8 without scales as U8 beside it"));
    };
    for (part, wanted) in [(tensor, of_codes), (scales, of_blocks)] {
        if part.shape != wanted {
            let message =
                format!("{} is {:?}, and the configuration makes it {wanted:?}", part.name, part.shape);
            return fault("F0302", message);
        }
    }
    Ok(Format::Mxfp4)
}
