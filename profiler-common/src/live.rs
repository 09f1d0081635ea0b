//! The live set: every sampled block that has not been freed, as the kernel holds it.

/// Key of the live set. 16 bytes, no padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct LiveKey {
    /// The block's address in the target.
    pub address: u64,
    /// The process, as the initial PID namespace numbers it.
    pub tgid: u32,
    /// Always 0, so that the key has one representation.
    pub reserved: u32,
}

impl LiveKey {
    /// The key of the block at `address` in process `tgid`.
    #[inline(always)]
    #[must_use]
    pub const fn new(tgid: u32, address: u64) -> Self {
        Self { address, tgid, reserved: 0 }
    }
}

/// What is known of a live block. 32 bytes, no padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct LiveBlock {
    /// Bytes that the target asked for.
    pub size_bytes: u64,
    /// When the call returned, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The stack that made it: see [`StackHasher`](crate::stack::StackHasher).
    pub stack_id: u64,
    /// The interval that it was sampled at, in bytes; its weight follows from this and the size.
    pub interval_bytes: u32,
    /// The hook that saw it: an index into the session's list.
    pub hook: u16,
    /// The heap that the hook belongs to: an index into the session's list.
    pub heap: u8,
    /// Always 0.
    pub reserved: u8,
}

const _: () = assert!(size_of::<LiveKey>() == 16 && align_of::<LiveKey>() == 8);
const _: () = assert!(size_of::<LiveBlock>() == 32 && align_of::<LiveBlock>() == 8);
