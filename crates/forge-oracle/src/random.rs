//! Reproducible pseudorandom numbers.

/// A generator; its field is the seed.
#[derive(Clone, Default)]
pub struct Random(pub u64);

impl Random {
    /// 48 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ (self.0 >> 33);
        x.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 16
    }

    /// An index less than `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// Between -1 and 1.
    pub fn number(&mut self) -> f32 {
        (self.bits() & 0xff_ffff) as f32 / 8_388_608.0 - 1.0
    }

    /// Numbers between -1 and 1.
    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }

    /// Numbers between 0 and 1.
    pub fn magnitudes(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number().abs()).collect()
    }
}
