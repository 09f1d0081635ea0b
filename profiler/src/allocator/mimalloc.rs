//! mimalloc's own functions. Those that take a heap take it as their first argument.
//!
//! `mi_heap_destroy` frees all blocks of a heap at once, which a hook on single blocks cannot observe: the blocks stay in the
//! ledger until their addresses are allocated again. The size that `mi_strdup` and similar functions allocate is not an argument,
//! so their blocks are not recorded.

use super::spec::{AllocatorSpec, HookSpec, malloc_is};

pub(crate) const ALLOCATOR: AllocatorSpec = AllocatorSpec {
    is_library: |_, file| file.starts_with("libmimalloc"),
    fingerprints: &["mi_malloc"],
    own_functions: &[FUNCTIONS],
    is_required: |function| {
        matches!(
            function.strip_prefix("mi_"),
            Some("malloc" | "free" | "calloc" | "zalloc" | "realloc" | "malloc_aligned" | "realloc_aligned")
        )
    },
    is_leaf,
    // Functions call each other unless they are inlined, so only the library as built by distributions is known.
    calls_known: |candidate, file| {
        !candidate.is_executable
            && file.starts_with("libmimalloc")
            && !file.contains("debug")
            && malloc_is(candidate, "mi_malloc")
    },
    ..AllocatorSpec::named("mimalloc")
};

/// All functions that allocate or free one block.
const FUNCTIONS: &[HookSpec] = &[
    HookSpec::free("mi_free", 0),
    HookSpec::free("mi_free_size", 0),
    HookSpec::free("mi_free_size_aligned", 0),
    HookSpec::free("mi_free_aligned", 0),
    HookSpec::free("mi_cfree", 0),
    HookSpec::alloc("mi_malloc", 0),
    HookSpec::alloc("mi_zalloc", 0),
    HookSpec::alloc("mi_malloc_small", 0),
    HookSpec::alloc("mi_zalloc_small", 0),
    HookSpec::alloc("mi_calloc", 0).times(1),
    HookSpec::alloc("mi_mallocn", 0).times(1),
    HookSpec::alloc("mi_malloc_aligned", 0),
    HookSpec::alloc("mi_malloc_aligned_at", 0),
    HookSpec::alloc("mi_zalloc_aligned", 0),
    HookSpec::alloc("mi_zalloc_aligned_at", 0),
    HookSpec::alloc("mi_calloc_aligned", 0).times(1),
    HookSpec::alloc("mi_calloc_aligned_at", 0).times(1),
    HookSpec::realloc("mi_realloc", 0, 1),
    HookSpec::realloc("mi_reallocn", 0, 1).times(2),
    HookSpec::realloc("mi_reallocf", 0, 1).frees_on_failure(),
    HookSpec::realloc("mi_rezalloc", 0, 1),
    HookSpec::realloc("mi_recalloc", 0, 1).times(2),
    HookSpec::realloc("mi_realloc_aligned", 0, 1),
    HookSpec::realloc("mi_rezalloc_aligned", 0, 1),
    HookSpec::realloc("mi_recalloc_aligned", 0, 1).times(2),
    HookSpec::realloc("mi_realloc_aligned_at", 0, 1),
    HookSpec::realloc("mi_rezalloc_aligned_at", 0, 1),
    HookSpec::realloc("mi_recalloc_aligned_at", 0, 1).times(2),
    HookSpec::realloc("mi_reallocarray", 0, 1).times(2),
    // In place: returns the block, or null if the block is unchanged, as a failed realloc.
    HookSpec::realloc("mi_expand", 0, 1),
    HookSpec::realloc("mi__expand", 0, 1),
    HookSpec::realloc("mi_aligned_recalloc", 0, 1).times(2),
    HookSpec::realloc("mi_aligned_offset_recalloc", 0, 1).times(2),
    HookSpec::alloc_out("mi_posix_memalign", 0, 2),
    HookSpec::alloc("mi_memalign", 1),
    HookSpec::alloc("mi_aligned_alloc", 1),
    HookSpec::alloc("mi_valloc", 0),
    HookSpec::alloc("mi_pvalloc", 0).page_rounded(),
    HookSpec::alloc("mi_new", 0).may_throw(),
    HookSpec::alloc("mi_new_aligned", 0).may_throw(),
    HookSpec::alloc("mi_new_nothrow", 0),
    HookSpec::alloc("mi_new_aligned_nothrow", 0),
    HookSpec::alloc("mi_new_n", 0).times(1).may_throw(),
    HookSpec::realloc("mi_new_realloc", 0, 1).may_throw(),
    HookSpec::realloc("mi_new_reallocn", 0, 1).times(2).may_throw(),
    HookSpec::alloc("mi_heap_malloc", 1),
    HookSpec::alloc("mi_heap_zalloc", 1),
    HookSpec::alloc("mi_heap_malloc_small", 1),
    HookSpec::alloc("mi_heap_zalloc_small", 1),
    HookSpec::alloc("mi_heap_calloc", 1).times(2),
    HookSpec::alloc("mi_heap_mallocn", 1).times(2),
    HookSpec::alloc("mi_heap_malloc_aligned", 1),
    HookSpec::alloc("mi_heap_malloc_aligned_at", 1),
    HookSpec::alloc("mi_heap_zalloc_aligned", 1),
    HookSpec::alloc("mi_heap_zalloc_aligned_at", 1),
    HookSpec::alloc("mi_heap_calloc_aligned", 1).times(2),
    HookSpec::alloc("mi_heap_calloc_aligned_at", 1).times(2),
    HookSpec::realloc("mi_heap_realloc", 1, 2),
    HookSpec::realloc("mi_heap_reallocn", 1, 2).times(3),
    HookSpec::realloc("mi_heap_reallocf", 1, 2).frees_on_failure(),
    HookSpec::realloc("mi_heap_rezalloc", 1, 2),
    HookSpec::realloc("mi_heap_recalloc", 1, 2).times(3),
    HookSpec::realloc("mi_heap_realloc_aligned", 1, 2),
    HookSpec::realloc("mi_heap_rezalloc_aligned", 1, 2),
    HookSpec::realloc("mi_heap_recalloc_aligned", 1, 2).times(3),
    HookSpec::realloc("mi_heap_realloc_aligned_at", 1, 2),
    HookSpec::realloc("mi_heap_rezalloc_aligned_at", 1, 2),
    HookSpec::realloc("mi_heap_recalloc_aligned_at", 1, 2).times(3),
    HookSpec::alloc("mi_heap_alloc_new", 1).may_throw(),
    HookSpec::alloc("mi_heap_alloc_new_n", 1).times(2).may_throw(),
];

/// From the disassembly of 2.0.9.
fn is_leaf(function: &str) -> bool {
    matches!(
        function,
        "malloc"
            | "calloc"
            | "mi_malloc"
            | "mi_calloc"
            | "mi_zalloc"
            | "mi_malloc_small"
            | "mi_zalloc_small"
            | "mi_heap_malloc"
            | "mi_heap_zalloc"
            | "mi_heap_calloc"
            | "mi_heap_mallocn"
            | "mi_heap_malloc_small"
            | "mi_heap_malloc_aligned_at"
            | "mi_heap_zalloc_aligned_at"
            | "mi_heap_alloc_new"
            | "mi_heap_alloc_new_n"
            | "mi_new"
            | "mi_new_n"
            | "mi_new_nothrow"
            | "_Znwm"
            | "_Znam"
    )
}
