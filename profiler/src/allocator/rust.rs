//! Functions that the Rust compiler calls to allocate. They call a program's global allocator, whatever it is, so they are
//! hooked only where no known allocator is found.
//!
//! Compilers since 1.87 mangle them (`_RNvC…7___rustc12___rust_alloc`); [`symbols`](crate::object::symbols) matches both.

use super::spec::HookSpec;

/// `alloc(size, align)`, `dealloc(block, size, align)`, `realloc(block, old size, align, size)`.
pub(crate) const FUNCTIONS: &[HookSpec] = &[
    HookSpec::free("__rust_dealloc", 0),
    HookSpec::alloc("__rust_alloc", 0),
    HookSpec::alloc("__rust_alloc_zeroed", 0),
    HookSpec::realloc("__rust_realloc", 0, 3),
];

pub(crate) const HEAP: &str = "rust";

/// A program that does not define it has no Rust allocator.
pub(crate) const DEFINING_FUNCTION: &str = "__rust_alloc";
