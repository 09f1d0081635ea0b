//! Every allocator in every way to link it: blocks and bytes of all its functions are what the target counted itself, to
//! the byte at an interval of 1, and as near as sampling theory says at 4 KiB.
//!
//! A cell is a program with an allocator. Its targets (`matrix.c`, `matrix.cpp`, `rust-targets`) call the allocator's
//! functions directly, through calls that fail, and on four threads at once. Their own bookkeeping allocates nothing, so
//! that the totals have to be the ledger's too: what is more is a call inside a call that counted twice.
//!
//! # Four sigma
//!
//! Some 1,500 estimates are held to 4σ. A normal one exceeds that once in 16,000 times, so one of them does so every ten
//! runs. Then the cell is drawn again, and fails if the same estimate errs to the same side by 4σ once more: by chance, once
//! in a hundred thousand runs. One that is off by 6σ fails at once, which comes by chance no more often. Double counting is
//! off by far more than 4σ, each time: 10,000 blocks a function make σ less than 4 %.

#[path = "matrix/cell.rs"]
mod cell;
#[path = "matrix/check.rs"]
mod check;

use cell::Cell;

/// Two tests for each cell, in a module of its name.
macro_rules! cells {
    ($($name:ident: $cell:expr,)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn is_counted_to_the_byte() {
                check::exact(&$cell);
            }

            #[test]
            fn is_estimated_within_four_sigma() {
                check::sampled(&$cell);
            }
        }
    )*};
}

const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
const JEMALLOC_ARCHIVE: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.a";
const TCMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4";
const MIMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2";

/// Functions of jemalloc that a prefix goes before.
const JEMALLOC_FUNCTIONS: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "free",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "malloc_usable_size",
    "mallocx",
    "rallocx",
    "xallocx",
    "sallocx",
    "dallocx",
    "sdallocx",
    "nallocx",
];

/// What tcmalloc names `tc_…`, it names as the C library does, too.
const TC_FAMILY: &str = "-DTCMALLOC -DPREFIX=tc_ -DNO_ALIGNED_ALLOC -DNO_REALLOCARRAY -DHAS_PVALLOC -DHAS_CFREE";
const MI_FAMILY: &str = "-DMIMALLOC -DPREFIX=mi_ -DHAS_PVALLOC -DHAS_CFREE";

// The malloc family.
cells! {
    glibc: Cell::c("libc").flags("-DHAS_PVALLOC"),
    glibc_static: Cell::c("libc").flags("-static -DHAS_PVALLOC"),
    musl: Cell::c("musl").compiler("musl-gcc"),
    musl_static: Cell::c("musl").compiler("musl-gcc").flags("-static"),
    jemalloc_preloaded: Cell::c("jemalloc").preload(JEMALLOC),
    jemalloc_linked: Cell::c("jemalloc").libraries("-ljemalloc"),
    jemalloc_in_the_executable: Cell::c("jemalloc").libraries("-l:libjemalloc.a -lm -lstdc++"),
    tcmalloc_preloaded: Cell::c("tcmalloc").flags("-DHAS_PVALLOC").preload(TCMALLOC),
    tcmalloc_linked: Cell::c("tcmalloc").flags("-DHAS_PVALLOC -DHAS_CFREE").libraries("-ltcmalloc_minimal"),
    tcmalloc_in_the_executable: Cell::c("tcmalloc").flags("-DHAS_PVALLOC").libraries("-l:libtcmalloc_minimal.a -lm -lstdc++"),
    mimalloc_preloaded: Cell::c("mimalloc").flags("-DHAS_PVALLOC").preload(MIMALLOC),
    own_allocator: Cell::c("matrix").flags("-DARENA -DNO_REALLOCARRAY"),
    own_allocator_static: Cell::c("matrix").flags("-DARENA -DNO_REALLOCARRAY -static"),
    mimalloc_linked: Cell::c("mimalloc").flags("-DHAS_PVALLOC -DHAS_CFREE").libraries("-lmimalloc"),
}

// What allocators have of their own, under names of their own.
cells! {
    jemalloc_own_functions: Cell::c("jemalloc").flags("-DJEMALLOC").libraries("-ljemalloc"),
    jemalloc_own_functions_in_the_executable:
        Cell::c("jemalloc").flags("-DJEMALLOC").libraries("-l:libjemalloc.a -lm -lstdc++"),
    jemalloc_prefixed: Cell::c("jemalloc").flags("-DJEMALLOC -DPREFIX=je_ -DNO_REALLOCARRAY")
        .prefixed(JEMALLOC_ARCHIVE, "je_", JEMALLOC_FUNCTIONS).libraries("-lm -lstdc++"),
    tcmalloc_own_functions: Cell::c("tcmalloc").flags(TC_FAMILY).libraries("-ltcmalloc_minimal"),
    mimalloc_own_functions: Cell::c("mimalloc").flags(MI_FAMILY).libraries("-lmimalloc"),
}

