//! MLX quantization: `X.weight` has packed 32-bit words, `X.scales` and, in affine mode, `X.biases` have one
//! value per group.
//!
//! `quantization` in the configuration gives mode, bits and group size, for all modules and for single
//! modules by name. Shapes must agree with it. A module without scales is not quantized.

use crate::checkpoint::safetensors_header::Tensor;
use crate::checkpoint::tensors::Tensors;
use crate::config::section::Section;
use crate::quantization::modelopt::NVFP4_GROUP;
use crate::quantization::module::Module;
use crate::quantization::scheme::{Scheme, Stored};
use forge_ir::{
    Affine, BLOCK, Bits, Diagnostic, Element, Encoding, Format, Group, Packing, ScaleElement, ScaleFactor,
    ScaleTensor, Scales, Zeros,
};
use std::collections::BTreeMap;

/// Configuration key of the quantization.
pub(crate) const KEY: &str = "quantization";
const COPY: &str = "quantization_config";

/// Quantization parameters; `None` in a field that the configuration omits.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    mode: Mode,
    bits: usize,
    group: usize,
}

/// Quantization mode.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// Value = q * scale + bias.
    Affine,
    /// 4-bit floats with a shared exponent.
    Mxfp4,
    /// 8-bit floats with a shared exponent.
    Mxfp8,
    /// 4-bit floats with an 8-bit float as scale.
    Nvfp4,
}

/// Modes of floats, with bits and group size.
const FLOATS: [(&str, Mode, usize, usize); 3] = [
    ("mxfp4", Mode::Mxfp4, 4, BLOCK),
    ("mxfp8", Mode::Mxfp8, 8, BLOCK),
    ("nvfp4", Mode::Nvfp4, 4, NVFP4_GROUP),
];

/// The configuration of quantized modules.
#[derive(Clone, Debug)]
pub(crate) struct Quantization {
    of_all: Shape,
    of_some: BTreeMap<String, Shape>,
}

/// Reads `quantization`, if present. Its copy, `quantization_config`, must be equal.
pub(crate) fn read(root: &Section<'_>) -> Option<Quantization> {
    root.absent_if_empty(KEY);
    root.absent_if_empty(COPY);
    let section = root.section(KEY)?;
    if let Some(copy) = root.get(COPY)
        && root.get(KEY) != Some(copy)
    {
        root.reject(COPY, &format!("differs from {KEY}; remove one of the two"), &[]);
    }
    let of_all = shape(&section);
    let mut of_some = BTreeMap::new();
    for key in section.keys().filter(|key| !["bits", "group_size", "mode"].contains(key)) {
        // `true` means the defaults and `false` not quantized, in which case there are no scales.
        if section.get(key).is_some_and(|value| !value.is_boolean())
            && let Some(module) = section.section(key)
        {
            of_some.insert(key.to_owned(), shape(&module));
        }
    }
    Some(Quantization { of_all, of_some })
}

/// Reads quantization parameters. A module with its own parameters and no mode is affine, whatever the
/// default mode.
fn shape(section: &Section<'_>) -> Shape {
    let (bits, group) = (section.count("bits"), section.count("group_size"));
    let mode = match section.word("mode") {
        None | Some("affine") => Mode::Affine,
        Some(name) => {
            let of_name = |(known, ..): &&(&str, Mode, usize, usize)| *known == name;
            let Some((_, mode, only_bits, only_group)) = FLOATS.iter().find(of_name) else {
                section.reject("mode", "expected affine, mxfp4, mxfp8 or nvfp4", &[]);
                return Shape { mode: Mode::Affine, bits, group };
            };
            for (key, found, only) in [("bits", bits, *only_bits), ("group_size", group, *only_group)] {
                if found != only {
                    section.report_inconsistency(key, format!("{key} is {found}; {name} requires {only}"));
                }
            }
            *mode
        }
    };
    Shape { mode, bits, group }
}

