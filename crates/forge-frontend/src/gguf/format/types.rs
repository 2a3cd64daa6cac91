//! GGUF tensor types: values per block and bytes per block.

use forge_ir::Blocks;

/// A tensor type.
#[derive(Debug)]
pub(crate) struct Type {
    number: u32,
    /// ggml's name.
    pub(crate) name: &'static str,
    columns: u64,
    block: u64,
}

const fn of(number: u32, name: &'static str, columns: u64, block: u64) -> Type {
    Type { number, name, columns, block }
}

/// All types of ggml.
const ALL: [Type; 35] = [
    of(0, "F32", 1, 4),
    of(1, "F16", 1, 2),
    of(2, "Q4_0", 32, 18),
    of(3, "Q4_1", 32, 20),
    of(6, "Q5_0", 32, 22),
    of(7, "Q5_1", 32, 24),
    of(8, "Q8_0", 32, 34),
    of(9, "Q8_1", 32, 36),
    of(10, "Q2_K", 256, 84),
    of(11, "Q3_K", 256, 110),
    of(12, "Q4_K", 256, 144),
    of(13, "Q5_K", 256, 176),
    of(14, "Q6_K", 256, 210),
    of(15, "Q8_K", 256, 292),
    of(16, "IQ2_XXS", 256, 66),
    of(17, "IQ2_XS", 256, 74),
    of(18, "IQ3_XXS", 256, 98),
    of(19, "IQ1_S", 256, 50),
    of(20, "IQ4_NL", 32, 18),
    of(21, "IQ3_S", 256, 110),
    of(22, "IQ2_S", 256, 82),
    of(23, "IQ4_XS", 256, 136),
    of(24, "I8", 1, 1),
    of(25, "I16", 1, 2),
    of(26, "I32", 1, 4),
    of(27, "I64", 1, 8),
    of(28, "F64", 1, 8),
    of(29, "IQ1_M", 256, 56),
    of(30, "BF16", 1, 2),
    of(34, "TQ1_0", 256, 54),
    of(35, "TQ2_0", 256, 66),
    of(39, "MXFP4", 32, 17),
    of(40, "NVFP4", 64, 36),
    of(41, "Q1_0", 128, 18),
    of(42, "Q2_0", 64, 18),
];

/// The type of that number.
pub(crate) fn of_number(number: u32) -> Option<&'static Type> {
    ALL.iter().find(|kind| kind.number == number)
}

impl Type {
    /// Size in bytes of a tensor, innermost dimension first; `None` if rows are not whole blocks or the size
    /// exceeds 64 bits.
    pub(crate) fn bytes(&self, shape: &[usize]) -> Option<u64> {
        let columns = *shape.first()? as u64;
        if !columns.is_multiple_of(self.columns) {
            return None;
        }
        let of_row = (columns / self.columns).checked_mul(self.block)?;
        shape[1..].iter().try_fold(of_row, |bytes, size| bytes.checked_mul(*size as u64))
    }

    /// Its block format, if supported.
    pub(crate) fn blocks(&self) -> Option<Blocks> {
        Blocks::from_name(self.name)
    }

    /// Whether forge reads it, as plain values or as blocks.
    pub(crate) fn is_supported(&self) -> bool {
        ["F32", "F16", "BF16"].contains(&self.name) || self.blocks().is_some()
    }

    /// The supported types, for messages.
    pub(crate) fn supported_names() -> String {
        let names: Vec<&str> = ALL.iter().filter(|kind| kind.is_supported()).map(|kind| kind.name).collect();
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ggml_block_sizes_match_the_formats() {
        for blocks in Blocks::ALL {
            let kind = ALL.iter().find(|kind| kind.name == blocks.name()).unwrap();
            assert_eq!((kind.columns, kind.block), (blocks.columns() as u64, blocks.bytes() as u64));
            assert!(kind.is_supported());
            assert_eq!(kind.bytes(&[3 * blocks.columns(), 7]), Some(21 * blocks.bytes() as u64));
            assert_eq!(kind.bytes(&[blocks.columns() - 1, 7]), None);
        }
        let unsupported = ALL.iter().filter(|kind| !kind.is_supported()).map(|kind| kind.name);
        assert_eq!(
            unsupported.collect::<Vec<_>>(),
            ["Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"],
            "types of activations, and integers"
        );
    }
}
