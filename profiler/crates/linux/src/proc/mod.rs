//! Access to `/proc`, reduced to what heapbpf needs.

pub mod hierarchy;
pub mod maps;
pub mod mounts;
pub mod process;
pub mod smaps;
pub mod stat;
pub mod writable;

pub use process::ProcError;