impl Quantization {
    fn of(&self, module: &str) -> Shape {
        self.of_some.get(module).copied().unwrap_or(self.of_all)
    }
}

impl Scheme for Quantization {
    fn parts(&self) -> &'static [&'static str] {
        &["weight", "scales", "biases"]
    }

    /// Most modules are bound without a scheme.
    fn note_without_modules(&self) -> Option<String> {
        None
    }

    /// Of modules whose format forge does not have: others are bound as they are.
    fn stored(&self, module: &Module<'_>) -> Option<Result<Stored, String>> {
        let codes = module.get("weight").filter(|weight| weight.dtype == "U32")?;
        let scales = module.get("scales")?;
        let Shape { mode, bits, group } = self.of(module.name);
        let (name, element, of_scales) = match mode {
            Mode::Mxfp4 => return None,
            Mode::Affine if scales.dtype != "F32" => return None,
            Mode::Affine => ("MLX affine", Element::Unsigned(bits as u32), ("F32", ScaleElement::F32)),
            Mode::Mxfp8 => ("MXFP8", Element::E4m3, ("U8", ScaleElement::E8m0)),
            Mode::Nvfp4 => ("NVFP4", Element::E2m1, ("U8", ScaleElement::E4m3)),
        };
        Some(stored(module, codes, (name, element, of_scales), [bits, group]))
    }
}

