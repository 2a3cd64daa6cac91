//! compressed-tensors (llm-compressor): FP8, int8, packed integers, NVFP4 and MXFP4.
//!
//! `X.weight_packed` has packed codes, or `X.weight` one code per byte; `X.weight_scale` scales per matrix,
//! row, group or block; `X.weight_zero_point` zero points of asymmetric integers. Packed integers are stored
//! plus half their range.

use crate::checkpoint::safetensors_header::Tensor;
use crate::config::section::Section;
use crate::quantization::gptq::reordered;
use crate::quantization::module::{Module, float_scale, group, matrix};
use crate::quantization::scheme::{Scheme, Stored};
use crate::quantization::{fp8, modelopt};
use forge_ir::{
    BLOCK, Element, Encoding, Packing, ScaleElement, ScaleFactor, ScaleTensor, ZeroPacking, Zeros,
};
use serde_json::Value;

/// Bits of a word.
const WORD: usize = 32;

/// compressed-tensors.
pub(crate) struct CompressedTensors;

/// Reads the configuration.
pub(crate) fn read(section: &Section<'_>) -> CompressedTensors {
    const FORMATS: [&str; 9] = [
        "float-quantized",
        "int-quantized",
        "naive-quantized",
        "pack-quantized",
        "nvfp4-pack-quantized",
        "mxfp4-pack-quantized",
        "mxfp8-quantized",
        "mixed-precision",
        "dense",
    ];
    if section.word("format").is_some_and(|format| !FORMATS.contains(&format)) {
        section.reject("format", &format!("expected one of {}", FORMATS.join(", ")), &[]);
    }
    // Transforms multiply activations by matrices; sparse formats have other tensors.
    if section.get("transform_config").is_some_and(is_set) {
        section.reject("transform_config", "transforms of activations are unsupported", &[]);
    }
    let sparsity = section.get("sparsity_config").and_then(|sparsity| sparsity.get("format"));
    if sparsity.and_then(Value::as_str).is_some_and(|format| format != "dense") {
        section.reject("sparsity_config", "sparse formats are unsupported", &[]);
    }
    CompressedTensors
}

/// Whether a value is more than an empty object or one of empty objects.
fn is_set(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.values().any(is_set))
        || !value.is_object() && !value.is_null()
}

impl Scheme for CompressedTensors {
    fn parts(&self) -> &'static [&'static str] {
        &["weight", "weight_packed"]
    }

    fn checked(&self) -> &'static [&'static str] {
        &["weight_shape", "weight_g_idx", "weight_zero_point"]
    }

    fn unused(&self) -> &'static [&'static str] {
        &["input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point"]
    }

    fn stored(&self, module: &Module<'_>) -> Option<Result<Stored, String>> {
        if let Some(codes) = module.get("weight_packed") {
            return Some(match codes.dtype.as_str() {
                "I32" => packed(module, codes),
                "U8" => floats(module, codes),
                dtype => Err(format!("{} is stored as {dtype}, expected I32 or U8", codes.name)),
            });
        }
        let weight = module.get("weight")?;
        match weight.dtype.as_str() {
            fp8::E4M3 => {
                Some(symmetric(module).and_then(|()| fp8::e4m3(module, weight, "weight_scale", None)))
            }
            "I8" => Some(int8(module, weight)),
            _ => None,
        }
    }
}

/// Whether all zero points are 0, if there are any; or the error.
fn symmetric(module: &Module<'_>) -> Result<(), String> {
    for part in ["weight_zero_point", "weight_g_idx"] {
        if let Some(zeros) = module.get(part)
            && module.bytes(zeros)?.iter().any(|byte| *byte != 0)
        {
            return Err(format!("{} is not 0, which is unsupported for this format", zeros.name));
        }
    }
    Ok(())
}

/// NVFP4 or MXFP4, by the type of the scales.
fn floats(module: &Module<'_>, codes: &Tensor) -> Result<Stored, String> {
    symmetric(module)?;
    let scales = module.require("weight_scale")?;
    if scales.dtype == fp8::E4M3 {
        let factor = ScaleFactor::Over("weight_global_scale");
        return modelopt::nvfp4(module, codes, "weight_packed", "weight_scale", factor);
    }
    let [rows, bytes] = matrix(codes)?;
    let columns = 2 * bytes;
    module.expect("weight_scale", "U8", &[rows, columns / BLOCK])?;
    let scales = scale_tensor(ScaleElement::E8m0, Some(BLOCK));
    let encoding = Encoding {
        name: "MXFP4",
        element: Element::E2m1,
        packing: Packing::Rows,
        codes: "weight_packed",
        scales,
        zeros: Zeros::Constant(0),
        groups: None,
    };
    Ok((encoding, vec![rows, columns]))
}

