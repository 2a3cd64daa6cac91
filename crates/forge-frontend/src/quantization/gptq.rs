//! GPTQ: `X.qweight` has integers of 2, 4 or 8 bits, adjacent inputs of an output in a word; `X.qzeros` zero
//! points and `X.scales` scales of groups of inputs; `X.g_idx` the group of every input.
//!
//! The first version of the format (`checkpoint_format` gptq, or none) stores zero points minus 1.

use crate::config::section::Section;
use crate::quantization::module::{Module, float_scale, group, matrix};
use crate::quantization::scheme::{Scheme, Stored};
use forge_ir::{Element, Encoding, Packing, ScaleFactor, ScaleTensor, ZeroPacking, Zeros};

/// Bits of a word.
const WORD: usize = 32;

/// GPTQ.
pub(crate) struct Gptq {
    /// Number that is added to a stored zero point.
    plus: u32,
}

/// Reads the configuration.
pub(crate) fn read(section: &Section<'_>) -> Gptq {
    let plus = match section.word("checkpoint_format").or(section.word("format")) {
        None | Some("gptq") => 1,
        Some("gptq_v2") => 0,
        Some(_) => {
            section.reject("checkpoint_format", "expected gptq or gptq_v2", &[]);
            1
        }
    };
    Gptq { plus }
}

impl Scheme for Gptq {
    fn parts(&self) -> &'static [&'static str] {
        &["qweight", "qzeros", "scales"]
    }

    fn checked(&self) -> &'static [&'static str] {
        &["g_idx"]
    }

    /// AutoGPTQ writes biases of 0 for modules that have none.
    fn unused_if_zero(&self) -> &'static [&'static str] {
        &["bias"]
    }

    fn stored(&self, module: &Module<'_>) -> Option<Result<Stored, String>> {
        module.get("qweight").map(|_| stored(module, self.plus))
    }
}

fn stored(module: &Module<'_>, plus: u32) -> Result<Stored, String> {
    let [lines, rows] = matrix(module.require("qweight")?)?;
    module.expect("qweight", "I32", &[lines, rows])?;
    let (scales, zeros) = (module.require("scales")?, module.require("qzeros")?);
    let ([count, _], [_, words]) = (matrix(scales)?, matrix(zeros)?);
    module.expect("scales", &scales.dtype, &[count, rows])?;
    module.expect("qzeros", "I32", &[count, words])?;
    // Zero points have as many bits as codes, one for every output.
    let bits = [2, 4, 8].into_iter().find(|bits| rows * bits == words * WORD);
    let Some(bits) = bits else {
        return Err(format!(
            "{} has {words} words for {rows} outputs; expected codes of 2, 4 or 8 bits",
            zeros.name
        ));
    };
    let columns = lines * WORD / bits;
    let group = group(scales, columns, count)?;
    let encoding = Encoding {
        name: match bits {
            2 => "GPTQ int2",
            4 => "GPTQ int4",
            _ => "GPTQ int8",
        },
        element: Element::Unsigned(bits as u32),
        packing: Packing::ColumnWords,
        codes: "qweight",
        scales: ScaleTensor {
            tensor: "scales",
            element: float_scale(scales)?,
            rows: Some(1),
            columns: group,
            transposed: true,
            factor: ScaleFactor::One,
        },
        zeros: Zeros::Tensor { tensor: "qzeros", packing: ZeroPacking::RowWords, plus },
        groups: reordered(module, "g_idx", [columns, group.unwrap_or(columns)])?,
    };
    Ok((encoding, vec![rows, columns]))
}

/// The tensor with the group of every column, if it exists and columns are not grouped in order; or the error.
pub(crate) fn reordered(
    module: &Module<'_>,
    name: &'static str,
    [columns, group]: [usize; 2],
) -> Result<Option<&'static str>, String> {
    if module.get(name).is_none() {
        return Ok(None);
    }
    module.expect(name, "I32", &[columns])?;
    let groups = module.integers(name)?;
    let is_in_order = groups.iter().enumerate().all(|(column, found)| *found == (column / group) as i64);
    // compressed-tensors writes -1 where nothing was reordered.
    Ok((!is_in_order && groups.iter().any(|group| *group >= 0)).then_some(name))
}
