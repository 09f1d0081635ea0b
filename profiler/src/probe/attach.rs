//! Attaches probes, through the keeper. How is the link's affair: the cheapest kind that the kernel offers.

use std::fs::File;

use profiler_common::hook::HookCookie;
use thiserror::Error;
use tracing::debug;

use crate::address::FileOffset;
use crate::bpf::error::LoadError;
use crate::bpf::load::{Kernel, LinkKind};
use crate::ids::Pid;
use crate::keeper::{Keeper, KeeperError, Link, Site};
use crate::linux::bpf::{AttachType, supports};
use crate::linux::feature;

/// A hook placed at an instruction of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// The instruction.
    pub offset: FileOffset,
    /// What the programs are told.
    pub cookie: HookCookie,
}

/// Why a probe cannot be attached.
#[derive(Debug, Error)]
pub(crate) enum AttachError {
    /// The object is of another version.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kernel refuses, or there is no keeper any more.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
}

/// Attaches the probes of one file, in one process or in every process that maps the file: all of them or none.
///
/// # Errors
///
/// See [`AttachError`]; then nothing is left attached.
pub(crate) fn attach(
    keeper: &Keeper,
    kernel: &Kernel,
    file: &File,
    probes: &[Probe],
    pid: Option<Pid>,
) -> Result<Link, AttachError> {
    let site = |probe: &Probe| Site {
        offset: probe.offset.0,
        cookie: probe.cookie.pack(),
        returns: probe.cookie.shape.allocates(),
    };
    let sites = probes.iter().map(site).collect();
    Ok(keeper.attach(kernel.link_kind(), &kernel.hook_programs()?, file, sites, pid)?)
}

/// The name of a kind of links in reports.
pub(crate) fn backend_name(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Perf => "perf",
        LinkKind::Multi => "multi",
        LinkKind::Session => "session",
    }
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
pub(crate) enum NoBackend {
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
pub(crate) fn choose(choice: BackendChoice) -> Result<LinkKind, NoBackend> {
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
    if kind == LinkKind::Perf && !feature::has_admin() { Err(NoBackend::NeedsAdmin) } else { Ok(kind) }
}

/// What could not be told counts as missing: perf events are there since the cookies that all need.
fn has(attach_type: AttachType) -> bool {
    supports(attach_type).unwrap_or_else(|error| {
        debug!("cannot tell whether there are {attach_type:?} links: {error}");
        false
    })
}
