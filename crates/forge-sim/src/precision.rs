//! Numeric tolerances that depend on the executor of a kernel.

/// The precision of an executor, where the kernel language leaves it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// Mantissa bits that a reduced-precision f32 product uses: 11 on tensor cores (TF32), otherwise 24.
    pub product_bits: u32,
    /// Maximum error of exponentials and logarithms in ULP: Metal's bound on a GPU, 1 in the checker, which calls the host's
    /// functions.
    pub units: u32,
}

impl Precision {
    /// The precision of the active executor: the kernel checker, or the GPU given by `FORGE_GPU`.
    pub fn own() -> Precision {
        #[cfg(feature = "gpu")]
        if let Some(capability) = crate::gpu::capability() {
            return Precision { product_bits: if capability < 80 { 24 } else { 11 }, units: 4 };
        }
        Precision { product_bits: 24, units: 1 }
    }

    /// The relative error bound of a reduced-precision f32 product; `None` if it is computed in full f32.
    pub fn reduced_precision_error(&self) -> Option<f64> {
        // Both factors are rounded.
        (self.product_bits < 24).then(|| 2.0 * 0.5_f64.powi(self.product_bits as i32))
    }

    /// The additional error of functions at a value of this magnitude, compared with the host's functions.
    pub fn function_error(&self, size: f64) -> f64 {
        f64::from(self.units - 1) * 0.5_f64.powi(24) * size
    }
}
