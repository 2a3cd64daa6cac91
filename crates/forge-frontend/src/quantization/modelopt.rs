//! NVIDIA ModelOpt: FP8 and NVFP4.
//!
//! NVFP4: `X.weight` has two 4-bit floats per byte, `X.weight_scale` an 8-bit float per 16 columns and
//! `X.weight_scale_2` a factor of all scales. Types of tensors identify the method, also in checkpoints that
//! mix both.

use crate::checkpoint::safetensors_header::Tensor;
use crate::quantization::fp8;
use crate::quantization::module::{Module, matrix};
use crate::quantization::scheme::{Scheme, Stored};
use forge_ir::{Element, Encoding, Packing, ScaleElement, ScaleFactor, ScaleTensor, Zeros};

/// Columns that share a scale in NVFP4.
pub(crate) const NVFP4_GROUP: usize = 16;

/// FP8 and NVFP4.
pub(crate) struct ModelOpt;

impl Scheme for ModelOpt {
    fn parts(&self) -> &'static [&'static str] {
        &["weight", "weight_scale", "weight_scale_2"]
    }

    fn unused(&self) -> &'static [&'static str] {
        &["input_scale", "output_scale"]
    }

    fn stored(&self, module: &Module<'_>) -> Option<Result<Stored, String>> {
        let weight = module.get("weight")?;
        match weight.dtype.as_str() {
            fp8::E4M3 => Some(fp8::e4m3(module, weight, "weight_scale", None)),
            "U8" => {
                let factor = match module.get("weight_scale_2") {
                    Some(_) => ScaleFactor::Times("weight_scale_2"),
                    None => ScaleFactor::One,
                };
                Some(nvfp4(module, weight, "weight", "weight_scale", factor))
            }
            _ => None,
        }
    }
}

/// A matrix of 4-bit floats with an 8-bit float as scale of every 16 columns.
pub(crate) fn nvfp4(
    module: &Module<'_>,
    codes: &Tensor,
    name: &'static str,
    scale: &'static str,
    factor: ScaleFactor,
) -> Result<Stored, String> {
    let [rows, bytes] = matrix(codes)?;
    let columns = 2 * bytes;
    module.expect(scale, fp8::E4M3, &[rows, columns.div_ceil(NVFP4_GROUP)])?;
    if let ScaleFactor::Times(factor) | ScaleFactor::Over(factor) = factor {
        module.scalar(factor)?;
    }
    let encoding = Encoding {
        name: "NVFP4",
        element: Element::E2m1,
        packing: Packing::Rows,
        codes: name,
        scales: ScaleTensor {
            tensor: scale,
            element: ScaleElement::E4m3,
            rows: Some(1),
            columns: Some(NVFP4_GROUP),
            transposed: false,
            factor,
        },
        zeros: Zeros::Constant(0),
        groups: None,
    };
    Ok((encoding, vec![rows, columns]))
}
