//! Attaches probes through the keeper.

use std::fs::File;

use profiler_common::hook::HookCookie;
use thiserror::Error;

use crate::address::FileOffset;
use crate::bpf::load::{Kernel, LoadError};
use crate::ids::Pid;
use crate::keeper::{Keeper, KeeperError, Link, Site};

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
