//! The C libraries' mallocs: glibc's and musl's.

use super::spec::{AllocatorSpec, DEFINING_FUNCTION, same_code};
use crate::process::definitions::Candidate;

pub(crate) const GLIBC: AllocatorSpec = AllocatorSpec {
    title: "glibc",
    is_c_library: true,
    is_library: |_, file| file.starts_with("libc.so") || file.starts_with("libc-"),
    fingerprints: &["gnu_get_libc_version", "__libc_malloc"],
    may_be,
    calls_back: &["reallocarray"],
    // Source: the disassembly of Debian 12's 2.36.
    is_leaf: |function| matches!(function, "malloc" | "calloc"),
    calls_known: |_, _| true,
    ..AllocatorSpec::named("libc")
};

pub(crate) const MUSL: AllocatorSpec = AllocatorSpec {
    is_c_library: true,
    // Debian has musl as `…/x86_64-linux-musl/libc.so`, the file name of glibc's linker script.
    is_library: |path, file| {
        file.starts_with("ld-musl") || file.starts_with("libc.musl") || file == "libc.so" && path.contains("musl")
    },
    fingerprints: &["__libc_malloc_impl"],
    may_be: |candidate| !candidate.is_executable || candidate.is_static,
    calls_back: &["calloc", "reallocarray", "memalign", "posix_memalign", "valloc"],
    // Source: the disassembly of 1.2.3.
    is_leaf: |function| function == "malloc",
    calls_known: |_, _| true,
    ..AllocatorSpec::named("musl")
};

/// Whether a module may be glibc. A program may export `__libc_malloc` to replace libc's (chromium does), and other allocators
/// export it too.
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
