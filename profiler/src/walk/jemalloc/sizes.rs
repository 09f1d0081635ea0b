//! jemalloc's size classes: four between one power of two and the next. Which is the first that is not tiny is chosen when it is
//! built: 16 bytes, or 8 as redis does.

use super::extent::PAGE_BYTES;

/// Sizes are not larger than this, in bytes.
const SIZE_BYTES_MAX: u64 = 1 << 46;

/// Sizes of blocks by class.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sizes(Vec<u64>);

impl Sizes {
    /// All that are known, the most usual first.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        [16, 8].into_iter().map(Self::with_quantum)
    }

    fn with_quantum(quantum_bytes: u64) -> Self {
        let mut sizes: Vec<u64> = if quantum_bytes > 8 { vec![8] } else { Vec::new() };
        sizes.extend((1..=4).map(|nth| nth * quantum_bytes));
        let (mut base, mut step) = (4 * quantum_bytes, quantum_bytes);
        while base < SIZE_BYTES_MAX {
            sizes.extend((1..=4).map(|nth| base + nth * step));
            (base, step) = (2 * base, 2 * step);
        }
        Self(sizes)
    }

    /// Bytes of a block of this class.
    pub(super) fn of(&self, class: usize) -> Option<u64> {
        self.0.get(class).copied()
    }

    /// Bytes of a slab of such blocks: the fewest pages that they fill to the last byte; 0 if those are more than a slab can have.
    pub(super) fn slab_bytes(&self, block_bytes: u64) -> u64 {
        let pages = (1..=16).map(|pages| pages * PAGE_BYTES);
        pages.into_iter().find(|bytes| bytes.is_multiple_of(block_bytes)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_four_classes_to_each_power_of_two() {
        let check = |quantum, expected: &[u64]| assert_eq!(Sizes::with_quantum(quantum).0[..expected.len()], *expected);
        check(16, &[8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320]);
        check(8, &[8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160]);
        let sizes = Sizes::with_quantum(16);
        assert_eq!(sizes.of(35), Some(14336), "the largest in a slab");
        assert_eq!(sizes.slab_bytes(14336), 7 * 4096);
        assert_eq!(sizes.slab_bytes(48), 3 * 4096);
    }
}
