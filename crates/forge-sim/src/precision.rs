//! How exact what executes kernels is, where kernels leave that to it.

/// What results may lose by who computes them, not by what is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exactness {
    /// Bits that are multiplied of singles which are singles for their range alone: 11, as many as a half has, by the matrix units of an
    /// NVIDIA GPU, and else all.
    pub ranged_bits: u32,
    /// Units in the last place by which an exponential or a logarithm may be off: what Metal permits, or one of the referee's, which are
    /// the host's.
    pub units: u32,
}

impl Exactness {
    /// That of the referee, or of the card in its place.
    pub fn own() -> Exactness {
        #[cfg(feature = "card")]
        if let Some(capability) = crate::gpu::capability() {
            return Exactness { ranged_bits: if capability < 80 { 24 } else { 11 }, units: 4 };
        }
        Exactness { ranged_bits: 24, units: 1 }
    }

    /// What a product of `ranged` singles loses at most, for its size, if it loses more than sums in singles do.
    pub fn ranged_loss(&self) -> Option<f64> {
        // Both factors are rounded.
        (self.ranged_bits < 24).then(|| 2.0 * 0.5_f64.powi(self.ranged_bits as i32))
    }

    /// What functions add to what one of the host's would leave of a number of this size.
    pub fn functions_loss(&self, size: f64) -> f64 {
        f64::from(self.units - 1) * 0.5_f64.powi(24) * size
    }
}
