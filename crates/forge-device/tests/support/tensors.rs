//! The tensors of matrices in a weight file.

use crate::support::{Argument, Matrix, bytes_of};
use forge_device::ops::{Bits, Plane, PlaneElement};

/// Rows and stored columns of a matrix.
pub fn repacked(matrix: &Matrix) -> [usize; 2] {
    let bits = matrix.format.bits().map_or(8, Bits::count);
    [matrix.rows, matrix.planes[0].len() / matrix.rows * 8 / bits]
}

/// The names of the buffers with the planes of a weight.
pub fn plane_buffers(matrix: &Matrix, weight: &str) -> Vec<&'static str> {
    let planes = matrix.format.planes().iter();
    planes.map(|plane| &*format!("{weight}_{}", plane.name).leak()).collect()
}

/// The planes of a weight as arguments.
pub fn plane_arguments(matrix: &Matrix) -> Vec<Argument> {
    matrix.planes.iter().cloned().map(Argument::Bytes).collect()
}

/// Tensors for a weight file: name, safetensors' element type, shape, bytes.
pub type Tensor = (String, &'static str, Vec<usize>, Vec<u8>);

/// The tensors of a matrix.
pub fn tensors(name: &str, matrix: &Matrix) -> Vec<Tensor> {
    let tensor = |(plane, bytes): (&Plane, &Vec<u8>)| {
        let (element, name) = match (plane.element, plane.name) {
            (element, "values") => (element, name.to_owned()),
            (element, plane) => (element, format!("{name}.{plane}")),
        };
        let dtype = match element {
            PlaneElement::F32 => "F32",
            PlaneElement::F16 => "F16",
            PlaneElement::Bf16 => "BF16",
            PlaneElement::I8 => "I8",
            PlaneElement::U8 => "U8",
        };
        (name, dtype, vec![matrix.rows, bytes.len() / matrix.rows / element.bytes()], bytes.clone())
    };
    matrix.format.planes().iter().zip(&matrix.planes).map(tensor).collect()
}

pub fn vector(name: &str, values: &[f32]) -> Tensor {
    (name.into(), "F32", vec![values.len()], bytes_of(values))
}
