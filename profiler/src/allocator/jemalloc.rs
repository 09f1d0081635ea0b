//! jemalloc: its own interface, and all of it once more under the prefixes that it is built with to stand beside libc.
//!
//! `sallocx` and `nallocx` tell sizes and allocate nothing.

use super::spec::HookSpec;

/// The malloc family under a prefix.
macro_rules! malloc_family {
    ($prefix:literal) => {
        &[
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
        ]
    };
}

/// jemalloc's own interface under a prefix: `flags` come last.
macro_rules! own_family {
    ($prefix:literal) => {
        &[
            HookSpec::free(concat!($prefix, "dallocx"), 0),
            HookSpec::free(concat!($prefix, "sdallocx"), 0),
            HookSpec::alloc(concat!($prefix, "mallocx"), 0),
            HookSpec::realloc(concat!($prefix, "rallocx"), 0, 1),
            HookSpec::resize(concat!($prefix, "xallocx"), 0, 1),
        ]
    };
}

/// What jemalloc has beside the malloc family.
pub(crate) const FUNCTIONS: &[HookSpec] = own_family!("");

/// Both families under each prefix: jemalloc's customary one, and those of the Rust crates `tikv-jemalloc-sys` and
/// `jemalloc-sys`.
pub(crate) const PREFIXED: &[&[HookSpec]] = &[
    malloc_family!("je_"),
    own_family!("je_"),
    malloc_family!("_rjem_"),
    own_family!("_rjem_"),
    malloc_family!("_rjem_je_"),
    own_family!("_rjem_je_"),
];

/// Names, behind a prefix, without whose hooks a profile of a prefixed jemalloc is not whole: Rust programs call these.
pub(crate) const REQUIRED_FUNCTIONS: &[&str] =
    &["malloc", "free", "calloc", "realloc", "mallocx", "rallocx", "dallocx", "sdallocx"];

/// The prefixes, the longest first.
pub(crate) const PREFIXES: &[&str] = &["_rjem_je_", "_rjem_", "je_"];
