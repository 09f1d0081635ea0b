//! tcmalloc: gperftools' `tc_*`, and Google's `TCMallocInternal*`, which implement its malloc and operators.

use super::spec::{AllocatorSpec, HookSpec, Table, malloc_is};

/// Name of a function that only gperftools' checking variant defines.
const DEBUG_ALLOCATE: &str = "_ZN11MallocBlock8AllocateEmi";

pub(crate) const ALLOCATOR: AllocatorSpec = AllocatorSpec {
    is_library: |_, file| file.starts_with("libtcmalloc"),
    fingerprints: &["tc_malloc", "TCMallocInternalMalloc"],
    other_symbols: &[DEBUG_ALLOCATE],
    own_functions: &[FUNCTIONS, GOOGLE_FUNCTIONS],
    is_required: |function| {
        matches!(
            function.strip_prefix("tc_").or_else(|| function.strip_prefix("TCMallocInternal")),
            Some("malloc" | "free" | "calloc" | "realloc" | "Malloc" | "Free" | "Calloc" | "Realloc")
        )
    },
    // Source: the disassembly of gperftools 2.10, at any level of optimisation. posix_memalign, valloc and pvalloc call
    // `tc_memalign`. Google's functions have not been inspected.
    is_leaf: |function| {
        matches!(
            function.strip_prefix("tc_").unwrap_or(function),
            "malloc" | "malloc_skip_new_handler" | "calloc" | "realloc" | "memalign" | "aligned_alloc"
        ) || function.starts_with("_Zn")
            || function.starts_with("tc_new")
    },
    calls_known: |candidate, _| malloc_is(candidate, "tc_malloc") && candidate.functions(DEBUG_ALLOCATE).is_empty(),
    ..AllocatorSpec::named("tcmalloc")
};

/// gperftools' functions, with a name for each form of the operators.
const FUNCTIONS: Table = Table(&[
    HookSpec::free(
        "tc_free tc_free_sized tc_cfree tc_delete tc_delete_sized tc_delete_nothrow tc_delete_aligned \
         tc_delete_sized_aligned tc_delete_aligned_nothrow tc_deletearray tc_deletearray_sized \
         tc_deletearray_nothrow tc_deletearray_aligned tc_deletearray_sized_aligned \
         tc_deletearray_aligned_nothrow",
        0,
    ),
    HookSpec::alloc(
        "tc_malloc tc_malloc_skip_new_handler tc_valloc tc_new_nothrow tc_new_aligned_nothrow tc_newarray_nothrow \
         tc_newarray_aligned_nothrow",
        0,
    ),
    HookSpec::alloc("tc_calloc", 0).times(1),
    HookSpec::realloc("tc_realloc", 0, 1),
    HookSpec::alloc_out("tc_posix_memalign", 0, 2),
    HookSpec::alloc("tc_memalign", 1),
    HookSpec::alloc("tc_pvalloc", 0).page_rounded(),
    HookSpec::alloc("tc_new tc_new_aligned tc_newarray tc_newarray_aligned", 0).may_throw(),
]);

/// Google's functions. Functions that also return the usable size return the block in the same register as all others.
const GOOGLE_FUNCTIONS: Table = Table(&[
    HookSpec::free(
        "TCMallocInternalFree TCMallocInternalFreeSized TCMallocInternalFreeAlignedSized TCMallocInternalCfree \
         TCMallocInternalSdallocx TCMallocInternalDelete TCMallocInternalDeleteSized \
         TCMallocInternalDeleteNothrow TCMallocInternalDeleteAligned TCMallocInternalDeleteSizedAligned \
         TCMallocInternalDeleteAlignedNothrow TCMallocInternalDeleteArray TCMallocInternalDeleteArraySized \
         TCMallocInternalDeleteArrayNothrow TCMallocInternalDeleteArrayAligned \
         TCMallocInternalDeleteArraySizedAligned TCMallocInternalDeleteArrayAlignedNothrow",
        0,
    ),
    HookSpec::alloc(
        "TCMallocInternalMalloc TCMallocInternalValloc TCMallocInternalNewNothrow \
         TCMallocInternalNewAlignedNothrow TCMallocInternalNewHotColdNothrow \
         TCMallocInternalNewAlignedHotColdNothrow TCMallocInternalNewArrayNothrow \
         TCMallocInternalNewArrayAlignedNothrow TCMallocInternalNewArrayHotColdNothrow \
         TCMallocInternalNewArrayAlignedHotColdNothrow tcmalloc_size_returning_operator_new_nothrow",
        0,
    ),
    HookSpec::alloc("TCMallocInternalCalloc", 0).times(1),
    HookSpec::realloc("TCMallocInternalRealloc", 0, 1),
    HookSpec::realloc("TCMallocInternalReallocArray", 0, 1).times(2),
    HookSpec::alloc_out("TCMallocInternalPosixMemalign", 0, 2),
    HookSpec::alloc("TCMallocInternalAlignedAlloc TCMallocInternalMemalign", 1),
    HookSpec::alloc("TCMallocInternalPvalloc", 0).page_rounded(),
    HookSpec::alloc(
        "TCMallocInternalNew TCMallocInternalNewAligned TCMallocInternalNewHotCold \
         TCMallocInternalNewAlignedHotCold TCMallocInternalNewArray TCMallocInternalNewArrayAligned \
         TCMallocInternalNewArrayHotCold TCMallocInternalNewArrayAlignedHotCold \
         tcmalloc_size_returning_operator_new __size_returning_new __size_returning_new_aligned \
         __size_returning_new_hot_cold __size_returning_new_aligned_hot_cold",
        0,
    )
    .may_throw(),
]);
