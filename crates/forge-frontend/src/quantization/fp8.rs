//! FP8 of transformers and DeepSeek: `X.weight` in E4M3 and `X.weight_scale_inv`, one scale per block, row or
//! matrix. Despite its name the scale is a factor.

use crate::checkpoint::safetensors_header::Tensor;
use crate::config::section::Section;
use crate::quantization::module::{Module, float_scale, matrix};
use crate::quantization::scheme::{Scheme, Stored};
use forge_ir::{Element, Encoding, Packing, ScaleElement, ScaleFactor, ScaleTensor, Zeros};

/// Element type of a matrix of 8-bit floats.
pub(crate) const E4M3: &str = "F8_E4M3";

/// FP8 with scales in `weight_scale_inv` or `weight_scale`.
pub(crate) struct Fp8 {
    /// Rows and columns of a block.
    block: Option<[usize; 2]>,
}

/// Reads the configuration.
pub(crate) fn read(section: &Section<'_>) -> Fp8 {
    for key in ["fmt", "weight_fmt"] {
        if section.word(key).is_some_and(|name| !["e4m3", "float8_e4m3fn", "e4m3fn"].contains(&name)) {
            section.reject(key, "expected e4m3", &[]);
        }
    }
    let block = match section.get("weight_block_size").map(|_| section.numbers("weight_block_size")) {
        None => None,
        Some(sizes) if sizes.len() == 2 && sizes.iter().all(|size| *size >= 1.0 && size.fract() == 0.0) => {
            Some([sizes[0] as usize, sizes[1] as usize])
        }
        Some(_) => {
            section.reject("weight_block_size", "expected rows and columns of a block", &[]);
            None
        }
    };
    Fp8 { block }
}

impl Scheme for Fp8 {
    fn parts(&self) -> &'static [&'static str] {
        &["weight", "weight_scale_inv", "weight_scale"]
    }

    fn unused(&self) -> &'static [&'static str] {
        &["activation_scale", "input_scale", "input_scale_ub", "output_scale"]
    }

    fn stored(&self, module: &Module<'_>) -> Option<Result<Stored, String>> {
        let weight = module.get("weight").filter(|weight| weight.dtype == E4M3)?;
        let scale = ["weight_scale_inv", "weight_scale"].into_iter().find(|name| module.get(name).is_some());
        Some(e4m3(module, weight, scale.unwrap_or("weight_scale_inv"), self.block))
    }
}

/// A matrix of 8-bit floats with scales in the tensor of this name.
pub(crate) fn e4m3(
    module: &Module<'_>,
    weight: &Tensor,
    scale: &'static str,
    block: Option<[usize; 2]>,
) -> Result<Stored, String> {
    let scales = module.require(scale)?;
    let element = match scales.dtype.as_str() {
        "F8_E8M0" | "U8" => ScaleElement::E8m0,
        _ => float_scale(scales)?,
    };
    let [rows, columns] = matrix(weight)?;
    let [of_rows, of_columns] = blocks(scales, [rows, columns], block)?;
    let encoding = Encoding {
        name: "FP8",
        element: Element::E4m3,
        packing: Packing::Rows,
        codes: "weight",
        scales: ScaleTensor {
            tensor: scale,
            element,
            rows: of_rows,
            columns: of_columns,
            transposed: false,
            factor: ScaleFactor::One,
        },
        zeros: Zeros::Constant(0),
        groups: None,
    };
    Ok((encoding, vec![rows, columns]))
}

/// Rows and columns that share a scale, from the shape of the scales.
fn blocks(
    scales: &Tensor,
    [rows, columns]: [usize; 2],
    block: Option<[usize; 2]>,
) -> Result<[Option<usize>; 2], String> {
    let shape = &scales.shape[..];
    if shape.iter().product::<usize>() == 1 {
        return Ok([None, None]);
    }
    if let ([across, along], Some([of_rows, of_columns])) = (shape, block)
        && (*across, *along) == (rows.div_ceil(of_rows), columns.div_ceil(of_columns))
    {
        return Ok([Some(of_rows), Some(of_columns)]);
    }
    match *shape {
        [across] | [across, 1] if across == rows => Ok([Some(1), None]),
        [across, along]
            if across > 0 && along > 0 && rows.is_multiple_of(across) && columns.is_multiple_of(along) =>
        {
            Ok([Some(rows / across), Some(columns / along)])
        }
        _ => Err(format!(
            "{} has shape {shape:?}, which fits neither rows nor blocks of [{rows}, {columns}]",
            scales.name
        )),
    }
}
