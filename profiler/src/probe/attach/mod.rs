//! Attaches probes. How is a backend's affair: one file each, chosen by what the kernel offers.

pub mod detacher;
pub mod multi;
pub mod perf;
pub mod session;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use profiler_common::hook::HookCookie;
use thiserror::Error;
use tracing::debug;

use crate::address::FileOffset;
use crate::bpf::load::{Kernel, LinkKind, LoadError};
use crate::ids::Pid;
use crate::sys::bpf::{AttachType, supports};
use crate::sys::capability;

/// A hook placed at an instruction of a file.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// The instruction.
    pub offset: FileOffset,
    /// What the programs are told.
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

/// Something attached: one probe or many. Dropping it detaches; so does the end of this process, whatever ends it,
/// because the kernel closes its descriptors.
pub struct Link {
    /// Held for its `Drop`.
    _link: Box<dyn Send>,
}

impl Link {
    fn new(link: impl Send + 'static) -> Self {
        Self { _link: Box::new(link) }
    }
}

/// Detaches many links at once. The kernel lets each wait until no program can be in its handler any more, about
/// 100 ms; side by side they wait together.
pub fn detach_all(links: Vec<Link>) {
    std::thread::scope(|scope| {
        for link in links {
            scope.spawn(move || drop(link));
        }
    });
}

/// A way to attach probes.
pub trait Backend {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Attaches the probes of one file for one process, in their order, all of them or none.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; then nothing is left attached.
    fn attach(&self, kernel: &mut Kernel, file: &File, probes: &[Probe], pid: Pid) -> Result<Vec<Link>, AttachError>;
}

/// Which backend to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendChoice {
    /// The cheapest that the kernel offers.
    Auto,
    /// This one.
    Only(LinkKind),
}

/// Why there is no way to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoBackend {
    /// The user wants one that the kernel has not.
    #[error(
        "this kernel has no `{0}` links (multi needs Linux 6.6, session 6.13); leave `--backend` out to use what it has"
    )]
    Missing(&'static str),
    /// Perf events for uprobes take more than the other two (`perf_uprobe_event_init` in `kernel/events/core.c`).
    #[error(
        "not allowed: probes by perf events, all that is left here, need CAP_SYS_ADMIN; run heapbpf through `sudo`"
    )]
    NeedsAdmin,
}

/// The kind of links to load programs for. Found by trying: version numbers lie, distributions backport.
///
/// # Errors
///
/// When the kernel lacks the one that is asked for, or this user may not use the one that is left.
pub fn choose(choice: BackendChoice) -> Result<LinkKind, NoBackend> {
    let kind = match choice {
        BackendChoice::Auto if has(AttachType::UprobeSession) => LinkKind::Session,
        BackendChoice::Auto if has(AttachType::UprobeMulti) => LinkKind::Multi,
        BackendChoice::Only(LinkKind::Session) if !has(AttachType::UprobeSession) => {
            return Err(NoBackend::Missing("session"));
        }
        BackendChoice::Only(LinkKind::Multi) if !has(AttachType::UprobeMulti) => {
            return Err(NoBackend::Missing("multi"));
        }
        BackendChoice::Only(kind) => kind,
        BackendChoice::Auto => LinkKind::Perf,
    };
    if kind == LinkKind::Perf && !capability::has_admin() { Err(NoBackend::NeedsAdmin) } else { Ok(kind) }
}

/// What could not be told counts as missing: perf events are there since the cookies that all need.
fn has(attach_type: AttachType) -> bool {
    supports(attach_type).unwrap_or_else(|error| {
        debug!("cannot tell whether there are {attach_type:?} links: {error}");
        false
    })
}

/// The backend for links of this kind.
#[must_use]
pub fn backend(kind: LinkKind) -> &'static dyn Backend {
    match kind {
        LinkKind::Perf => &perf::Perf,
        LinkKind::Multi => &multi::Multi,
        LinkKind::Session => &session::Session,
    }
}

/// A path that leads the kernel to an open file. Not the file's own path: that may lie in another mount namespace, or
/// name another file by now.
fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn refused(reason: &dyn std::fmt::Display) -> AttachError {
    AttachError::Refused(reason.to_string())
}
