//! What depends on the processor: names of registers, the calling convention, and frames. All of it is compiled for every
//! processor and tested there; the names without a module are those of the processor that the code runs on.

pub mod aarch64;
pub mod x86_64;

#[cfg(any(target_arch = "aarch64", bpf_target_arch = "aarch64"))]
pub use aarch64::*;
#[cfg(not(any(target_arch = "aarch64", bpf_target_arch = "aarch64")))]
pub use x86_64::*;

/// Offsets of thread-specific data (`pthread_getspecific`) in the control block of a thread (`struct pthread`), in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadData {
    /// glibc: the first block of pairs of a sequence number and a value; the others are elsewhere.
    pub glibc_first_block: u64,
    /// glibc: pointers to all blocks.
    pub glibc_blocks: u64,
    /// musl: pointer to an array of values.
    pub musl_values: u64,
}

/// Offsets from the thread pointer to the pointer to the table of thread-local storage (`dtv`), in bytes (wrapping).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageTable {
    pub glibc: u64,
    pub musl: u64,
}

/// Keys of a block of glibc.
pub const GLIBC_BLOCK_KEYS: u64 = 32;
