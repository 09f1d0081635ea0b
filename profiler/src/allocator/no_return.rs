//! Functions whose return address must not be replaced, which every hook but those of the entry does: code that reads the address
//! finds heapbpf's instead, and the program dies.

/// Reason why a function's return must not be probed, by its symbol; `None` if no reason is known.
pub(crate) fn reason(function: &str) -> Option<&'static str> {
    let is_listed = |names: &[&str]| names.contains(&function);
    if is_of_v8(function) {
        Some("generated code of V8 calls it, and the garbage collector looks up its return address")
    } else if is_listed(SWITCHING) {
        Some("it switches stacks, and returns on another one than it was called on")
    } else if is_listed(RETURNING_TWICE) {
        Some("it returns more than once")
    } else if is_listed(JUMPING) {
        Some("it does not return to its caller")
    } else if is_listed(UNWINDING) {
        Some("it unwinds the stack through its own return address, and would terminate the program")
    } else {
        None
    }
}

const SWITCHING: &[&str] =
    &["setcontext", "swapcontext", "jump_fcontext", "ontop_fcontext", "bthread_jump_fcontext", "coctx_swap"];

const RETURNING_TWICE: &[&str] = &["setjmp", "_setjmp", "sigsetjmp", "__sigsetjmp", "getcontext", "vfork", "__vfork"];

const JUMPING: &[&str] = &[
    "longjmp",
    "_longjmp",
    "siglongjmp",
    "__libc_longjmp",
    "__libc_siglongjmp",
    "__longjmp",
    "__longjmp_chk",
    "____longjmp_chk",
];

const UNWINDING: &[&str] = &[
    "__cxa_throw",
    "__cxa_rethrow",
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
    "_Unwind_ForcedUnwind",
];

/// Whether a function is a runtime function or builtin of V8, which V8's generated code calls: `v8::internal::Runtime_…` and
/// `Builtin_…`, mangled after the Itanium C++ ABI, and the generated `Builtins_…`.
fn is_of_v8(function: &str) -> bool {
    let Some(nested) = function.strip_prefix("_ZN2v88internal") else {
        return function.starts_with("Builtins_");
    };
    let name = nested.trim_start_matches('L').trim_start_matches(|character: char| character.is_ascii_digit());
    name.starts_with("Runtime_") || name.starts_with("Builtin_") && !name.starts_with("Builtin_Impl_")
}

/// Whether a function of a Go program is Go's, by its symbol: Go's symbols have the package before the first dot. Functions in C
/// have none, unless the compiler has split them (`parse.cold`, `parse.part.0`).
pub(crate) fn is_go(function: &str) -> bool {
    let Some((_, name)) = function.split_once('.') else {
        return function.starts_with("_cgoexp_");
    };
    let first = name.split('.').next().unwrap_or_default();
    let is_number = first.bytes().all(|byte| byte.is_ascii_digit());
    !is_number && !matches!(first, "cold" | "part" | "constprop" | "isra" | "llvm" | "localalias" | "lto_priv")
}

pub(crate) const GO: &str = "Go moves the stacks of its functions, with their return addresses";

/// Error for a hook that needs the return of a function whose return must not be probed.
pub(crate) fn refusal(function: &str, reason: &str) -> String {
    format!("the return of `{function}` must not be probed: {reason}; use `entry`, which leaves the return alone")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_die_are_known_by_their_symbols() {
        let v8 = "_ZN2v88internal34Runtime_AllocateInYoungGenerationEiPmPNS0_7IsolateE";
        let builtin = "_ZN2v88internal24Builtin_ArrayBufferSliceEiPmPNS0_7IsolateE";
        for (function, part) in [
            (v8, "V8"),
            (builtin, "V8"),
            ("Builtins_CEntry_Return1_ArgvOnStack_NoBuiltinExit", "V8"),
            ("swapcontext", "switches stacks"),
            ("jump_fcontext", "switches stacks"),
            ("bthread_jump_fcontext", "switches stacks"),
            ("_setjmp", "more than once"),
            ("vfork", "more than once"),
            ("__longjmp", "does not return"),
            ("__cxa_throw", "unwinds"),
        ] {
            let found = reason(function).expect("known");
            let text = refusal(function, found);
            assert!(text.contains(part) && text.contains(function) && text.contains("`entry`"), "{text}");
        }
    }

    #[test]
    fn ordinary_functions_are_not_refused() {
        let inner = "_ZN2v88internalL29Builtin_Impl_ArrayBufferSliceENS0_16BuiltinArgumentsEPNS0_7IsolateE";
        let factory = "_ZN2v88internal7Factory12NewFixedArrayEi";
        for function in [inner, factory, "malloc", "makecontext", "fork", "pool_alloc", "_ZN3app7Runtime_Ev", "x.cold"]
        {
            assert_eq!(reason(function), None, "{function}");
        }
    }

    #[test]
    fn functions_of_go_have_a_package() {
        for function in ["main.alloc", "runtime.mallocgc", "main.pool.get", "_cgoexp_1234_Callback"] {
            assert!(is_go(function), "{function}");
        }
        for function in ["pool_alloc", "pool_alloc.part.0", "pool_alloc.cold", "x.constprop.0.isra.1", "crosscall2"] {
            assert!(!is_go(function), "{function}");
        }
    }
}
