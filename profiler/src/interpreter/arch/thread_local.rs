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
