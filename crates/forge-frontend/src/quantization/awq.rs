//! AWQ in the gemm layout: `X.qweight` has 4-bit integers, 8 interleaved outputs per word and a row per input;
//! `X.qzeros` zero points and `X.scales` scales of groups of inputs.

use crate::config::section::Section;
use crate::quantization::module::{Module, float_scale, group, matrix};
use crate::quantization::scheme::{Scheme, Stored};
use forge_ir::{
    Element, Encoding, INTERLEAVED_NIBBLES, Packing, ScaleFactor, ScaleTensor, ZeroPacking, Zeros,
};

/// AWQ.
pub(crate) struct Awq;

/// Reads the configuration.
pub(crate) fn read(section: &Section<'_>) -> Awq {
    for key in ["bits", "w_bit"] {
        section.allow_only(key, 4, "expected 4");
    }
    for key in ["version", "zero_point_version"] {
        if section.word(key).is_some_and(|version| !version.eq_ignore_ascii_case("gemm")) {
            section.reject(key, "expected gemm", &[]);
        }
    }
    Awq
}

impl Scheme for Awq {
    fn parts(&self) -> &'static [&'static str] {
        &["qweight", "qzeros", "scales"]
    }

    fn stored(&self, module: &Module<'_>) -> Option<Result<Stored, String>> {
        module.get("qweight").map(|_| stored(module))
    }
}

fn stored(module: &Module<'_>) -> Result<Stored, String> {
    let qweight = module.require("qweight")?;
    let [columns, words] = matrix(qweight)?;
    module.expect("qweight", "I32", &[columns, words])?;
    let rows = words * INTERLEAVED_NIBBLES.len();
    let scales = module.require("scales")?;
    let [count, _] = matrix(scales)?;
    module.expect("scales", &scales.dtype, &[count, rows])?;
    module.expect("qzeros", "I32", &[count, words])?;
    let encoding = Encoding {
        name: "AWQ int4",
        element: Element::Unsigned(4),
        packing: Packing::InterleavedRowWords,
        codes: "qweight",
        scales: ScaleTensor {
            tensor: "scales",
            element: float_scale(scales)?,
            rows: Some(1),
            columns: group(scales, columns, count)?,
            transposed: true,
            factor: ScaleFactor::One,
        },
        zeros: Zeros::Tensor { tensor: "qzeros", packing: ZeroPacking::InterleavedRowWords, plus: 0 },
        groups: None,
    };
    Ok((encoding, vec![rows, columns]))
}
