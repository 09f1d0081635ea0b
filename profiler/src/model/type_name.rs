//! The type of a block.

use std::sync::Arc;

/// What a block is an object of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TypeName {
    /// The type, demangled.
    pub name: Arc<str>,
    /// How it is known.
    pub evidence: TypeEvidence,
}

/// How a type is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TypeEvidence {
    /// The first word points into this type's virtual table.
    Vtable,
    /// A function in the stack is a template's, or generic, over this type: the block holds values of it.
    Stack,
}
