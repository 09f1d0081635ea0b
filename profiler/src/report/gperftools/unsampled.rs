//! Numbers such that what the reader makes of them is ours.
//!
//! google-pprof takes a line's blocks for samples of the mean size, and multiplies by 1 / (1 − e^(−mean/T)). At T = 1 that is 1 to the
//! last bit from a mean of 38 bytes on, and nearly so from 16 on; of blocks of a few bytes fewer have to be written. As numbers are
//! whole, that does not come out even: it is made a little too much, never too little, and what is too much is left out of the lines
//! that follow, by whole blocks and bytes, so that sums are right.

/// From this mean on, in bytes, 1 − e^(−mean) is 1 as far as floats can tell.
const MEAN_BYTES_PLAIN: u64 = 38;

/// What the reader has made too much so far.
#[derive(Default)]
pub(super) struct Unsampled {
    blocks: f64,
    bytes: f64,
}

impl Unsampled {
    /// Blocks and their bytes as they are to be written. Of blocks that have no bytes none is: the reader would divide by 0. Nor
    /// are those that have less than one each in the mean, of which most have none.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the reader has floats, and casts saturate"
    )]
    pub(super) fn written(&mut self, blocks: u64, bytes: u64) -> (u64, u64) {
        if blocks == 0 || bytes < blocks {
            return (0, bytes);
        }
        if bytes / blocks >= MEAN_BYTES_PLAIN && self.blocks < 1.0 && self.bytes < 1.0 {
            return (blocks, bytes);
        }
        let (wanted_blocks, wanted_bytes) = (blocks as f64 - self.blocks, bytes as f64 - self.bytes);
        let part = -(-(bytes as f64) / blocks as f64).exp_m1();
        let up = |wanted: f64| ((wanted * part - ROUNDING).ceil() as u64).max(1);
        let (mut blocks, mut bytes) = (up(wanted_blocks), up(wanted_bytes));
        // Rounding and what is left out move the mean, and so the factor.
        for _ in 0..STEPS_MAX {
            let [read_blocks, read_bytes] = read(blocks, bytes);
            match (read_blocks < wanted_blocks - ROUNDING, read_bytes < wanted_bytes - ROUNDING) {
                (true, _) => blocks += 1,
                (false, true) => bytes += 1,
                (false, false) => break,
            }
        }
        let [read_blocks, read_bytes] = read(blocks, bytes);
        self.blocks = read_blocks - wanted_blocks;
        self.bytes = read_bytes - wanted_bytes;
        (blocks, bytes)
    }
}

/// Blocks and bytes that are added at most where rounding up was not enough.
const STEPS_MAX: usize = 8;

/// What calculating may be off, in blocks and bytes: nothing is rounded up for less.
const ROUNDING: f64 = 1e-6;

/// What google-pprof makes of a line's blocks and bytes.
#[expect(clippy::cast_precision_loss, reason = "as the reader does")]
fn read(blocks: u64, bytes: u64) -> [f64; 2] {
    let mean = bytes as f64 / blocks as f64;
    let factor = 1.0 / (1.0 - (-mean).exp());
    [blocks as f64 * factor, bytes as f64 * factor]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_has_a_usual_size_is_written_as_it_is() {
        for (blocks, bytes) in
            [(0, 0), (1, 38), (1, 16), (1, 24), (100, 3200), (7, 1 << 40), (0, 4096), (1_000, 20_000)]
        {
            assert_eq!(Unsampled::default().written(blocks, bytes), (blocks, bytes));
        }
    }

    #[test]
    fn small_blocks_are_written_so_that_they_are_read_right() {
        for (blocks, bytes, expected) in [
            (1, 1, (1, 1)),
            (1000, 1000, (633, 633)),
            (1_000_000, 3_000_000, (950_213, 2_850_639)),
            (10_000_000, 160_000_000, (9_999_999, 159_999_982)),
            // What has no bytes would have the reader divide by 0.
            (5, 0, (0, 0)),
            (5, 4, (0, 4)),
        ] {
            let written = Unsampled::default().written(blocks, bytes);
            assert_eq!(written, expected, "{blocks} of {bytes}");
            if written.0 > 0 {
                let [read_blocks, read_bytes] = read(written.0, written.1);
                #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                let off = (read_blocks - blocks as f64, read_bytes - bytes as f64);
                assert!((-2e-6..2.0).contains(&off.0) && (-2e-6..6.0).contains(&off.1), "{blocks} of {bytes}: {off:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn sums_are_never_too_small_and_what_is_too_much_is_left_out_later(
            lines in proptest::collection::vec((1..2000_u64, 1..60_u64), 0..40),
        ) {
            let mut unsampled = Unsampled::default();
            let mut sums = [0.0, 0.0];
            let mut wanted = [0.0, 0.0];
            for (blocks, bytes) in lines.into_iter().map(|(blocks, mean)| (blocks, blocks * mean)).chain([(1 << 20, 1 << 32)]) {
                let written = unsampled.written(blocks, bytes);
                let read = read(written.0, written.1);
                #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                for (i, amount) in [blocks as f64, bytes as f64].into_iter().enumerate() {
                    wanted[i] += amount;
                    sums[i] += read[i];
                    prop_assert!(sums[i] - wanted[i] > -1e-3, "{sums:?} is less than {wanted:?}");
                }
            }
            for i in 0..2 {
                prop_assert!(sums[i] - wanted[i] < 2.0, "{sums:?} is more than {wanted:?}");
            }
        }
    }
}
