//! Where the resident memory of a process is: which of its mappings belong to which use.

mod classify;
mod monitor;
mod runtime;

pub(crate) use monitor::{MemoryMonitor, SampleTime};
