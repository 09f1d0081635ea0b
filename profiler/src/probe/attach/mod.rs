//! Attaches probes. How is a backend's affair: one file each, chosen by what the kernel offers.

pub mod perf;

use std::fs::File;

use profiler_common::hook::{CallShape, HookCookie};
use thiserror::Error;

use crate::address::FileOffset;
use crate::bpf::load::{Kernel, LoadError};
use crate::ids::Pid;

/// A hook placed at an instruction.
#[derive(Clone, Copy, Debug)]
pub struct Probe<'a> {
    /// The module's file, open.
    pub file: &'a File,
    /// The instruction.
    pub offset: FileOffset,
    /// Which programs run.
    pub shape: CallShape,
    /// What they are told.
    pub cookie: HookCookie,
}

/// Why a probe cannot be attached.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The object is of another version.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kernel refuses.
    #[error("{0}")]
    Refused(String),
}

/// An attached probe. Dropping it detaches; so does the end of this process, whatever ends it, because the kernel
/// closes its descriptors.
pub struct Attached {
    /// Held for their `Drop`.
    links: Vec<Box<dyn Send>>,
}

/// Detaches many probes at once. The kernel lets each link wait until no program can be in its handler any more, about
/// 100 ms; side by side they wait together.
pub fn detach_all(attached: Vec<Attached>) {
    std::thread::scope(|scope| {
        for link in attached.into_iter().flat_map(|attached| attached.links) {
            scope.spawn(move || drop(link));
        }
    });
}

/// A way to attach probes.
pub trait Backend {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Attaches a probe for one process.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; then nothing of the probe is left attached.
    fn attach(&self, kernel: &mut Kernel, probe: Probe<'_>, pid: Pid) -> Result<Attached, AttachError>;
}
