//! Puts functions in order of address and leaves no two of them on the same byte.

use super::cfi::{Function, FunctionRow, Functions};
use super::image::Code;
use super::rules;
use super::table::BuildStats;

/// Bytes from the entry point on that count as entry code where no function covers it. The C libraries' `_start` has
/// 20 to 50; it calls once and never returns.
const ENTRY_BYTES: u64 = 64;

/// Functions by address, without overlap.
#[derive(Debug)]
pub(crate) struct Spans {
    /// The functions.
    pub functions: Vec<Function>,
    /// Their rows.
    pub rows: Vec<FunctionRow>,
}

/// Sorts functions and resolves overlaps as the C++ runtime's search does: the function with the highest start at or
/// before an address decides, even if it ends before that address. Of functions with one start the first stays.
pub(crate) fn resolve(functions: Functions, entry: Option<u64>, code: &[Code], stats: &mut BuildStats) -> Spans {
    let Functions { mut functions, mut rows } = functions;
    functions.sort_by_key(|function| function.start);
    let before = functions.len();
    functions.dedup_by_key(|function| function.start);
    stats.functions_overlapping += (before - functions.len()) as u64;
    for i in 1..functions.len() {
        let next_start = functions[i].start;
        let function = &mut functions[i - 1];
        if function.end > next_start {
            function.end = next_start;
            stats.functions_overlapping += 1;
        }
    }
    if let Some(entry) = entry {
        mark_entry(&mut functions, &mut rows, entry, code);
    }
    stats.covered_bytes = functions.iter().map(|function| function.end - function.start).sum();
    Spans { functions, rows }
}

/// Has stacks end at the entry point where its code has no unwind information: musl's, and static executables'.
fn mark_entry(functions: &mut Vec<Function>, rows: &mut Vec<FunctionRow>, entry: u64, code: &[Code]) {
    let next = functions.partition_point(|function| function.start <= entry);
    if next.checked_sub(1).and_then(|i| functions.get(i)).is_some_and(|function| entry < function.end) {
        return;
    }
    let Some(segment) = code.iter().find(|code| (code.start..code.end).contains(&entry)) else { return };
    let limit = functions.get(next).map_or(segment.end, |function| function.start.min(segment.end));
    let end = limit.min(entry.saturating_add(ENTRY_BYTES));
    let Ok(first_row) = u32::try_from(rows.len()) else { return };
    rows.push(FunctionRow { offset: 0, rule: rules::END });
    functions.insert(next, Function { start: entry, end, first_row, row_count: 1 });
}
