//! C++'s operators new and delete in all their forms, as the Itanium ABI mangles them (5.1.5; `m` is `std::size_t`).
//!
//! Looked up only in allocators that are known or likely to define them themselves: those of libstdc++ and libc++ call
//! `malloc`, which is hooked anyway.

use super::spec::HookSpec;

/// Without these the profile of a program that uses operators is not whole.
pub(crate) const REQUIRED_FUNCTIONS: &[&str] = &["_Znwm", "_Znam", "_ZdlPv", "_ZdaPv"];

/// All forms. Those with `__hot_cold_t` are clang's and Google's tcmalloc's. A replacement that is built without
/// exceptions ends the program where another throws, and is told apart by nothing.
pub(crate) const FUNCTIONS: &[HookSpec] = &[
    HookSpec::free("_ZdlPv", 0),
    HookSpec::free("_ZdlPvm", 0),
    HookSpec::free("_ZdlPvRKSt9nothrow_t", 0),
    HookSpec::free("_ZdlPvSt11align_val_t", 0),
    HookSpec::free("_ZdlPvmSt11align_val_t", 0),
    HookSpec::free("_ZdlPvSt11align_val_tRKSt9nothrow_t", 0),
    HookSpec::free("_ZdaPv", 0),
    HookSpec::free("_ZdaPvm", 0),
    HookSpec::free("_ZdaPvRKSt9nothrow_t", 0),
    HookSpec::free("_ZdaPvSt11align_val_t", 0),
    HookSpec::free("_ZdaPvmSt11align_val_t", 0),
    HookSpec::free("_ZdaPvSt11align_val_tRKSt9nothrow_t", 0),
    HookSpec::alloc("_Znwm", 0).may_throw(),
    HookSpec::alloc("_ZnwmRKSt9nothrow_t", 0),
    HookSpec::alloc("_ZnwmSt11align_val_t", 0).may_throw(),
    HookSpec::alloc("_ZnwmSt11align_val_tRKSt9nothrow_t", 0),
    HookSpec::alloc("_Znam", 0).may_throw(),
    HookSpec::alloc("_ZnamRKSt9nothrow_t", 0),
    HookSpec::alloc("_ZnamSt11align_val_t", 0).may_throw(),
    HookSpec::alloc("_ZnamSt11align_val_tRKSt9nothrow_t", 0),
    HookSpec::alloc("_Znwm12__hot_cold_t", 0).may_throw(),
    HookSpec::alloc("_ZnwmRKSt9nothrow_t12__hot_cold_t", 0),
    HookSpec::alloc("_ZnwmSt11align_val_t12__hot_cold_t", 0).may_throw(),
    HookSpec::alloc("_ZnwmSt11align_val_tRKSt9nothrow_t12__hot_cold_t", 0),
    HookSpec::alloc("_Znam12__hot_cold_t", 0).may_throw(),
    HookSpec::alloc("_ZnamRKSt9nothrow_t12__hot_cold_t", 0),
    HookSpec::alloc("_ZnamSt11align_val_t12__hot_cold_t", 0).may_throw(),
    HookSpec::alloc("_ZnamSt11align_val_tRKSt9nothrow_t12__hot_cold_t", 0),
];
