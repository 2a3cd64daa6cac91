//! Matrices that a checkpoint stores as codes, the way MLX does: `X.weight` in words of 32 bits, and beside it `X.scales` and,
//! in the affine mode, `X.biases` with a number for each group. `quantization` in the configuration says the mode, how many bits and
//! how large the groups are, for all modules and for some by name; shapes have to agree with it. A module that has no scales is
//! not quantised, whatever the configuration says.

use crate::config::Section;
use crate::safetensors_header::Tensor;
use crate::tensors::Tensors;
use forge_ir::{Affine, BLOCK, Bits, Diagnostic, Format, Group, Scales};
use std::collections::BTreeMap;

/// The key that says what codes mean.
pub(crate) const KEY: &str = "quantization";
const COPY: &str = "quantization_config";

/// What codes mean, bits of a code and columns of a group, where the configuration says all.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    mode: Mode,
    bits: usize,
    group: usize,
}

/// What codes mean.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// Code * scale + bias.
    Affine,
    /// Floats of 4 bits that share an exponent.
    Mxfp4,
}

/// What the configuration says of quantised modules.
#[derive(Clone, Debug)]
pub(crate) struct Quantization {
    of_all: Shape,
    of_some: BTreeMap<String, Shape>,
}

/// Reads `quantization`, if it is there. Its copy for other tools has to be equal to it.
pub(crate) fn read(root: &Section<'_>) -> Option<Quantization> {
    root.absent_if_empty(KEY);
    root.absent_if_empty(COPY);
    let section = root.section(KEY)?;
    if let Some(copy) = root.get(COPY)
        && root.get(KEY) != Some(copy)
    {
        root.refuse(COPY, &format!("differs from {KEY}: one of the two is about something else"), &[]);
    }
    let of_all = shape(&section);
    let mut of_some = BTreeMap::new();
    for key in section.keys().filter(|key| !["bits", "group_size", "mode"].contains(key)) {
        // `true` is what all have, and `false` that a module is not quantised: then it has no scales.
        if section.get(key).is_some_and(|value| !value.is_boolean())
            && let Some(module) = section.section(key)
        {
            of_some.insert(key.to_owned(), shape(&module));
        }
    }
    Some(Quantization { of_all, of_some })
}

/// A module that tells its own shape and no mode has the affine one, whatever others have.
fn shape(section: &Section<'_>) -> Shape {
    let (bits, group) = (section.count("bits"), section.count("group_size"));
    let mode = match section.word("mode") {
        None | Some("affine") => Mode::Affine,
        Some("mxfp4") => {
            for (key, found, only) in [("bits", bits, 4), ("group_size", group, BLOCK)] {
                if found != only {
                    section.contradiction(key, format!("{key} is {found}, and mxfp4 has {only} alone"));
                }
            }
            Mode::Mxfp4
        }
        Some(_) => {
            section.refuse("mode", "forge reads codes of the modes affine and mxfp4", &[]);
            Mode::Affine
        }
    };
    Shape { mode, bits, group }
}

impl Quantization {
    fn of(&self, module: &str) -> Shape {
        self.of_some.get(module).copied().unwrap_or(self.of_all)
    }
}

/// The tensors that have the scales and the biases of a tensor of codes.
pub(crate) fn companions(tensor: &str) -> [String; 2] {
    let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
    ["scales", "biases"].map(|name| format!("{module}.{name}"))
}

/// The format of a tensor of words that is to be a weight of this shape, or what is wrong with it.
pub(crate) fn format(
    tensors: &Tensors,
    quantization: Option<&Quantization>,
    tensor: &Tensor,
    shape: &[usize],
) -> Result<Format, Diagnostic> {
    let name = &tensor.name;
    let fault =
        |message: String| Err(Diagnostic::new("F0304", message).note(format!("it is in {}", tensor.file)));
    let Some(quantization) = quantization else {
        return fault(format!(
            "{name} is stored as U32, and config.json has no {KEY} that says what that means"
        ));
    };
    let Shape { mode, bits, group } = quantization.of(name.strip_suffix(".weight").unwrap_or(name));
    if mode == Mode::Mxfp4 {
        return microscaled(tensors, tensor, shape);
    }
    let Some((bits, group)) = supported(bits, group) else {
        return fault(format!(
            "{name} has codes of {bits} bits in groups of {group}; forge reads 2, 3, 4, 5, 6 and 8 bits in groups of 32, 64 and 128"
        ));
    };
    let companions = companions(name);
    let [Some(scales), Some(biases)] = companions.each_ref().map(|name| tensors.get(name)) else {
        return fault(format!("{name} is stored as U32 without {} and {}", companions[0], companions[1]));
    };
    let of_scales = match (scales.dtype.as_str(), scales.dtype == biases.dtype) {
        ("F16", true) => Scales::F16,
        ("BF16", true) => Scales::Bf16,
        _ => {
            return fault(format!(
                "{} is stored as {} and {} as {}; forge reads F16 and BF16, both alike",
                scales.name, scales.dtype, biases.name, biases.dtype
            ));
        }
    };
    let wanted = wanted(shape, bits.count(), group.columns());
    let parts = [(tensor, wanted.0), (scales, wanted.1.clone()), (biases, wanted.1)];
    agree(tensor, shape, (bits.count(), group.columns()), &parts)?;
    Ok(Format::Affine(Affine { bits, group, scales: of_scales }))
}

/// The same of codes that are floats of 4 bits.
fn microscaled(tensors: &Tensors, tensor: &Tensor, shape: &[usize]) -> Result<Format, Diagnostic> {
    let [beside, _] = companions(&tensor.name);
    let Some(scales) = tensors.get(&beside).filter(|scales| scales.dtype == "U8") else {
        let message = format!("{} is of the mode mxfp4 without {beside} as U8", tensor.name);
        return Err(Diagnostic::new("F0304", message).note(format!("it is in {}", tensor.file)));
    };
    let wanted = wanted(shape, 4, BLOCK);
    agree(tensor, shape, (4, BLOCK), &[(tensor, wanted.0), (scales, wanted.1)])?;
    Ok(Format::Mxfp4)
}

/// The shapes of words and of what groups have, of a weight of this shape.
fn wanted(shape: &[usize], bits: usize, group: usize) -> (Vec<usize>, Vec<usize>) {
    let (columns, rows) = shape.split_last().map_or((0, &[][..]), |(columns, rows)| (*columns, rows));
    let with = |last: usize| [rows, &[last]].concat();
    (with(columns * bits / 32), with(columns / group))
}

/// Whether tensors have the shapes that the configuration makes them have.
fn agree(
    tensor: &Tensor,
    shape: &[usize],
    (bits, group): (usize, usize),
    parts: &[(&Tensor, Vec<usize>)],
) -> Result<(), Diagnostic> {
    let name = &tensor.name;
    let fault =
        |message: String| Err(Diagnostic::new("F0304", message).note(format!("it is in {}", tensor.file)));
    let [_, .., columns] = shape else { return fault(format!("{name} is no matrix")) };
    if !columns.is_multiple_of(group) {
        return fault(format!("{name} has {columns} columns, which are not whole groups of {group}"));
    }
    for (part, wanted) in parts {
        if part.shape != *wanted {
            let (part, found) = (&part.name, &part.shape);
            return fault(format!(
                "{part} is {found:?}, and {shape:?} in {bits} bits and groups of {group} makes it {wanted:?}"
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
