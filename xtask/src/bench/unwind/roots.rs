//! Whether stacks that count as complete really begin where a process or a thread begins. A table that ends stacks too
//! early would look good otherwise.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::bench::recording::{Frame, Report};

/// What threads begin with in the C libraries.
const THREAD_STARTS: [&str; 4] = ["clone3", "__clone3", "clone", "__clone"];

/// Bytes of entry code, which calls once and never returns.
const ENTRY_BYTES: u64 = 64;

/// Addresses keep their place within a page wherever a module is loaded.
const PAGE_BYTES: u64 = 4096;

/// The share of blocks with complete stacks whose outermost frame is entry code or a thread's start.
pub(super) fn share(report: &Report) -> f64 {
    let mut entries = HashMap::new();
    let (mut all, mut rooted) = (0.0, 0.0);
    let callsites = report.targets.iter().flat_map(|target| &target.callsites);
    for callsite in callsites.filter(|callsite| callsite.end.as_deref() == Some("complete")) {
        all += callsite.alloc_count;
        if callsite.stack.last().is_some_and(|frame| is_root(frame, &mut entries)) {
            rooted += callsite.alloc_count;
        }
    }
    if all > 0.0 { rooted / all } else { 0.0 }
}

fn is_root(frame: &Frame, entries: &mut HashMap<String, Option<u64>>) -> bool {
    if frame.function.as_deref().is_some_and(|name| THREAD_STARTS.contains(&name)) {
        return true;
    }
    let Some(module) = &frame.module else { return false };
    let entry = *entries.entry(module.clone()).or_insert_with(|| entry(module));
    let address = frame.address.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    matches!((address, entry), (Some(address), Some(entry)) if is_in_entry(address, entry))
}

/// Whether a return address lies in entry code, as far as its place within a page tells.
fn is_in_entry(address: u64, entry: u64) -> bool {
    (1..=ENTRY_BYTES).contains(&(address.wrapping_sub(entry) % PAGE_BYTES))
}

/// The entry point in an ELF header: the word at byte 24. Its segment's address and place in the file agree within a page.
fn entry(module: &str) -> Option<u64> {
    let mut word = [0; 8];
    File::open(module).ok()?.read_exact_at(&mut word, 24).ok()?;
    Some(u64::from_le_bytes(word)).filter(|&entry| entry != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_code_is_recognised_by_its_place_in_the_page() {
        assert!(is_in_entry(0x7f00_0012_30a1, 0x1080));
        assert!(is_in_entry(0x7f00_0012_4010, 0x0ff0));
        assert!(!is_in_entry(0x7f00_0012_3080, 0x1080));
        assert!(!is_in_entry(0x7f00_0012_30c1, 0x1080));
    }

    #[test]
    fn this_program_has_an_entry() {
        let program = std::env::current_exe().expect("it runs");
        assert!(entry(program.to_str().expect("ASCII")).is_some());
        assert_eq!(entry("/proc/self/no-such-file"), None);
    }
}
