//! jemalloc: its own interface, and all functions under the prefixes that it is built with for use beside libc's malloc.
//! `sallocx` and `nallocx` return sizes and allocate nothing.

use super::spec::{AllocatorSpec, HookSpec, Table};

macro_rules! malloc_family {
    ($prefix:literal) => {
        Table(&[
            HookSpec::free(concat!($prefix, "free"), 0),
            HookSpec::free(concat!($prefix, "free_sized"), 0),
            HookSpec::free(concat!($prefix, "free_aligned_sized"), 0),
            HookSpec::alloc(concat!($prefix, "malloc"), 0),
            HookSpec::alloc(concat!($prefix, "calloc"), 0).times(1),
            HookSpec::realloc(concat!($prefix, "realloc"), 0, 1),
            HookSpec::alloc_out(concat!($prefix, "posix_memalign"), 0, 2),
            HookSpec::alloc(concat!($prefix, "aligned_alloc"), 1),
            HookSpec::alloc(concat!($prefix, "memalign"), 1),
            HookSpec::alloc(concat!($prefix, "valloc"), 0),
            HookSpec::alloc(concat!($prefix, "pvalloc"), 0).page_rounded(),
        ])
    };
}

macro_rules! own_family {
    ($prefix:literal) => {
        Table(&[
            HookSpec::free(concat!($prefix, "dallocx"), 0),
            HookSpec::free(concat!($prefix, "sdallocx"), 0),
            HookSpec::alloc(concat!($prefix, "mallocx"), 0),
            HookSpec::realloc(concat!($prefix, "rallocx"), 0, 1),
            HookSpec::resize(concat!($prefix, "xallocx"), 0, 1),
        ])
    };
}

pub(crate) const ALLOCATOR: AllocatorSpec = AllocatorSpec {
    is_library: |_, file| file.starts_with("libjemalloc"),
    fingerprints: &["mallocx"],
    own_functions: PREFIXED,
    plain_functions: own_family!(""),
    is_required: |function| plain(function) != function && REQUIRED_FUNCTIONS.contains(&plain(function)),
    is_leaf,
    calls_known: |_, _| true,
    ..AllocatorSpec::named("jemalloc")
};

/// Both families of functions under each prefix: jemalloc's usual one, and those of the Rust crates `tikv-jemalloc-sys` and
/// `jemalloc-sys`.
const PREFIXED: &[Table] = &[
    malloc_family!("je_"),
    own_family!("je_"),
    malloc_family!("_rjem_"),
    own_family!("_rjem_"),
    malloc_family!("_rjem_je_"),
    own_family!("_rjem_je_"),
];

/// Unprefixed names of the functions that Rust programs call.
const REQUIRED_FUNCTIONS: &[&str] =
    &["malloc", "free", "calloc", "realloc", "mallocx", "rallocx", "dallocx", "sdallocx"];

fn plain(function: &str) -> &str {
    let longest_first = ["_rjem_je_", "_rjem_", "je_"];
    longest_first.iter().find_map(|prefix| function.strip_prefix(prefix)).unwrap_or(function)
}

/// Whether a function calls no hooked one, from the disassembly of 5.3.0. No function of the tables is called by a public name
/// except those omitted here, at any level of optimisation. jemalloc's operators call `malloc` if memory is exhausted, which is
/// sampled as a separate allocation. The aligned operators call `aligned_alloc`.
fn is_leaf(function: &str) -> bool {
    const LEAVES: &str = "malloc calloc realloc posix_memalign aligned_alloc memalign valloc mallocx rallocx xallocx _Znwm \
                          _Znam _ZnwmRKSt9nothrow_t _ZnamRKSt9nothrow_t";
    LEAVES.split(' ').any(|leaf| leaf == plain(function))
}
