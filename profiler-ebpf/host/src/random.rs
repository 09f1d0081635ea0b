//! Random numbers for memory that tests make up or damage.

/// A generator of few instructions, because memory has thousands of words: xorshift64* (S. Vigna, "An experimental exploration of
/// Marsaglia's xorshift generators, scrambled", 2016).
pub struct Random(u64);

impl Random {
    /// Equal seeds have equal numbers, and so have an even one and the next.
    pub fn new(seed: u64) -> Self {
        // It must not be 0.
        Self(seed | 1)
    }

    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
