//! Accounts of the resident memory of a process: which of its mappings belong to which use.

mod classify;
mod contents;
mod evidence;
mod monitor;
pub(crate) mod pages;
mod runtime;
mod stacks;
mod variables;

pub(crate) use monitor::{HookedMemory, MemoryMonitor, SampleTime, Sampled};
