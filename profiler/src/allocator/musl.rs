//! musl's malloc.

use super::spec::AllocatorSpec;

pub(crate) const ALLOCATOR: AllocatorSpec = AllocatorSpec {
    is_c_library: true,
    // Debian has musl as `…/x86_64-linux-musl/libc.so`, the file name of glibc's linker script.
    is_library: |path, file| {
        file.starts_with("ld-musl") || file.starts_with("libc.musl") || file == "libc.so" && path.contains("musl")
    },
    fingerprints: &["__libc_malloc_impl"],
    may_be: |candidate| !candidate.is_executable || candidate.is_static,
    calls_back: &["calloc", "reallocarray", "memalign", "posix_memalign", "valloc"],
    // From the disassembly of 1.2.3.
    is_leaf: |function| function == "malloc",
    calls_known: |_, _| true,
    ..AllocatorSpec::named("musl")
};
