//! Whether code that no unwind information covers is to be unwound by frame pointers.
//!
//! A walk along rbp through code that uses it for something else skips frames unnoticed. So the code itself is asked:
//! chromium's 236 MB have 8,852 functions with unwind information and a frame pointer in nearly all others, while a
//! library with some assembly, or musl's loader, has neither in its gaps. Bytes of code per function would not tell these
//! apart, nor would they find the builtins of V8, which lie in a gap of node and keep frame pointers.

use object::ReadRef;
use sha2::{Digest as _, Sha256};

use super::image::Image;
use super::spans::Spans;

/// Shortest gap that is looked at, in bytes. Shorter ones are padding.
const GAP_BYTES_MIN: u64 = 64;

/// Samples of code that are looked at.
const SAMPLES: u64 = 256;

/// Bytes of one sample.
const SAMPLE_BYTES: u64 = 4096;

/// Prologues that must be seen at least.
const PROLOGUES_MIN: u64 = 4;

/// Bytes of code for which there must be one prologue. Compilers' functions have 100 to 1,000 bytes, and some gaps are
/// constants that the linker put beside the code.
const BYTES_PER_PROLOGUE_MAX: u64 = 4096;

/// `push %rbp; mov %rsp,%rbp`, in both of its encodings.
const PROLOGUES: [&[u8]; 2] = [&[0x55, 0x48, 0x89, 0xe5], &[0x55, 0x48, 0x8b, 0xec]];

/// The code that was sampled, so that a table from the cache can be compared with the file at hand.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Samples {
    /// Link addresses and lengths in bytes.
    pub(super) places: Vec<(u64, u32)>,
    /// SHA-256 of the bytes there.
    pub(super) digest: [u8; 32],
}

impl Samples {
    fn of<'data, R: ReadRef<'data>>(image: &Image<'data, R>, places: Vec<(u64, u32)>) -> Self {
        let mut hash = Sha256::new();
        for &(address, length) in &places {
            hash.update(read(image, address, length));
        }
        Self { places, digest: hash.finalize().into() }
    }

    /// Whether this image has the same code at these places.
    pub fn are_of<'data, R: ReadRef<'data>>(&self, image: &Image<'data, R>) -> bool {
        Self::of(image, self.places.clone()).digest == self.digest
    }
}

/// The code at a link address, empty where it cannot be read.
fn read<'data, R: ReadRef<'data>>(image: &Image<'data, R>, address: u64, length: u32) -> &'data [u8] {
    let code = image.code_at(address);
    code.and_then(|code| image.read_code(code, address, length.into())).unwrap_or_default()
}

/// Whether the functions in a module's gaps set up frame pointers, and the sampled code.
pub(crate) fn fill_gaps<'data, R: ReadRef<'data>>(image: &Image<'data, R>, spans: &Spans) -> (bool, Samples) {
    let samples = Samples::of(image, places(&gaps(image, spans)));
    let (mut bytes_read, mut found) = (0, 0);
    for &(address, length) in &samples.places {
        let bytes = read(image, address, length);
        if bytes.is_empty() {
            return (false, samples);
        }
        bytes_read += bytes.len() as u64;
        found += bytes.windows(4).filter(|window| PROLOGUES.contains(window)).count() as u64;
    }
    (found >= PROLOGUES_MIN && bytes_read / found <= BYTES_PER_PROLOGUE_MAX, samples)
}

/// Samples at even distances over all gaps together, whatever their number.
fn places(gaps: &[(u64, u64)]) -> Vec<(u64, u32)> {
    let total: u64 = gaps.iter().map(|(start, end)| end - start).sum();
    let stride = (total / SAMPLES).max(SAMPLE_BYTES);
    let mut places = Vec::new();
    let mut skip = 0;
    for &(start, end) in gaps {
        let mut address = start.saturating_add(skip);
        while address < end {
            places.push((address, u32::try_from(SAMPLE_BYTES.min(end - address)).unwrap_or(0)));
            address = address.saturating_add(stride);
        }
        skip = address - end;
    }
    places
}

/// Stretches of executable segments that no function covers.
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
