//! bitsandbytes: 4-bit codes of a table (nf4, fp4) with a scale per block of a row, and signed bytes with a
//! scale per row (`LLM.int8`).
//!
//! 4 bits: `X.weight` has two codes per byte, the first in the high half. `X.weight.quant_map` is the table and
//! `X.weight.absmax` has the scales, as f32 or quantized again; `X.weight.quant_state.bitsandbytes__nf4` is a
//! JSON text with shape and block size. 8 bits: `X.weight` and `X.SCB`, the largest magnitude of every row.

use crate::config::section::Section;
use crate::quantization::module::Module;
use crate::quantization::scheme::{Scheme, Stored};
use forge_ir::{
    Element, Encoding, NESTED_SCALES, NESTED_TABLE, Packing, ScaleElement, ScaleFactor, ScaleTensor, Zeros,
};
use serde_json::Value;

/// Names of the JSON text, by type of code.
const STATES: [(&str, &str); 2] = [
    ("weight.quant_state.bitsandbytes__nf4", "bitsandbytes nf4"),
    ("weight.quant_state.bitsandbytes__fp4", "bitsandbytes fp4"),
];

/// Code of the largest magnitude of a row in 8 bits.
const LARGEST: u32 = 127;

/// bitsandbytes.
pub(crate) struct BitsAndBytes;

/// Reads the configuration.
pub(crate) fn read(section: &Section<'_>) -> BitsAndBytes {
    if section.word("bnb_4bit_quant_storage").is_some_and(|storage| storage != "uint8") {
        section.reject("bnb_4bit_quant_storage", "expected uint8", &[]);
    }
    BitsAndBytes
}

impl Scheme for BitsAndBytes {
    fn parts(&self) -> &'static [&'static str] {
        &["weight"]
    }

    fn checked(&self) -> &'static [&'static str] {
        &[STATES[0].0, STATES[1].0, "weight_format"]
    }

    fn stored(&self, module: &Module<'_>) -> Option<Result<Stored, String>> {
        let dtype = module.get("weight")?.dtype.as_str();
        match dtype {
            "I8" => Some(int8(module)),
            "U8" => Some(four_bits(module)),
            _ => None,
        }
    }
}

fn int8(module: &Module<'_>) -> Result<Stored, String> {
    let weight = module.require("weight")?;
    let [rows, columns] = crate::quantization::module::matrix(weight)?;
    module.expect("SCB", "F32", &[rows])?;
    if let Some(format) = module.get("weight_format")
        && module.bytes(format)?.iter().any(|byte| *byte != 0)
    {
        return Err(format!("{} is not 0: expected codes row by row", format.name));
    }
    let encoding = Encoding {
        name: "bitsandbytes int8",
        element: Element::Signed8,
        packing: Packing::Rows,
        codes: "weight",
        scales: ScaleTensor {
            tensor: "SCB",
            element: ScaleElement::F32,
            rows: Some(1),
            columns: None,
            transposed: false,
            factor: ScaleFactor::OverConstant(LARGEST),
        },
        zeros: Zeros::Constant(0),
        groups: None,
    };
    Ok((encoding, vec![rows, columns]))
}

fn four_bits(module: &Module<'_>) -> Result<Stored, String> {
    let state = STATES.into_iter().find(|(name, _)| module.get(name).is_some());
    let Some((state, name)) = state else {
        return Err(format!("missing tensor {}.{}", module.name, STATES[0].0));
    };
    let text: Value = serde_json::from_slice(&module.bytes(module.require(state)?)?)
        .map_err(|error| format!("{}.{state} is not JSON: {error}", module.name))?;
    let count = |value: &Value| value.as_u64().and_then(|count| usize::try_from(count).ok());
    let shape: Option<Vec<usize>> = text["shape"].as_array().and_then(|all| all.iter().map(count).collect());
    let (Some([rows, columns]), Some(block)) = (shape.as_deref(), count(&text["blocksize"])) else {
        return Err(format!("{}.{state} has no shape of a matrix or no blocksize", module.name));
    };
    let (rows, columns) = (*rows, *columns);
    if block == 0 || !columns.is_multiple_of(block) {
        return Err(format!("{columns} columns are not a multiple of the block size {block}"));
    }
    let weight = module.require("weight")?;
    let elements = rows.saturating_mul(columns);
    if rows == 0 || columns == 0 || weight.bytes as usize != elements / 2 {
        return Err(format!("{} has {} bytes, expected {}", weight.name, weight.bytes, elements / 2));
    }
    module.expect("weight.quant_map", "F32", &[16])?;
    let count = elements / block;
    let element = match module.get(NESTED_SCALES) {
        Some(_) => {
            module.expect("weight.absmax", "U8", &[count])?;
            module.expect(NESTED_TABLE, "F32", &[256])?;
            ScaleElement::Nested(state)
        }
        None => {
            module.expect("weight.absmax", "F32", &[count])?;
            ScaleElement::F32
        }
    };
    let encoding = Encoding {
        name,
        element: Element::Table("weight.quant_map"),
        packing: Packing::HighFirst,
        codes: "weight",
        scales: ScaleTensor {
            tensor: "weight.absmax",
            element,
            rows: Some(1),
            columns: Some(block),
            transposed: false,
            factor: ScaleFactor::One,
        },
        zeros: Zeros::Constant(0),
        groups: None,
    };
    Ok((encoding, vec![rows, columns]))
}
