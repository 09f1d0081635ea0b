//! Attaches probes through the keeper, by the cheapest kind of link that the kernel supports.

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

#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    pub offset: FileOffset,
    pub cookie: HookCookie,
}

#[derive(Debug, Error)]
pub(crate) enum AttachError {
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kernel refuses, or the keeper has exited.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
}

/// Attaches the probes of one file, in one process or in every process that maps the file: all of them or, on an error, none.
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

pub(crate) fn backend_name(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Perf => "perf",
        LinkKind::Multi => "multi",
        LinkKind::Session => "session",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendChoice {
    /// The cheapest that the kernel supports.
    Auto,
    Only(LinkKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum NoBackend {
    #[error(
        "this kernel has no `{0}` links (multi needs Linux 6.6, session 6.13); omit `--backend` to use the best available"
    )]
    Missing(&'static str),
    /// Perf events for uprobes need more privileges than the other two (`perf_uprobe_event_init` in `kernel/events/core.c`).
    #[error(
        "not allowed: probes by perf events, the only kind available here, need CAP_SYS_ADMIN; run heapbpf with `sudo`"
    )]
    NeedsAdmin,
}

/// Tests kernel features instead of version numbers, which are unreliable: distributions backport.
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

/// An inconclusive test counts as missing: perf events are available wherever cookies are.
fn has(attach_type: AttachType) -> bool {
    supports(attach_type).unwrap_or_else(|error| {
        debug!("cannot determine whether the kernel has {attach_type:?} links: {error}");
        false
    })
}
