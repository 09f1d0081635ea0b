//! Finds the code that a signal's handler returns to, where it has no unwind information, so that stacks continue in the function
//! that the signal has interrupted. On x86-64 C libraries describe it.

use super::cfi::Functions;
use super::compact::all_gaps;
use super::image::Image;
use super::table;

/// The vDSO and musl have less.
const GAP_BYTES_MAX: u64 = 16 << 20;
/// Of the only processor that has such code.
const INSTRUCTION_BYTES: usize = 4;
/// There is one per module.
const FOUND_MAX: usize = 4;

/// Adds it as functions; returns address and length of the code that identified them.
pub(super) fn mark(image: &Image<'_>, spans: &mut Functions) -> Vec<(u64, u32)> {
    let Some((trampoline, before)) = image.processor.signal_trampoline() else { return Vec::new() };
    let gaps = all_gaps(image, spans);
    if gaps.iter().map(|(start, end)| end - start).sum::<u64>() > GAP_BYTES_MAX {
        return Vec::new();
    }
    let in_gap = |&(start, end): &(u64, u64)| {
        let code = image.read_code(start, u32::try_from(end - start).unwrap_or(u32::MAX));
        let at = (0..code.len()).step_by(INSTRUCTION_BYTES).find(|&at| code[at..].starts_with(trampoline))?;
        Some((start, start + at as u64))
    };
    let length = trampoline.len() as u64;
    let mut found = Vec::new();
    for (gap, address) in gaps.iter().filter_map(in_gap).take(FOUND_MAX) {
        if !spans.insert(address.saturating_sub(before).max(gap), address + length, table::SIGNAL) {
            break;
        }
        found.push((address, u32::try_from(length).unwrap_or(0)));
    }
    found
}
