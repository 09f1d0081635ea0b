//! The GNU C library's malloc.

use super::spec::{AllocatorSpec, DEFINING_FUNCTION, same_code};
use crate::process::definitions::Candidate;

pub(crate) const ALLOCATOR: AllocatorSpec = AllocatorSpec {
    title: "glibc",
    is_c_library: true,
    is_library: |_, file| file.starts_with("libc.so") || file.starts_with("libc-"),
    fingerprints: &["gnu_get_libc_version", "__libc_malloc"],
    may_be,
    calls_back: &["reallocarray"],
    // From the disassembly of Debian 12's 2.36.
    is_leaf: |function| matches!(function, "malloc" | "calloc"),
    calls_known: |_, _| true,
    ..AllocatorSpec::named("libc")
};

/// A program may export `__libc_malloc` to replace libc's (chromium does), and other allocators export it too.
fn may_be(candidate: &Candidate) -> bool {
    if candidate.is_executable {
        // Another malloc may be linked in before glibc's.
        candidate.is_static && same_code(candidate, DEFINING_FUNCTION, "__libc_malloc")
    } else {
        !candidate.functions("gnu_get_libc_version").is_empty()
    }
}

/// Whether the module is glibc's dynamic linker, which before 2.31 exported a malloc for its own use until libc is loaded.
pub(crate) fn is_dynamic_linker(candidate: &Candidate) -> bool {
    let file = candidate.path.rsplit('/').next().unwrap_or_default();
    !candidate.is_executable && ["ld-linux", "ld-2.", "ld.so"].iter().any(|start| file.starts_with(start))
}
