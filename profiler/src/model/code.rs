//! What ran: files of code, where they were mapped, and threads.

use std::sync::Arc;

use crate::ids::Tid;

/// A file of code, or code of the kernel's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleProfile {
    /// Its path as the target names it, as [`Frame::module`](super::Frame::module) has it.
    pub path: Arc<str>,
    /// Its GNU build id, if it has one.
    pub build_id: Option<Vec<u8>>,
}

/// A range of addresses at which code of a module is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingProfile {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// What has to be taken from an address to have it as the module's ELF headers say it (the load bias), where that is known.
    pub bias: Option<u64>,
    /// Index into [`Profile::modules`](super::Profile::modules).
    pub module: usize,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadProfile {
    /// Its number.
    pub tid: Tid,
    /// The kernel's name for it, as it was when it was first seen to allocate; `None` where it had ended before.
    pub name: Option<Arc<str>>,
}

/// The last component of a path.
pub(crate) fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
