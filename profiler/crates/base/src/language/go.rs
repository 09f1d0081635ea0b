//! Go. Its functions are native code, whose table `object/golang.rs` reads.

use super::facts::{Facts, HeapMark};

pub(super) const FACTS: Facts = Facts {
    name: "Go",
    files: &[],
    // The runtime reserves its heap at this address on 64-bit systems (`mallocinit` in runtime/malloc.go), and names it since 1.25.
    heap_mark: Some(HeapMark { address: 0xc0_0000_0000, name: "Go: " }),
    heap: "Go keeps objects in its own heap",
    remedies: &["record it with `--heap go`"],
    perf_map: None,
    generated_name: None,
    frame_pointers: None,
    frame_type: "go",
    functions: None,
};
