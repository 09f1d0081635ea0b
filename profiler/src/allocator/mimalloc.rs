//! mimalloc's own functions. Functions that take a heap take it as their first argument. `mi_heap_destroy` frees all blocks of a
//! heap at once, which a hook on single blocks cannot observe: the blocks stay in the ledger until their addresses are allocated
//! again. The size that `mi_strdup` and similar functions allocate is not an argument, so their blocks are not recorded.

use super::spec::{AllocatorSpec, HookSpec, Table, malloc_is};

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
    is_leaf: |function| LEAVES.split(' ').any(|leaf| leaf == function),
    // Functions call each other unless they are inlined, so only the library as built by distributions is known.
    calls_known: |candidate, file| {
        !candidate.is_executable
            && file.starts_with("libmimalloc")
            && !file.contains("debug")
            && malloc_is(candidate, "mi_malloc")
    },
    ..AllocatorSpec::named("mimalloc")
};

const FUNCTIONS: Table = Table(&[
    HookSpec::free("mi_free mi_free_size mi_free_size_aligned mi_free_aligned mi_cfree", 0),
    HookSpec::alloc(
        "mi_malloc mi_zalloc mi_malloc_small mi_zalloc_small mi_malloc_aligned mi_malloc_aligned_at \
         mi_zalloc_aligned mi_zalloc_aligned_at mi_valloc mi_new_nothrow mi_new_aligned_nothrow",
        0,
    ),
    HookSpec::alloc("mi_calloc mi_mallocn mi_calloc_aligned mi_calloc_aligned_at", 0).times(1),
    HookSpec::realloc(
        "mi_realloc mi_rezalloc mi_realloc_aligned mi_rezalloc_aligned mi_realloc_aligned_at \
         mi_rezalloc_aligned_at",
        0,
        1,
    ),
    HookSpec::realloc(
        "mi_reallocn mi_recalloc mi_recalloc_aligned mi_recalloc_aligned_at mi_reallocarray mi_aligned_recalloc \
         mi_aligned_offset_recalloc",
        0,
        1,
    )
    .times(2),
    HookSpec::realloc("mi_reallocf", 0, 1).frees_on_failure(),
    HookSpec::alloc_out("mi_posix_memalign", 0, 2),
    HookSpec::alloc(
        "mi_memalign mi_aligned_alloc mi_heap_malloc mi_heap_zalloc mi_heap_malloc_small mi_heap_zalloc_small \
         mi_heap_malloc_aligned mi_heap_malloc_aligned_at mi_heap_zalloc_aligned mi_heap_zalloc_aligned_at",
        1,
    ),
    HookSpec::alloc("mi_pvalloc", 0).page_rounded(),
    HookSpec::alloc("mi_new mi_new_aligned", 0).may_throw(),
    HookSpec::alloc("mi_new_n", 0).times(1).may_throw(),
    HookSpec::realloc("mi_new_realloc", 0, 1).may_throw(),
    HookSpec::realloc("mi_new_reallocn", 0, 1).times(2).may_throw(),
    HookSpec::alloc("mi_heap_calloc mi_heap_mallocn mi_heap_calloc_aligned mi_heap_calloc_aligned_at", 1).times(2),
    HookSpec::realloc(
        "mi_heap_realloc mi_heap_rezalloc mi_heap_realloc_aligned mi_heap_rezalloc_aligned \
         mi_heap_realloc_aligned_at mi_heap_rezalloc_aligned_at",
        1,
        2,
    ),
    HookSpec::realloc("mi_heap_reallocn mi_heap_recalloc mi_heap_recalloc_aligned mi_heap_recalloc_aligned_at", 1, 2)
        .times(3),
    HookSpec::realloc("mi_heap_reallocf", 1, 2).frees_on_failure(),
    HookSpec::alloc("mi_heap_alloc_new", 1).may_throw(),
    HookSpec::alloc("mi_heap_alloc_new_n", 1).times(2).may_throw(),
    // This function works in place: it returns the block, or null if the block is unchanged, as a failed realloc.
    HookSpec::realloc("mi_expand mi__expand", 0, 1),
]);

/// Functions that call no hooked one, from the disassembly of 2.0.9.
const LEAVES: &str = "malloc calloc mi_malloc mi_calloc mi_zalloc mi_malloc_small mi_zalloc_small mi_heap_malloc mi_heap_zalloc \
    mi_heap_calloc mi_heap_mallocn mi_heap_malloc_small mi_heap_malloc_aligned_at mi_heap_zalloc_aligned_at \
    mi_heap_alloc_new mi_heap_alloc_new_n mi_new mi_new_n mi_new_nothrow _Znwm _Znam";
