//! mxfp4 matrices as published by OpenAI: `X_blocks` has the 4-bit values, 16 bytes per 32 columns, and
//! `X_scales` one exponent byte per block. Rows are outputs. Tensor names and types identify the format; the
//! configuration must agree with them.

use crate::checkpoint::safetensors_header::Tensor;
use crate::checkpoint::tensors::Tensors;
use crate::config::section::Section;
use crate::quantization::mlx;
use forge_ir::{BLOCK, Diagnostic, Format};

const BLOCKS: &str = "_blocks";

/// Name of the tensor of 4-bit values of a matrix.
pub(crate) fn blocks(matrix: &str) -> String {
    format!("{matrix}{BLOCKS}")
}

/// Checks `quantization_config`, unless it is a copy of MLX's `quantization`.
pub(crate) fn read(config: &Section<'_>) {
    const KEY: &str = "quantization_config";
    if config.get(mlx::KEY).is_some() {
        return;
    }
    config.absent_if_empty(KEY);
    let Some(section) = config.section(KEY) else { return };
    // Tensor names determine which modules are quantized.
    section.mark_inert("modules_to_not_convert");
    if section.word("quant_method") != Some("mxfp4") {
        let why = "expected mxfp4 or MLX quantization";
        config.reject(KEY, why, &[]);
        section.read_all();
    }
}

/// Name of the scales tensor, if the tensor contains 4-bit values.
pub(crate) fn companion(tensor: &Tensor) -> Option<String> {
    let matrix = tensor.name.strip_suffix(BLOCKS).filter(|_| tensor.dtype == "U8")?;
    Some(format!("{matrix}_scales"))
}

/// The format of a quantized tensor for a weight of this shape, or the error.
pub(crate) fn format(tensors: &Tensors, tensor: &Tensor, shape: &[usize]) -> Result<Format, Diagnostic> {
    let fault = |code: &'static str, message: String| {
        Err(Diagnostic::new(code, message).note(format!("in file {}", tensor.file)))
    };
    let name = &tensor.name;
    let [rows @ .., columns] = shape else { return fault("F0304", format!("{name} is not a matrix")) };
    if !columns.is_multiple_of(BLOCK) {
        let message =
            format!("{name} has {columns} columns, which is not a multiple of the block size {BLOCK}");
        return fault("F0304", message);
    }
    let of_blocks = [rows, &[columns / BLOCK]].concat();
    let of_codes = [&of_blocks[..], &[BLOCK / 2]].concat();
    let scales = companion(tensor).and_then(|scales| tensors.get(&scales));
    let Some(scales) = scales.filter(|scales| scales.dtype == "U8") else {
        return fault("F0304", format!("{name} is stored as U8, but its U8 scales are missing"));
    };
    for (part, expected) in [(tensor, of_codes), (scales, of_blocks)] {
        if part.shape != expected {
            let message = format!(
                "{}: found shape {:?}, expected {expected:?} from the configuration",
                part.name, part.shape
            );
            return fault("F0302", message);
        }
    }
    Ok(Format::Mxfp4)
}
