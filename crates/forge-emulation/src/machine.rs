//! Properties of the emulated machine: its system, and what its GPU supports.

use std::cell::Cell;

/// The emulated machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Whether there is a Metal device.
    pub has_device: bool,
    /// Name of the device.
    pub name: &'static str,
    /// Major version of macOS. Messages that an older system does not have are not understood.
    pub macos: u32,
    /// The newest Apple GPU family, 7 for the M1.
    pub family: isize,
    /// Whether residency sets can be created.
    pub has_residency_sets: bool,
    /// Results of products of matrices of a simdgroup.
    pub matrices: Matrices,
    /// Results of products of tensors, which are in macOS 26 and later.
    pub tensors: Matrices,
    /// `recommendedMaxWorkingSetSize` in bytes.
    pub working_set: u64,
    /// `maxBufferLength` in bytes.
    pub max_buffer_length: usize,
}

/// How the emulated GPU multiplies matrices of a simdgroup, or tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrices {
    /// Correctly.
    Correct,
    /// Without an error, but with wrong results.
    Wrong,
    /// Not at all: kernels with such products have no pipeline.
    Missing,
}

impl Machine {
    /// A Mac, larger than any test model needs.
    pub const MAC: Machine = Machine {
        has_device: true,
        name: "Emulated GPU",
        macos: 26,
        family: 9,
        has_residency_sets: true,
        matrices: Matrices::Correct,
        tensors: Matrices::Correct,
        working_set: 48 << 30,
        max_buffer_length: 8 << 30,
    };

    /// A Mac whose GPU has hardware for products of tensors.
    pub const M5: Machine = Machine { family: 10, ..Machine::MAC };

    /// A hosted macOS virtual machine: an old GPU family without residency sets, but with matrices.
    pub const VIRTUAL: Machine = Machine {
        name: "Emulated Paravirtual device",
        family: 5,
        has_residency_sets: false,
        working_set: 5_000_000_000,
        max_buffer_length: 3_760_000_000,
        ..Machine::MAC
    };

    /// The machine of that name: `mac`, `mac-13` (macOS 13), `m5`, `m5-15` (macOS 15), `m5-wrong-tensors`, `m5-no-tensors`,
    /// `small` (64 KiB for the GPU), `virtual`, `wrong-matrices`, `no-matrices`, `none` (no device).
    pub fn named(name: &str) -> Option<Machine> {
        Some(match name {
            "mac" => Machine::MAC,
            "mac-13" => Machine { macos: 13, ..Machine::MAC },
            "m5" => Machine::M5,
            "m5-15" => Machine { macos: 15, ..Machine::M5 },
            "m5-wrong-tensors" => Machine { tensors: Matrices::Wrong, ..Machine::M5 },
            "m5-no-tensors" => Machine { tensors: Matrices::Missing, ..Machine::M5 },
            "small" => Machine { working_set: 1 << 16, ..Machine::MAC },
            "virtual" => Machine::VIRTUAL,
            "wrong-matrices" => Machine { matrices: Matrices::Wrong, ..Machine::VIRTUAL },
            "no-matrices" => Machine { matrices: Matrices::Missing, ..Machine::VIRTUAL },
            "none" => Machine { has_device: false, ..Machine::MAC },
            _ => return None,
        })
    }

    /// Whether the device supports a `MTLGPUFamily`.
    pub(crate) fn supports_family(&self, family: isize) -> bool {
        match family {
            1001..=1999 => family - 1000 <= self.family,
            3001..=3003 => true,
            // Mac2 and Metal3.
            2002 | 5001 => self.family >= 7,
            // Metal4.
            5002 => self.family >= 7 && self.macos >= 26,
            _ => false,
        }
    }
}

thread_local! {
    static MACHINE: Cell<Machine> = const { Cell::new(Machine::MAC) };
}

/// Sets the emulated machine of this thread. The default is [`Machine::MAC`].
pub fn set_machine(machine: Machine) {
    MACHINE.set(machine);
}

/// The emulated machine of this thread.
pub fn machine() -> Machine {
    MACHINE.get()
}

/// Messages by the macOS version that introduced them.
const INTRODUCED: [(&str, &str, u32); 4] = [
    ("MTLCompileOptions", "setMathMode:", 15),
    ("MTLCompileOptions", "setMathFloatingPointFunctions:", 15),
    ("MTLDevice", "newResidencySetWithDescriptor:error:", 15),
    ("MTLCommandQueue", "addResidencySet:", 15),
];

/// Whether the emulated system has a message of a class.
pub(crate) fn has_message(class: &str, name: &str) -> bool {
    let introduced = INTRODUCED.iter().find(|(of, message, _)| (*of, *message) == (class, name));
    introduced.is_none_or(|(.., version)| *version <= machine().macos)
}
