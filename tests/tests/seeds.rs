//! The cases that heapprofd, gperftools and Chrome try their heap profilers with, and their numbers, on this profiler.
//! `docs/seeds.md` has the table: which case of theirs is which test here, also those in other files.

#[path = "seeds/accurate.rs"]
mod accurate;
#[path = "seeds/drawn.rs"]
mod drawn;
#[path = "seeds/processes.rs"]
mod processes;
#[path = "seeds/sessions.rs"]
mod sessions;
#[path = "seeds/staged.rs"]
mod staged;
#[path = "seeds/windows.rs"]
mod windows;

use heapbpf_tests::heapbpf::{Heapbpf, text};
use heapbpf_tests::report::Counts;
use serde_json::Value;

/// Counts of blocks and bytes: of what was allocated and of what was freed.
const fn counts(allocated: (u64, u64), freed: (u64, u64)) -> Counts {
    Counts {
        alloc_count: allocated.0,
        alloc_bytes: allocated.1,
        free_count: freed.0,
        free_bytes: freed.1,
        live_count: allocated.0 - freed.0,
        live_bytes: allocated.1 - freed.1,
    }
}

/// A JSON report as it stands in the file, for what `Report` does not read.
#[track_caller]
fn json(heapbpf: &Heapbpf, name: &str) -> Value {
    serde_json::from_str(&text(&heapbpf.file(name))).expect("the report is JSON")
}

/// Fails unless this is so many bytes or blocks times a whole number, whose parts are counted one by one.
#[track_caller]
fn assert_multiple(bytes: u64, count: u64, size: u64) {
    assert_eq!(bytes, count * size, "{bytes} bytes in {count} blocks are not blocks of {size}");
}
