//! Where the resident memory of a process is: which of its mappings belong to which use.

mod classify;
mod contents;
mod evidence;
mod monitor;
mod pages;
mod runtime;
mod stacks;
mod variables;

pub(crate) use monitor::{MemoryMonitor, SampleTime, Sampled};