// Operators new and delete.
cells! {
    cxx_glibc: Cell::cxx("libc"),
    cxx_glibc_static: Cell::cxx("libc").flags("-static"),
    cxx_jemalloc_preloaded: Cell::cxx("jemalloc").preload(JEMALLOC),
    cxx_jemalloc_linked: Cell::cxx("jemalloc").libraries("-ljemalloc"),
    cxx_jemalloc_in_the_executable: Cell::cxx("jemalloc").libraries("-l:libjemalloc.a -lm"),
    cxx_tcmalloc_preloaded: Cell::cxx("tcmalloc").preload(TCMALLOC),
    cxx_tcmalloc_linked: Cell::cxx("tcmalloc").libraries("-ltcmalloc_minimal"),
    cxx_tcmalloc_in_the_executable: Cell::cxx("tcmalloc").libraries("-l:libtcmalloc_minimal.a"),
    cxx_mimalloc_preloaded: Cell::cxx("mimalloc").preload(MIMALLOC),
    cxx_mimalloc_linked: Cell::cxx("mimalloc").libraries("-lmimalloc"),
}

// Rust's global allocators.
cells! {
    rust_system: Cell::rust("libc", "system"),
    rust_jemalloc: Cell::rust("jemalloc", "jemalloc"),
    rust_mimalloc: Cell::rust("mimalloc", "mimalloc"),
}

/// Operators that fail by throwing, in the C++ runtime and in allocators. mimalloc's end the program instead.
mod what_throws_is_survived_and_counts_nothing {
    use super::*;

    #[test]
    fn glibc() {
        check::throwing(&Cell::cxx("libc"));
    }

    #[test]
    fn glibc_static() {
        check::throwing(&Cell::cxx("libc").flags("-static"));
    }

    #[test]
    fn jemalloc_linked() {
        check::throwing(&Cell::cxx("jemalloc").libraries("-ljemalloc"));
    }

    #[test]
    fn jemalloc_in_the_executable() {
        check::throwing(&Cell::cxx("jemalloc").libraries("-l:libjemalloc.a -lm"));
    }

    #[test]
    fn tcmalloc_linked() {
        check::throwing(&Cell::cxx("tcmalloc").libraries("-ltcmalloc_minimal"));
    }

    #[test]
    fn tcmalloc_in_the_executable() {
        check::throwing(&Cell::cxx("tcmalloc").libraries("-l:libtcmalloc_minimal.a"));
    }
}

/// An exception does not get past a return that is probed. Only a session link can leave the return of a single call alone,
/// so with other links an operator that may throw stays without a probe: said, and the target unharmed.
#[test]
fn without_session_links_an_operator_that_throws_is_left_alone() {
    for (heap, libraries) in [("jemalloc", "-ljemalloc"), ("tcmalloc", "-ltcmalloc_minimal")] {
        check::throwing_left_alone(&Cell::cxx(heap).libraries(libraries));
    }
}

/// The rest of the tests would say nothing if a target left out what it is for.
#[test]
fn targets_call_what_they_are_for() {
    let called = |cell: &Cell| -> Vec<String> {
        let ledger = cell.start().work("exact");
        let sites = ledger.sites.into_iter().filter(|site| site.counts.alloc_count > 0);
        sites.map(|site| site.function).collect()
    };
    let check = |cell: &Cell, expected: &[&str]| {
        let called = called(cell);
        for function in expected {
            assert!(called.iter().any(|it| it == function), "{cell} does not call `{function}` but {called:?}");
        }
    };
    check(
        &Cell::c("libc").flags("-DHAS_PVALLOC"),
        &["mallocs", "callocs", "reallocs", "vallocs", "pvallocs", "memaligns"],
    );
    check(&Cell::c("jemalloc").flags("-DJEMALLOC").libraries("-ljemalloc"), &["mallocxs", "rallocxs", "xallocxs"]);
    check(&Cell::c("tcmalloc").flags(TC_FAMILY).libraries("-ltcmalloc_minimal"), &["tc_news", "tc_mallocs_skipping"]);
    check(
        &Cell::c("mimalloc").flags(MI_FAMILY).libraries("-lmimalloc"),
        &["mi_expands", "mi_heap_mallocs", "mi_reallocfs"],
    );
    check(&Cell::cxx("libc"), &["news", "news_array_aligned_nothrow"]);
}
