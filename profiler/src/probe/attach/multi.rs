//! Multi-uprobes: one link for all entries of a module, one for all returns. Needs Linux 6.6; attaches and detaches many
//! times faster than perf events, and costs the target the same.

use std::fs::File;

use super::{AttachError, Backend, Link, Probe, path_of, refused};
use crate::bpf::load::{Kernel, LoadError};
use crate::ids::Pid;
use crate::sys::bpf::{AttachType, MultiLink, link_multi};

/// See the module.
#[derive(Debug)]
pub struct Multi;

impl Backend for Multi {
    fn name(&self) -> &'static str {
        "multi"
    }

    fn attach(&self, kernel: &mut Kernel, file: &File, probes: &[Probe], pid: Pid) -> Result<Vec<Link>, AttachError> {
        let (entry, at_return) = kernel.multi_programs().ok_or(LoadError::Missing("hook_entry"))?;
        let path = path_of(file);
        let mut links = Vec::new();
        let returning: Vec<Probe> = probes.iter().filter(|probe| probe.cookie.shape.allocates()).copied().collect();
        // Returns first: an entry that is seen then has its return seen as well.
        for (program, probes, at_return) in [(at_return, returning.as_slice(), true), (entry, probes, false)] {
            if probes.is_empty() {
                continue;
            }
            let offsets: Vec<u64> = probes.iter().map(|probe| probe.offset.0).collect();
            let cookies: Vec<u64> = probes.iter().map(|probe| probe.cookie.pack()).collect();
            let link = MultiLink { path: &path, offsets: &offsets, cookies: &cookies, pid: Some(pid), at_return };
            let link = link_multi(program, AttachType::UprobeMulti, link);
            links.push(Link::new(link.map_err(|error| refused(&error))?));
        }
        Ok(links)
    }
}