/// A matrix, or a stack of them, with scales of this type.
fn stored(
    module: &Module<'_>,
    codes: &Tensor,
    (name, element, (dtype, scale)): (&'static str, Element, (&str, ScaleElement)),
    [bits, group]: [usize; 2],
) -> Result<Stored, String> {
    if supported(bits, group).is_none() && element.is_integer() {
        return Err(format!(
            "unsupported quantization to {bits} bits in groups of {group}; expected 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128"
        ));
    }
    let [rows @ .., words] = &codes.shape[..] else {
        return Err(format!("{} is not a matrix", codes.name));
    };
    if codes.shape.contains(&0) {
        return Err(format!("{} has shape {:?}", codes.name, codes.shape));
    }
    let columns = words * 32 / bits;
    let of_scales = [rows, &[columns / group]].concat();
    let zeros = if element.is_integer() { Zeros::Biases("biases") } else { Zeros::Constant(0) };
    for part in if element.is_integer() { &["scales", "biases"][..] } else { &["scales"] } {
        module.expect(part, dtype, &of_scales)?;
    }
    let scales = ScaleTensor {
        tensor: "scales",
        element: scale,
        rows: Some(1),
        columns: Some(group),
        transposed: false,
        factor: ScaleFactor::One,
    };
    let (packing, codes) = (Packing::Rows, "weight");
    let encoding = Encoding { name, element, packing, codes, scales, zeros, groups: None };
    Ok((encoding, [rows, &[columns]].concat()))
}

/// Names of the scales and biases of a quantized tensor.
pub(crate) fn companions(tensor: &str) -> [String; 2] {
    let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
    ["scales", "biases"].map(|name| format!("{module}.{name}"))
}

/// The format of a packed tensor for a weight of this shape, or the error.
pub(crate) fn format(
    tensors: &Tensors,
    quantization: Option<&Quantization>,
    tensor: &Tensor,
    shape: &[usize],
) -> Result<Format, Diagnostic> {
    let name = &tensor.name;
    let fault =
        |message: String| Err(Diagnostic::new("F0304", message).note(format!("in file {}", tensor.file)));
    let Some(quantization) = quantization else {
        return fault(format!("{name} is stored as U32, but config.json has no {KEY}"));
    };
    let Shape { mode, bits, group } = quantization.of(name.strip_suffix(".weight").unwrap_or(name));
    if mode == Mode::Mxfp4 {
        return microscaled(tensors, tensor, shape);
    }
    if mode != Mode::Affine {
        return fault(format!("{name} is stored as U32, but {} is missing", companions(name)[0]));
    }
    let Some((bits, group)) = supported(bits, group) else {
        return fault(format!(
            "{name}: unsupported quantization to {bits} bits in groups of {group}; expected 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128"
        ));
    };
    let companions = companions(name);
    let [Some(scales), Some(biases)] = companions.each_ref().map(|name| tensors.get(name)) else {
        return fault(format!(
            "{name} is stored as U32, but {} or {} is missing",
            companions[0], companions[1]
        ));
    };
    let of_scales = match (scales.dtype.as_str(), scales.dtype == biases.dtype) {
        ("F16", true) => Scales::F16,
        ("BF16", true) => Scales::Bf16,
        _ => {
            return fault(format!(
                "{} is stored as {} and {} as {}; expected both F16 or both BF16",
                scales.name, scales.dtype, biases.name, biases.dtype
            ));
        }
    };
    let expected_shapes = expected_shapes(shape, bits.count(), group.columns());
    let parts =
        [(tensor, expected_shapes.0), (scales, expected_shapes.1.clone()), (biases, expected_shapes.1)];
    agree(tensor, shape, (bits.count(), group.columns()), &parts)?;
    Ok(Format::Affine(Affine { bits, group, scales: of_scales }))
}

/// Like `format`, for mxfp4.
fn microscaled(tensors: &Tensors, tensor: &Tensor, shape: &[usize]) -> Result<Format, Diagnostic> {
    let [scales_name, _] = companions(&tensor.name);
    let Some(scales) = tensors.get(&scales_name).filter(|scales| scales.dtype == "U8") else {
        let message = format!("{}: mxfp4 scales {scales_name} in U8 are missing", tensor.name);
        return Err(Diagnostic::new("F0304", message).note(format!("in file {}", tensor.file)));
    };
    let expected_shapes = expected_shapes(shape, 4, BLOCK);
    agree(tensor, shape, (4, BLOCK), &[(tensor, expected_shapes.0), (scales, expected_shapes.1)])?;
    Ok(Format::Mxfp4)
}

/// Shapes of the packed words and of scales, for a weight of this shape.
fn expected_shapes(shape: &[usize], bits: usize, group: usize) -> (Vec<usize>, Vec<usize>) {
    let (columns, rows) = shape.split_last().map_or((0, &[][..]), |(columns, rows)| (*columns, rows));
    let with = |last: usize| [rows, &[last]].concat();
    (with(columns * bits / 32), with(columns / group))
}

/// Checks that tensors have the shapes required by the configuration.
fn agree(
    tensor: &Tensor,
    shape: &[usize],
    (bits, group): (usize, usize),
    parts: &[(&Tensor, Vec<usize>)],
) -> Result<(), Diagnostic> {
    let name = &tensor.name;
    let fault =
        |message: String| Err(Diagnostic::new("F0304", message).note(format!("in file {}", tensor.file)));
    let [_, .., columns] = shape else { return fault(format!("{name} is not a matrix")) };
    if !columns.is_multiple_of(group) {
        return fault(format!(
            "{name} has {columns} columns, which is not a multiple of the group size {group}"
        ));
    }
    for (part, expected_shapes) in parts {
        if part.shape != *expected_shapes {
            let (part, found) = (&part.name, &part.shape);
            return fault(format!(
                "{part}: found shape {found:?}, expected {expected_shapes:?} for {shape:?} in {bits} bits and groups of {group}"
            ));
        }
    }
    Ok(())
}

fn supported(bits: usize, group: usize) -> Option<(Bits, Group)> {
    let all = [Bits::Two, Bits::Three, Bits::Four, Bits::Five, Bits::Six, Bits::Eight];
    let groups = [Group::Of32, Group::Of64, Group::Of128];
    all.into_iter()
        .find(|known| known.count() == bits)
        .zip(groups.into_iter().find(|known| known.columns() == group))
}
