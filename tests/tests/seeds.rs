//! Test cases of heapprofd, gperftools and Chrome's heap profiler, with their numbers. `docs/seeds.md` maps their cases
//! to tests here and in other files.

mod accurate;
mod processes;
mod sampling;
mod sessions;
mod staged;
mod windows;

use heapbpf_tests::heapbpf::{Heapbpf, text};
use heapbpf_tests::report::Counts;
use serde_json::Value;

/// Allocated and freed counts of blocks and bytes.
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

/// Reads a JSON report with fields that `Report` lacks.
#[track_caller]
fn json(heapbpf: &Heapbpf, name: &str) -> Value {
    serde_json::from_str(&text(&heapbpf.file(name))).expect("the report is JSON")
}

/// Fails unless the amounts are multiples of one block size and count.
#[track_caller]
fn assert_multiple(bytes: u64, count: u64, size: u64) {
    assert_eq!(bytes, count * size, "{bytes} bytes in {count} blocks are not blocks of {size}");
}
