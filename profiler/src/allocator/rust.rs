//! What the Rust compiler calls to allocate. Whatever global allocator a program has stands behind these functions, so
//! they are hooked only where it is none of the known ones.
//!
//! Compilers since 1.87 mangle them (`_RNvC…7___rustc12___rust_alloc`); [`symbols`](crate::object::symbols) knows both.

use super::spec::HookSpec;

/// `alloc(size, align)`, `dealloc(block, size, align)`, `realloc(block, old size, align, size)`.
pub(crate) const FUNCTIONS: &[HookSpec] = &[
    HookSpec::free("__rust_dealloc", 0),
    HookSpec::alloc("__rust_alloc", 0),
    HookSpec::alloc("__rust_alloc_zeroed", 0),
    HookSpec::realloc("__rust_realloc", 0, 3),
];

/// The function without which a program has no Rust allocator.
pub(crate) const DEFINING_FUNCTION: &str = "__rust_alloc";
