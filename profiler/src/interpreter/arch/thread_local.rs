//! Thread-local storage.

/// Where code finds a pointer in thread-local storage ("ELF Handling for Thread-Local Storage", Drepper).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadLocal {
    /// At this offset from the thread pointer.
    Fixed(u64),
    /// The word at this link address is the offset from the thread pointer, to add to the second.
    Loaded(u64, u64),
    /// The words at this link address are the number of a module, and an offset to add to the second in its storage.
    Module(u64, u64),
    /// The second of the words at this link address describes the offset from the thread pointer, to add to the second here.
    Descriptor(u64, u64),
}

impl ThreadLocal {
    pub(super) fn plus(self, more: u64) -> Self {
        match self {
            Self::Fixed(offset) => Self::Fixed(offset.wrapping_add(more)),
            Self::Loaded(slot, offset) => Self::Loaded(slot, offset.wrapping_add(more)),
            Self::Module(slot, offset) => Self::Module(slot, offset.wrapping_add(more)),
            Self::Descriptor(slot, offset) => Self::Descriptor(slot, offset.wrapping_add(more)),
        }
    }
}

/// What a register contains: an address of, or an offset to, thread-local storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A link address.
    Address(u64),
    Constant(u64),
    /// A word at a link address.
    Word(u64),
    /// The offset that a descriptor at this link address has.
    Described(u64),
    /// In thread-local storage.
    Pointer(ThreadLocal),
}

/// Instructions from the start of a function to the read of its pointer.
pub(super) const THREAD_LOCAL_INSTRUCTIONS_MAX: usize = 24;
