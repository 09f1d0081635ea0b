//! What is to be known of an allocator's function to watch it.

use profiler_common::hook::CallShape;

/// A function of an allocator. Arguments are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookSpec {
    /// Its symbol.
    pub function: &'static str,
    /// How it takes and gives blocks.
    pub shape: CallShape,
    /// The argument that holds the size in bytes; unused for [`CallShape::Free`].
    pub size: usize,
    /// The argument that multiplies the size; of [`CallShape::Map`] the flags, of [`CallShape::Remap`] the old size.
    pub count: Option<usize>,
    /// The argument that holds the old block or range, or the address to store the new one at.
    pub pointer: Option<usize>,
    /// The size is rounded up to whole pages.
    pub page_rounded: bool,
    /// In some allocator it calls another function of the table.
    pub delegates: bool,
    /// It may throw a C++ exception instead of returning.
    pub may_throw: bool,
    /// When it fails it has freed the old block.
    pub frees_on_failure: bool,
}

impl HookSpec {
    /// `function(size) -> block`
    pub const fn alloc(function: &'static str, size: usize) -> Self {
        Self {
            function,
            shape: CallShape::Alloc,
            size,
            count: None,
            pointer: None,
            page_rounded: false,
            delegates: true,
            may_throw: false,
            frees_on_failure: false,
        }
    }

    /// `function(&block, …) -> error`
    pub const fn alloc_out(function: &'static str, out: usize, size: usize) -> Self {
        Self { shape: CallShape::AllocOut, pointer: Some(out), ..Self::alloc(function, size) }
    }

    /// `function(block, size) -> block`
    pub const fn realloc(function: &'static str, block: usize, size: usize) -> Self {
        Self { shape: CallShape::Realloc, pointer: Some(block), ..Self::alloc(function, size) }
    }

    /// `function(block, size, …) -> size it has now`
    pub const fn resize(function: &'static str, block: usize, size: usize) -> Self {
        Self { shape: CallShape::Resize, pointer: Some(block), ..Self::alloc(function, size) }
    }

    /// `function(block)`
    pub const fn free(function: &'static str, block: usize) -> Self {
        Self { shape: CallShape::Free, pointer: Some(block), delegates: false, ..Self::alloc(function, 0) }
    }

    /// `function(…, size, …, flags, …) -> start`
    pub const fn map(function: &'static str, size: usize, flags: usize) -> Self {
        Self { shape: CallShape::Map, count: Some(flags), ..Self::alloc(function, size) }
    }

    /// `function(start, size) -> error`
    pub const fn unmap(function: &'static str, start: usize, size: usize) -> Self {
        Self { shape: CallShape::Unmap, pointer: Some(start), ..Self::alloc(function, size) }
    }

    /// `function(start, old_size, size, …) -> start`
    pub const fn remap(function: &'static str, start: usize, old_size: usize, size: usize) -> Self {
        Self { shape: CallShape::Remap, pointer: Some(start), count: Some(old_size), ..Self::alloc(function, size) }
    }

    /// `function(increment) -> end before`
    pub const fn break_(function: &'static str, increment: usize) -> Self {
        Self { shape: CallShape::Break, ..Self::alloc(function, increment) }
    }

    /// It may throw a C++ exception instead of returning.
    pub const fn may_throw(self) -> Self {
        Self { may_throw: true, ..self }
    }

    /// When it fails it has freed the old block.
    pub const fn frees_on_failure(self) -> Self {
        Self { frees_on_failure: true, ..self }
    }

    /// The size is the product with this argument.
    pub const fn times(self, count: usize) -> Self {
        Self { count: Some(count), ..self }
    }

    /// The size is rounded up to whole pages.
    pub const fn page_rounded(self) -> Self {
        Self { page_rounded: true, ..self }
    }

    /// It calls no other function of the table, in any allocator: its unsampled calls need not be followed.
    pub const fn leaf(self) -> Self {
        Self { delegates: false, ..self }
    }
}
