//! Machine code of interpreter loops.

use std::ops::Range;

use super::arch::branches_out;
use crate::object::image::Image;
use crate::object::module::Module;
use crate::object::symbols::Definition;
use crate::unwind::ranges::inner_parts;

/// Bytes of a loop: real ones have up to 90 KB.
const LOOP_BYTES_MAX: u64 = 1 << 20;

/// An interpreter loop, then the part of it that the compiler considered cold.
pub(super) fn loops(image: &Image, module: &Module, evaluate: &Definition) -> Vec<Range<u64>> {
    let start = evaluate.address.0;
    let hot = start..start.saturating_add(evaluate.size_bytes.min(LOOP_BYTES_MAX));
    let code = module.file_offset(evaluate.address).map(|at| image.read(at, hot.end - hot.start, LOOP_BYTES_MAX));
    let outside = code.and_then(Result::ok).map(|code| branches_out(&code, start)).unwrap_or_default();
    // Jumps also lead to other functions.
    let cold = inner_parts(image, &outside).into_iter().max_by_key(|range| range.end - range.start);
    [Some(hot), cold].into_iter().flatten().collect()
}