/// Scales of groups of a row in `weight_scale`.
const fn scale_tensor(element: ScaleElement, columns: Option<usize>) -> ScaleTensor {
    let (tensor, rows) = ("weight_scale", Some(1));
    ScaleTensor { tensor, element, rows, columns, transposed: false, factor: ScaleFactor::One }
}

/// Integers of 2, 4 or 8 bits in words.
fn packed(module: &Module<'_>, codes: &Tensor) -> Result<Stored, String> {
    let [rows, words] = matrix(codes)?;
    let columns = match module.integers("weight_shape")?[..] {
        [found, columns] if found == rows as i64 && (1..=u32::MAX.into()).contains(&columns) => {
            columns as usize
        }
        ref shape => {
            return Err(format!("{}.weight_shape is {shape:?}; there are {rows} rows", module.name));
        }
    };
    let bits = [2, 4, 8].into_iter().find(|bits| columns * bits == words * WORD);
    let Some(bits) = bits else {
        return Err(format!(
            "{} has {words} words for {columns} columns; expected codes of 2, 4 or 8 bits",
            codes.name
        ));
    };
    let (scales, count) = row_scales(module, rows)?;
    let group = group(scales, columns, count)?;
    let zeros = match module.get("weight_zero_point") {
        None => Zeros::Constant(1 << (bits - 1)),
        Some(_) => {
            module.expect("weight_zero_point", "I32", &[(rows * bits).div_ceil(WORD), count])?;
            let packing = ZeroPacking::TransposedRowWords;
            Zeros::Tensor { tensor: "weight_zero_point", packing, plus: 0 }
        }
    };
    let encoding = Encoding {
        name: match bits {
            2 => "compressed-tensors int2",
            4 => "compressed-tensors int4",
            _ => "compressed-tensors int8",
        },
        element: Element::Unsigned(bits as u32),
        packing: Packing::Rows,
        codes: "weight_packed",
        scales: scale_tensor(float_scale(scales)?, group),
        zeros,
        groups: reordered(module, "weight_g_idx", [columns, group.unwrap_or(columns)])?,
    };
    Ok((encoding, vec![rows, columns]))
}

/// The scales, and how many a row has; all rows may share one.
fn row_scales<'a>(module: &Module<'a>, rows: usize) -> Result<(&'a Tensor, usize), String> {
    let scales = module.require("weight_scale")?;
    match scales.shape[..] {
        [found, count] if found == rows => Ok((scales, count)),
        [found] if found == rows => Ok((scales, 1)),
        _ => Err(format!("{} has shape {:?}, expected a row for each of {rows}", scales.name, scales.shape)),
    }
}

/// Signed bytes.
fn int8(module: &Module<'_>, weight: &Tensor) -> Result<Stored, String> {
    let [rows, columns] = matrix(weight)?;
    let scales = module.require("weight_scale")?;
    let whole = scales.shape.iter().product::<usize>() == 1;
    let count = if whole { 1 } else { row_scales(module, rows)?.1 };
    let zeros = match module.get("weight_zero_point") {
        None => Zeros::Constant(0),
        Some(_) if whole => {
            symmetric(module)?;
            Zeros::Constant(0)
        }
        Some(_) => {
            module.expect("weight_zero_point", "I8", &[rows, count])?;
            Zeros::Tensor { tensor: "weight_zero_point", packing: ZeroPacking::SignedBytes, plus: 0 }
        }
    };
    let group = group(scales, columns, count)?;
    let mut tensor = scale_tensor(float_scale(scales)?, group);
    tensor.rows = if whole { None } else { Some(1) };
    let encoding = Encoding {
        name: "compressed-tensors int8",
        element: Element::Signed8,
        packing: Packing::Rows,
        codes: "weight",
        scales: tensor,
        zeros,
        groups: reordered(module, "weight_g_idx", [columns, group.unwrap_or(columns)])?,
    };
    Ok((encoding, vec![rows, columns]))
}
