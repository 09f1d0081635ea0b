//! Finds where the first function of a thread is called in code without unwind information, such as musl's, so that stacks end
//! there as complete: `exit(main(argc, argv, envp))`, `pthread_exit(start_routine(argument))`.

use super::arch::PASSES_RESULT_BYTES_MAX;
use super::cfi::Functions;
use super::compact::gaps;
use super::image::Image;
use super::table;

/// Modules with larger gaps are not C libraries. musl's have 500 KB.
const GAP_BYTES_MAX: u64 = 16 << 20;
/// Real modules have three.
const FOUND_MAX: usize = 16;

/// Ends stacks at such calls; returns address and length of the code that identified them.
pub(super) fn mark(image: &Image<'_>, spans: &mut Functions) -> Vec<(u64, u32)> {
    if image.exits.is_empty() {
        return Vec::new();
    }
    let gaps = gaps(image, spans);
    if gaps.iter().map(|(start, end)| end - start).sum::<u64>() > GAP_BYTES_MAX {
        return Vec::new();
    }
    let mut returns: Vec<u64> = gaps.iter().flat_map(|&(start, end)| in_gap(image, start, end)).collect();
    returns.truncate(FOUND_MAX);
    for &address in &returns {
        // Return addresses are looked up by the byte before them, the last one of the call.
        if !spans.insert(address - 1, address, table::END) {
            break;
        }
    }
    let call = image.processor.call_bytes_max();
    let length = call + PASSES_RESULT_BYTES_MAX;
    returns.iter().map(|address| (address - call as u64, u32::try_from(length).unwrap_or(0))).collect()
}

/// Return addresses.
fn in_gap(image: &Image<'_>, start: u64, end: u64) -> Vec<u64> {
    let code = image.read_code(start, u32::try_from(end - start).unwrap_or(u32::MAX));
    let call = image.processor.call_bytes_max();
    let ends_stack = |at: &usize| {
        let target = image.processor.passes_result_to(&code[*at..], start + *at as u64);
        target.is_some_and(|target| image.exits.contains(&target))
            && image.processor.is_indirect_call(&code[at - call..*at])
    };
    let places = (call..code.len()).filter(ends_stack);
    places.map(|at| start + at as u64).collect()
}
