//! Every allocator in every way to link it: blocks and bytes of all functions equal the target's own counts at an
//! interval of 1, and are within the theoretical sampling error at 4 KiB, with either engine.
//!
//! A cell is a program with an allocator. Its targets (`matrix.c`, `matrix.cpp`, `rust-targets`) call the allocator's
//! functions directly, through failing calls, and on four threads at once. Their ledgers allocate nothing, so that the
//! totals must equal the ledger's too: a surplus is a nested call that was counted twice.
//!
//! Double counting is always found: 10,000 blocks per function make σ less than 4 %.

mod cell;
mod check;

use cell::Cell;

/// The tests of an allocator in a place, in a module of that name.
macro_rules! tests {
    ($name:ident, $cell:expr $(, $when:meta)?) => {
        mod $name {
            use super::*;

            #[test]
            fn is_counted_to_the_byte() {
                check::exact(&$cell);
            }

            #[test]
            $(#[$when])?
            fn is_estimated_within_four_sigma() {
                check::sampled(&$cell);
            }

            #[test]
            fn is_counted_to_the_byte_by_the_inline_engine() {
                check::exact(&$cell.inline());
            }

            #[test]
            $(#[$when])?
            fn is_estimated_within_four_sigma_by_the_inline_engine() {
                check::sampled(&$cell.inline());
            }
        }
    };
}

/// Counts and estimates, by both engines.
macro_rules! cells {
    ($($name:ident: $cell:expr,)*) => {$( tests!($name, $cell); )*};
}

/// Further places of these allocators: estimates take what counts take, and are made at night.
macro_rules! places {
    ($($name:ident: $cell:expr,)*) => {$(
        tests!($name, $cell, ignore = "part of `cargo xtask nightly --suite versions`");
    )*};
}

const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
const JEMALLOC_ARCHIVE: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.a";
const TCMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4";
const MIMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2";

/// Functions of jemalloc that can have a prefix.
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

/// Functions that tcmalloc exports as `tc_…` and under the C library's names.
const TC_FAMILY: &str = "-DTCMALLOC -DPREFIX=tc_ -DNO_ALIGNED_ALLOC -DNO_REALLOCARRAY -DHAS_PVALLOC -DHAS_CFREE";
const MI_FAMILY: &str = "-DMIMALLOC -DPREFIX=mi_ -DHAS_PVALLOC -DHAS_CFREE";

// The malloc family.
cells! {
    glibc: Cell::c("libc").flags("-DHAS_PVALLOC"),
    musl: Cell::c("musl").compiler("musl-gcc"),
    jemalloc_linked: Cell::c("jemalloc").libraries("-ljemalloc"),
    tcmalloc_linked: Cell::c("tcmalloc").flags("-DHAS_PVALLOC -DHAS_CFREE").libraries("-ltcmalloc_minimal"),
    own_allocator: Cell::c("matrix").flags("-DARENA -DNO_REALLOCARRAY"),
    mimalloc_linked: Cell::c("mimalloc").flags("-DHAS_PVALLOC -DHAS_CFREE").libraries("-lmimalloc"),
}

places! {
    glibc_static: Cell::c("libc").flags("-static -DHAS_PVALLOC"),
    musl_static: Cell::c("musl").compiler("musl-gcc").flags("-static"),
    jemalloc_preloaded: Cell::c("jemalloc").preload(JEMALLOC),
    jemalloc_in_the_executable: Cell::c("jemalloc").libraries("-l:libjemalloc.a -lm -lstdc++"),
    tcmalloc_preloaded: Cell::c("tcmalloc").flags("-DHAS_PVALLOC").preload(TCMALLOC),
    tcmalloc_in_the_executable: Cell::c("tcmalloc").flags("-DHAS_PVALLOC").libraries("-l:libtcmalloc_minimal.a -lm -lstdc++"),
    mimalloc_preloaded: Cell::c("mimalloc").flags("-DHAS_PVALLOC").preload(MIMALLOC),
    own_allocator_static: Cell::c("matrix").flags("-DARENA -DNO_REALLOCARRAY -static"),
}

// Functions specific to one allocator.
cells! {
    jemalloc_own_functions: Cell::c("jemalloc").flags("-DJEMALLOC").libraries("-ljemalloc"),
    tcmalloc_own_functions: Cell::c("tcmalloc").flags(TC_FAMILY).libraries("-ltcmalloc_minimal"),
    mimalloc_own_functions: Cell::c("mimalloc").flags(MI_FAMILY).libraries("-lmimalloc"),
}

places! {
    jemalloc_own_functions_in_the_executable:
        Cell::c("jemalloc").flags("-DJEMALLOC").libraries("-l:libjemalloc.a -lm -lstdc++"),
    jemalloc_prefixed: Cell::c("jemalloc").flags("-DJEMALLOC -DPREFIX=je_ -DNO_REALLOCARRAY")
        .prefixed(JEMALLOC_ARCHIVE, "je_", JEMALLOC_FUNCTIONS).libraries("-lm -lstdc++"),
}

// Operators new and delete.
cells! {
    cxx_glibc: Cell::cxx("libc"),
    cxx_jemalloc_linked: Cell::cxx("jemalloc").libraries("-ljemalloc"),
    cxx_tcmalloc_linked: Cell::cxx("tcmalloc").libraries("-ltcmalloc_minimal"),
    cxx_mimalloc_linked: Cell::cxx("mimalloc").libraries("-lmimalloc"),
}

places! {
    cxx_glibc_static: Cell::cxx("libc").flags("-static"),
    cxx_jemalloc_preloaded: Cell::cxx("jemalloc").preload(JEMALLOC),
    cxx_jemalloc_in_the_executable: Cell::cxx("jemalloc").libraries("-l:libjemalloc.a -lm"),
    cxx_tcmalloc_preloaded: Cell::cxx("tcmalloc").preload(TCMALLOC),
    cxx_tcmalloc_in_the_executable: Cell::cxx("tcmalloc").libraries("-l:libtcmalloc_minimal.a"),
    cxx_mimalloc_preloaded: Cell::cxx("mimalloc").preload(MIMALLOC),
}

// Rust's global allocators.
cells! {
    rust_system: Cell::rust("libc", "system"),
    rust_jemalloc: Cell::rust("jemalloc", "jemalloc"),
    rust_mimalloc: Cell::rust("mimalloc", "mimalloc"),
}

/// Operators that throw on failure, in the C++ runtime and in allocators. mimalloc's terminate the program instead.
mod what_throws_is_survived_and_counts_nothing {
    use super::*;

    #[track_caller]
    fn throwing(cell: &Cell) {
        check::throwing(cell);
        check::throwing(&cell.clone().inline());
    }

    #[test]
    fn glibc() {
        throwing(&Cell::cxx("libc"));
    }

    #[test]
    fn glibc_static() {
        throwing(&Cell::cxx("libc").flags("-static"));
    }

    #[test]
    fn jemalloc_linked() {
        throwing(&Cell::cxx("jemalloc").libraries("-ljemalloc"));
    }

    #[test]
    fn jemalloc_in_the_executable() {
        throwing(&Cell::cxx("jemalloc").libraries("-l:libjemalloc.a -lm"));
    }

    #[test]
    fn tcmalloc_linked() {
        throwing(&Cell::cxx("tcmalloc").libraries("-ltcmalloc_minimal"));
    }

    #[test]
    fn tcmalloc_in_the_executable() {
        throwing(&Cell::cxx("tcmalloc").libraries("-l:libtcmalloc_minimal.a"));
    }
}

/// An exception cannot pass a probed return. Only a session link can skip the return of a single call, so with other
/// links an operator that may throw is not probed: this is reported, and the target unharmed.
#[test]
fn without_session_links_throwing_operators_are_not_probed() {
    for (heap, libraries) in [("jemalloc", "-ljemalloc"), ("tcmalloc", "-ltcmalloc_minimal")] {
        check::throwing_not_probed(&Cell::cxx(heap).libraries(libraries));
    }
}

/// Guards the other tests against targets that omit calls.
#[test]
fn targets_call_all_functions() {
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
