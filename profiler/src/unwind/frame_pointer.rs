//! Decides whether code without unwind information is unwound by frame pointers.
//!
//! A walk along rbp through code that uses it for something else silently skips frames. So the code is sampled for prologues:
//! chromium's 236 MB have 8,852 functions with unwind information and a frame pointer in nearly all others, while a library with some
//! assembly, or musl's loader, has neither in its gaps. Bytes of code per function would not distinguish these, nor would they detect
//! the builtins of V8, which are in a gap of node and keep frame pointers.

use object::ReadRef;

use super::arch::PROLOGUES;
use super::compact::Spans;
use super::image::{Image, Samples};

/// Minimum gap to sample, in bytes. Shorter ones are padding.
const GAP_BYTES_MIN: u64 = 64;

/// Maximum number of samples.
const SAMPLES: u64 = 256;

/// Length of a sample in bytes.
const SAMPLE_BYTES: u64 = 4096;

/// Minimum number of prologues.
const PROLOGUES_MIN: u64 = 4;

/// Maximum bytes of code per prologue. Compilers' functions have 100 to 1,000 bytes, and some gaps are constants that the linker put
/// beside the code.
const BYTES_PER_PROLOGUE_MAX: u64 = 4096;

/// Whether the functions in a module's gaps set up frame pointers; also returns the sampled code.
pub(crate) fn fill_gaps<'data, R: ReadRef<'data>>(image: &Image<'data, R>, spans: &Spans) -> (bool, Samples) {
    let samples = Samples::of(image, sample_ranges(&gaps(image, spans)));
    let (mut bytes_read, mut found) = (0, 0);
    for &(address, length) in &samples.ranges {
        let bytes = image.read_code_at(address, length);
        if bytes.is_empty() {
            return (false, samples);
        }
        bytes_read += bytes.len() as u64;
        found += bytes.windows(4).filter(|window| PROLOGUES.contains(window)).count() as u64;
    }
    (found >= PROLOGUES_MIN && bytes_read / found <= BYTES_PER_PROLOGUE_MAX, samples)
}

/// Distributes samples evenly over all gaps.
fn sample_ranges(gaps: &[(u64, u64)]) -> Vec<(u64, u32)> {
    let total: u64 = gaps.iter().map(|(start, end)| end - start).sum();
    let stride = (total / SAMPLES).max(SAMPLE_BYTES);
    let mut ranges = Vec::new();
    let mut skip = 0;
    for &(start, end) in gaps {
        let mut address = start.saturating_add(skip);
        while address < end {
            ranges.push((address, u32::try_from(SAMPLE_BYTES.min(end - address)).unwrap_or(0)));
            address = address.saturating_add(stride);
        }
        skip = address - end;
    }
    ranges
}

/// Ranges of executable segments that no function covers.
fn gaps<'data, R: ReadRef<'data>>(image: &Image<'data, R>, spans: &Spans) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut functions = spans.functions.iter().peekable();
    for code in &image.code {
        let mut start = code.start;
        while let Some(function) = functions.next_if(|function| function.start < code.end) {
            gaps.push((start, function.start));
            start = function.end;
        }
        gaps.push((start, code.end));
    }
    gaps.retain(|(start, end)| end.saturating_sub(*start) >= GAP_BYTES_MIN);
    gaps
}
