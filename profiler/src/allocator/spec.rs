//! Built-in knowledge of an allocator and its functions. Each allocator is a constant in a file of its own, and a line in
//! [`ALLOCATORS`](super::resolve::ALLOCATORS).

use profiler_common::hook::CallShape;

use crate::process::definitions::Candidate;

/// Name of a function that every malloc defines: a module without it has no malloc.
pub(crate) const DEFINING_FUNCTION: &str = "malloc";

pub(crate) struct AllocatorSpec {
    pub heap: &'static str,
    pub title: &'static str,
    /// Whether the allocator is a C library's: other allocators replace its functions, and operators new and delete in the same
    /// module are libstdc++'s.
    pub is_c_library: bool,
    pub is_library: fn(path: &str, file: &str) -> bool,
    /// Symbols that only this allocator defines.
    pub fingerprints: &'static [&'static str],
    pub may_be: fn(&Candidate) -> bool,
    /// Other symbols that the functions of this specification search for.
    pub other_symbols: &'static [&'static str],
    /// Tables of functions with names of the allocator's own. They may be in any module beside another allocator's malloc.
    pub own_functions: &'static [Table],
    /// Whether a profile of a program that uses `own_functions` is incomplete without this function.
    pub is_required: fn(function: &str) -> bool,
    /// Functions beside the C library's and C++'s that belong to the malloc of their module.
    pub plain_functions: Table,
    /// Functions that only call another one by its public name, which may be another allocator's.
    pub calls_back: &'static [&'static str],
    /// Whether the function calls no other function of the tables, in the builds for which `calls_known` is true: then its
    /// unsampled calls need not be followed to their return, which saves a trap. A wrong entry would count some blocks twice.
    pub is_leaf: fn(function: &str) -> bool,
    /// Whether a module is a build for which `is_leaf` is known, by its file name and symbols.
    pub calls_known: fn(&Candidate, file: &str) -> bool,
}

impl AllocatorSpec {
    pub(crate) const fn named(heap: &'static str) -> Self {
        Self {
            heap,
            title: heap,
            is_c_library: false,
            is_library: |_, _| false,
            fingerprints: &[],
            may_be: |_| true,
            other_symbols: &[],
            own_functions: &[],
            is_required: |_| false,
            plain_functions: Table(&[]),
            calls_back: &[],
            is_leaf: |_| false,
            calls_known: |_, _| false,
        }
    }
}

pub(crate) fn malloc_is(candidate: &Candidate, own: &str) -> bool {
    candidate.exported(DEFINING_FUNCTION).is_none() || same_code(candidate, DEFINING_FUNCTION, own)
}

/// Whether the module defines both functions, at the same offset.
pub(crate) fn same_code(candidate: &Candidate, one: &str, other: &str) -> bool {
    let offset = |name: &str| candidate.functions(name).first().map(|function| function.offset);
    offset(one).is_some() && offset(one) == offset(other)
}

/// Functions by signature: `function` lists the names of all functions with the same signature, separated by spaces.
#[derive(Clone, Copy)]
pub(crate) struct Table(pub &'static [HookSpec]);

impl Table {
    pub(crate) fn iter(self) -> impl Iterator<Item = HookSpec> {
        self.0.iter().flat_map(|spec| spec.function.split(' ').map(|function| HookSpec { function, ..*spec }))
    }
}

/// A function of an allocator. Arguments are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookSpec {
    pub function: &'static str,
    pub shape: CallShape,
    /// Argument with the size in bytes; unused for [`CallShape::Free`].
    pub size: usize,
    /// Argument that multiplies the size; for [`CallShape::Map`] the flags, for [`CallShape::Remap`] the old size.
    pub count: Option<usize>,
    /// Argument with the old block or range, or the address that the new one is stored at.
    pub pointer: Option<usize>,
    pub page_rounded: bool,
    /// Whether the function calls another function of the tables, in at least one allocator.
    pub delegates: bool,
    /// Whether the function calls another function of the tables only if the old block is null.
    pub delegates_null: bool,
    pub may_throw: bool,
    pub frees_on_failure: bool,
}

impl HookSpec {
    /// A function of the form `function(size) -> block`.
    pub const fn alloc(function: &'static str, size: usize) -> Self {
        Self {
            function,
            shape: CallShape::Alloc,
            size,
            count: None,
            pointer: None,
            page_rounded: false,
            delegates: true,
            delegates_null: false,
            may_throw: false,
            frees_on_failure: false,
        }
    }

    /// A function of the form `function(&block, …) -> error`.
    pub const fn alloc_out(function: &'static str, out: usize, size: usize) -> Self {
        Self { shape: CallShape::AllocOut, pointer: Some(out), ..Self::alloc(function, size) }
    }

    /// A function of the form `function(block, size) -> block`.
    pub const fn realloc(function: &'static str, block: usize, size: usize) -> Self {
        Self { shape: CallShape::Realloc, pointer: Some(block), ..Self::alloc(function, size) }
    }

    /// A function of the form `function(block, size, …) -> new size`.
    pub const fn resize(function: &'static str, block: usize, size: usize) -> Self {
        Self { shape: CallShape::Resize, pointer: Some(block), ..Self::alloc(function, size) }
    }

    /// A function of the form `function(block)`.
    pub const fn free(function: &'static str, block: usize) -> Self {
        Self { shape: CallShape::Free, pointer: Some(block), delegates: false, ..Self::alloc(function, 0) }
    }

    /// A function of the form `function(size)` that is recorded at its entry.
    pub const fn entry(function: &'static str, size: usize) -> Self {
        Self { shape: CallShape::Entry, ..Self::alloc(function, size) }
    }

    /// A function of the form `function(block, size)` that is recorded at its entry.
    pub const fn entry_of(function: &'static str, block: usize, size: usize) -> Self {
        Self { pointer: Some(block), ..Self::entry(function, size) }
    }

    /// A function of the form `function(…, size, …, flags, …) -> start`.
    pub const fn map(function: &'static str, size: usize, flags: usize) -> Self {
        Self { shape: CallShape::Map, count: Some(flags), ..Self::alloc(function, size) }
    }

    /// A function of the form `function(start, size) -> error`.
    pub const fn unmap(function: &'static str, start: usize, size: usize) -> Self {
        Self { shape: CallShape::Unmap, pointer: Some(start), ..Self::alloc(function, size) }
    }

    /// A function of the form `function(start, old_size, size, …) -> start`.
    pub const fn remap(function: &'static str, start: usize, old_size: usize, size: usize) -> Self {
        Self { shape: CallShape::Remap, pointer: Some(start), count: Some(old_size), ..Self::alloc(function, size) }
    }

    /// A function of the form `function(increment) -> previous end`.
    pub const fn break_(function: &'static str, increment: usize) -> Self {
        Self { shape: CallShape::Break, ..Self::alloc(function, increment) }
    }

    pub const fn may_throw(self) -> Self {
        Self { may_throw: true, ..self }
    }

    pub const fn frees_on_failure(self) -> Self {
        Self { frees_on_failure: true, ..self }
    }

    pub const fn times(self, count: usize) -> Self {
        Self { count: Some(count), ..self }
    }

    pub const fn page_rounded(self) -> Self {
        Self { page_rounded: true, ..self }
    }

    pub const fn leaf(self) -> Self {
        Self { delegates: false, ..self }
    }
}
