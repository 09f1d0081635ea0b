//! Attaches probes through the keeper.

use std::fs::File;

use heapbpf_base::address::{FileOffset, TargetAddr};
use heapbpf_base::ids::Pid;
use heapbpf_linux::proc::maps::Mapping;
use profiler_common::hook::HookCookie;
use thiserror::Error;

use crate::bpf::load::{Kernel, LoadError};
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
    /// The kernel refuses the probes, or the keeper has exited.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
}

/// Addresses of the probes in each mapping of their file, with their cookies. On kernels without cookies, [`Kernel::set_probes`]
/// must be called with these addresses before [`attach`].
pub(crate) fn addresses<'a>(
    probes: &'a [Probe],
    mappings: impl Iterator<Item = &'a Mapping> + 'a,
) -> impl Iterator<Item = (TargetAddr, HookCookie)> + 'a {
    mappings.flat_map(|mapping| {
        probes.iter().filter_map(|probe| {
            let address = mapping.start.0.checked_add(probe.offset.0.checked_sub(mapping.offset.0)?)?;
            (address < mapping.end.0).then_some((TargetAddr(address), probe.cookie))
        })
    })
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
        cookie: kernel.has_cookies().then(|| probe.cookie.pack()),
        returns: probe.cookie.shape.allocates(),
    };
    let sites = probes.iter().map(site).collect();
    Ok(keeper.attach(kernel.link_kind(), &kernel.hook_programs()?, file, sites, pid)?)
}
