//! tcmalloc: gperftools' `tc_*`, and Google's `TCMallocInternal*`, which implement its malloc and operators.

use super::spec::{AllocatorSpec, HookSpec, malloc_is};

/// Defined by gperftools' checking variant only.
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
    // From the disassembly of gperftools 2.10, at any level of optimisation. posix_memalign, valloc and pvalloc call
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
const FUNCTIONS: &[HookSpec] = &[
    HookSpec::free("tc_free", 0),
    HookSpec::free("tc_free_sized", 0),
    HookSpec::free("tc_cfree", 0),
    HookSpec::free("tc_delete", 0),
    HookSpec::free("tc_delete_sized", 0),
    HookSpec::free("tc_delete_nothrow", 0),
    HookSpec::free("tc_delete_aligned", 0),
    HookSpec::free("tc_delete_sized_aligned", 0),
    HookSpec::free("tc_delete_aligned_nothrow", 0),
    HookSpec::free("tc_deletearray", 0),
    HookSpec::free("tc_deletearray_sized", 0),
    HookSpec::free("tc_deletearray_nothrow", 0),
    HookSpec::free("tc_deletearray_aligned", 0),
    HookSpec::free("tc_deletearray_sized_aligned", 0),
    HookSpec::free("tc_deletearray_aligned_nothrow", 0),
    HookSpec::alloc("tc_malloc", 0),
    HookSpec::alloc("tc_malloc_skip_new_handler", 0),
    HookSpec::alloc("tc_calloc", 0).times(1),
    HookSpec::realloc("tc_realloc", 0, 1),
    HookSpec::alloc_out("tc_posix_memalign", 0, 2),
    HookSpec::alloc("tc_memalign", 1),
    HookSpec::alloc("tc_valloc", 0),
    HookSpec::alloc("tc_pvalloc", 0).page_rounded(),
    HookSpec::alloc("tc_new", 0).may_throw(),
    HookSpec::alloc("tc_new_nothrow", 0),
    HookSpec::alloc("tc_new_aligned", 0).may_throw(),
    HookSpec::alloc("tc_new_aligned_nothrow", 0),
    HookSpec::alloc("tc_newarray", 0).may_throw(),
    HookSpec::alloc("tc_newarray_nothrow", 0),
    HookSpec::alloc("tc_newarray_aligned", 0).may_throw(),
    HookSpec::alloc("tc_newarray_aligned_nothrow", 0),
];

/// Google's functions. Those that also return the usable size return the block in the same register as all others.
const GOOGLE_FUNCTIONS: &[HookSpec] = &[
    HookSpec::free("TCMallocInternalFree", 0),
    HookSpec::free("TCMallocInternalFreeSized", 0),
    HookSpec::free("TCMallocInternalFreeAlignedSized", 0),
    HookSpec::free("TCMallocInternalCfree", 0),
    HookSpec::free("TCMallocInternalSdallocx", 0),
    HookSpec::free("TCMallocInternalDelete", 0),
    HookSpec::free("TCMallocInternalDeleteSized", 0),
    HookSpec::free("TCMallocInternalDeleteNothrow", 0),
    HookSpec::free("TCMallocInternalDeleteAligned", 0),
    HookSpec::free("TCMallocInternalDeleteSizedAligned", 0),
    HookSpec::free("TCMallocInternalDeleteAlignedNothrow", 0),
    HookSpec::free("TCMallocInternalDeleteArray", 0),
    HookSpec::free("TCMallocInternalDeleteArraySized", 0),
    HookSpec::free("TCMallocInternalDeleteArrayNothrow", 0),
    HookSpec::free("TCMallocInternalDeleteArrayAligned", 0),
    HookSpec::free("TCMallocInternalDeleteArraySizedAligned", 0),
    HookSpec::free("TCMallocInternalDeleteArrayAlignedNothrow", 0),
    HookSpec::alloc("TCMallocInternalMalloc", 0),
    HookSpec::alloc("TCMallocInternalCalloc", 0).times(1),
    HookSpec::realloc("TCMallocInternalRealloc", 0, 1),
    HookSpec::realloc("TCMallocInternalReallocArray", 0, 1).times(2),
    HookSpec::alloc_out("TCMallocInternalPosixMemalign", 0, 2),
    HookSpec::alloc("TCMallocInternalAlignedAlloc", 1),
    HookSpec::alloc("TCMallocInternalMemalign", 1),
    HookSpec::alloc("TCMallocInternalValloc", 0),
    HookSpec::alloc("TCMallocInternalPvalloc", 0).page_rounded(),
    HookSpec::alloc("TCMallocInternalNew", 0).may_throw(),
    HookSpec::alloc("TCMallocInternalNewNothrow", 0),
    HookSpec::alloc("TCMallocInternalNewAligned", 0).may_throw(),
    HookSpec::alloc("TCMallocInternalNewAlignedNothrow", 0),
    HookSpec::alloc("TCMallocInternalNewHotCold", 0).may_throw(),
    HookSpec::alloc("TCMallocInternalNewHotColdNothrow", 0),
    HookSpec::alloc("TCMallocInternalNewAlignedHotCold", 0).may_throw(),
    HookSpec::alloc("TCMallocInternalNewAlignedHotColdNothrow", 0),
    HookSpec::alloc("TCMallocInternalNewArray", 0).may_throw(),
    HookSpec::alloc("TCMallocInternalNewArrayNothrow", 0),
    HookSpec::alloc("TCMallocInternalNewArrayAligned", 0).may_throw(),
    HookSpec::alloc("TCMallocInternalNewArrayAlignedNothrow", 0),
    HookSpec::alloc("TCMallocInternalNewArrayHotCold", 0).may_throw(),
    HookSpec::alloc("TCMallocInternalNewArrayHotColdNothrow", 0),
    HookSpec::alloc("TCMallocInternalNewArrayAlignedHotCold", 0).may_throw(),
    HookSpec::alloc("TCMallocInternalNewArrayAlignedHotColdNothrow", 0),
    HookSpec::alloc("tcmalloc_size_returning_operator_new", 0).may_throw(),
    HookSpec::alloc("tcmalloc_size_returning_operator_new_nothrow", 0),
    HookSpec::alloc("__size_returning_new", 0).may_throw(),
    HookSpec::alloc("__size_returning_new_aligned", 0).may_throw(),
    HookSpec::alloc("__size_returning_new_hot_cold", 0).may_throw(),
    HookSpec::alloc("__size_returning_new_aligned_hot_cold", 0).may_throw(),
];
