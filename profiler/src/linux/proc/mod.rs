//! Access to `/proc`, reduced to what heapbpf needs.

pub(crate) mod hierarchy;
pub(crate) mod maps;
pub(crate) mod mounts;
pub(crate) mod process;
pub(crate) mod smaps;
pub(crate) mod stat;
pub(crate) mod writable;

pub(crate) use process::ProcError;
