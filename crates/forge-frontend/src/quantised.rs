//! Matrices that a checkpoint stores as codes, the way MLX does: `X.weight` in words of 32 bits, and beside it `X.scales` and
//! `X.biases` with a number for each group. `quantization` in the configuration says how many bits and how large the
//! groups are, for all modules and for some by name; shapes have to agree with it. A module that has no scales is not
//! quantised, whatever the configuration says.

use crate::config::Section;
use crate::header::Tensor;
use crate::tensors::Tensors;
use forge_ir::{Affine, Bits, Diagnostic, Format, Group, Scales};
use std::collections::BTreeMap;

const KEY: &str = "quantization";
const COPY: &str = "quantization_config";

/// Bits of a code and columns of a group, where the configuration says both.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    bits: usize,
    group: usize,
}

/// What the configuration says of quantised modules.
#[derive(Clone, Debug)]
pub(crate) struct Quantization {
    of_all: Shape,
    of_some: BTreeMap<String, Shape>,
}

/// Reads `quantization`, if it is there. Its copy for other tools has to be equal to it.
pub(crate) fn read(root: &Section<'_>) -> Option<Quantization> {
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

fn shape(section: &Section<'_>) -> Shape {
    section.only("mode", "affine", "codes of this mode mean something else");
    Shape { bits: section.count("bits"), group: section.count("group_size") }
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
    let Shape { bits, group } = quantization.of(name.strip_suffix(".weight").unwrap_or(name));
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
    let [rows @ .., columns] = shape else { return fault(format!("{name} is no matrix")) };
    let with = |last: usize| rows.iter().copied().chain([last]).collect::<Vec<_>>();
    let wanted = [
        (tensor, with(columns * bits.count() / 32)),
        (scales, with(columns / group.columns())),
        (biases, with(columns / group.columns())),
    ];
    if !columns.is_multiple_of(group.columns()) {
        return fault(format!(
            "{name} has {columns} columns, which are not whole groups of {}",
            group.columns()
        ));
    }
    for (part, wanted) in wanted {
        if part.shape != wanted {
            return fault(format!(
                "{} is {:?}, and {shape:?} in {} bits and groups of {} makes it {wanted:?}",
                part.name,
                part.shape,
                bits.count(),
                group.columns()
            ));
        }
    }
    Ok(Format::Affine(Affine { bits, group, scales: of_scales }))
}

fn supported(bits: usize, group: usize) -> Option<(Bits, Group)> {
    let all = [Bits::Two, Bits::Three, Bits::Four, Bits::Five, Bits::Six, Bits::Eight];
    let groups = [Group::Of32, Group::Of64, Group::Of128];
    all.into_iter()
        .find(|known| known.count() == bits)
        .zip(groups.into_iter().find(|known| known.columns() == group))
}
