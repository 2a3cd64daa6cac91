//! The planes of a stored weight: which tensors a number format has, and their sizes.

use crate::affine::{AFFINE, Scales};
use crate::format::{BLOCK, FLOAT_GROUP, Format};

/// Planes of the affine formats, in the order of their names.
static AFFINE_PLANES: [[Plane; 2]; AFFINE.len()] = {
    let mut planes = [[codes(PlaneElement::U8, 0); 2]; AFFINE.len()];
    let mut index = 0;
    while index < planes.len() {
        let affine = AFFINE[index].0;
        let element = match affine.scales {
            Scales::F16 => PlaneElement::F16,
            Scales::Bf16 => PlaneElement::Bf16,
        };
        planes[index] = [
            codes(PlaneElement::U8, affine.code_bytes()),
            // Scale and offset are interleaved.
            Plane { name: "scales", element, per_group: 2 },
        ];
        index += 1;
    }
    planes
};

/// Element type of a plane, as in safetensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneElement {
    /// `F32`
    F32,
    /// `F16`
    F16,
    /// `BF16`
    Bf16,
    /// `I8`
    I8,
    /// `U8`
    U8,
}

impl PlaneElement {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            PlaneElement::F32 => 4,
            PlaneElement::F16 | PlaneElement::Bf16 => 2,
            PlaneElement::I8 | PlaneElement::U8 => 1,
        }
    }
}

/// One tensor of a stored weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// `values`, `codes` or `scales`. The plane `values` is stored under the weight's own name, the others as
    /// `<weight>.codes` and `<weight>.scales`.
    pub name: &'static str,
    /// Element type of the tensor.
    pub element: PlaneElement,
    /// Elements per group.
    pub per_group: usize,
}

const fn values(element: PlaneElement) -> Plane {
    Plane { name: "values", element, per_group: BLOCK }
}

const SCALES: Plane = Plane { name: "scales", element: PlaneElement::F16, per_group: 1 };

const fn codes(element: PlaneElement, per_group: usize) -> Plane {
    Plane { name: "codes", element, per_group }
}

/// Scales stored as bytes: mixed types of a superblock, or exponents.
const fn bytes(count: usize) -> Plane {
    Plane { name: "scales", element: PlaneElement::U8, per_group: count }
}

impl Format {
    /// The planes of this format, in the order of kernel arguments.
    pub fn planes(self) -> &'static [Plane] {
        match self {
            Format::F32 => const { &[values(PlaneElement::F32)] },
            Format::F16 => const { &[values(PlaneElement::F16)] },
            Format::Bf16 => const { &[values(PlaneElement::Bf16)] },
            Format::Fp8 => {
                const { &[codes(PlaneElement::U8, FLOAT_GROUP), Plane { element: PlaneElement::F32, ..SCALES }] }
            }
            Format::Q8_0 => const { &[codes(PlaneElement::I8, 32), SCALES] },
            Format::Q5_0 => const { &[codes(PlaneElement::U8, 20), SCALES] },
            Format::Q4_0 | Format::Iq4Nl => const { &[codes(PlaneElement::U8, 16), SCALES] },
            Format::Iq4Xs => const { &[codes(PlaneElement::U8, 128), bytes(10)] },
            Format::Q6K => const { &[codes(PlaneElement::U8, 192), bytes(18)] },
            Format::Q5K => const { &[codes(PlaneElement::U8, 160), bytes(20)] },
            Format::Q4K => const { &[codes(PlaneElement::U8, 128), bytes(20)] },
            Format::Q3K => const { &[codes(PlaneElement::U8, 96), bytes(18)] },
            Format::Q2K => const { &[codes(PlaneElement::U8, 64), bytes(20)] },
            Format::Mxfp4 => const { &[codes(PlaneElement::U8, 16), bytes(1)] },
            Format::Nvfp4 => {
                const { &[codes(PlaneElement::U8, FLOAT_GROUP / 2), bytes(4 + FLOAT_GROUP / 16)] }
            }
            Format::Affine(affine) => &AFFINE_PLANES[affine.index()],
        }
    }

    /// Bytes of each plane of a stored row. The second is 0 for formats with one plane.
    pub fn plane_bytes(self, columns: usize) -> [usize; 2] {
        let mut bytes = [0; 2];
        for (bytes, plane) in bytes.iter_mut().zip(self.planes()) {
            *bytes = columns.div_ceil(self.group()) * plane.per_group * plane.element.bytes();
        }
        bytes
    }
}
