//! Uprobe sessions: one link for all functions of a module, whose program says at each entry whether it wants the return.
//! Needs Linux 6.13. A call that is not sampled costs one trap instead of two.

use std::fs::File;

use super::{AttachError, Backend, Link, Probe, path_of, refused};
use crate::bpf::load::{Kernel, LoadError};
use crate::ids::Pid;
use crate::sys::bpf::{AttachType, MultiLink, link_multi};

/// See the module.
#[derive(Debug)]
pub struct Session;

impl Backend for Session {
    fn name(&self) -> &'static str {
        "session"
    }

    fn attach(&self, kernel: &mut Kernel, file: &File, probes: &[Probe], pid: Pid) -> Result<Vec<Link>, AttachError> {
        let program = kernel.session_program().ok_or(LoadError::Missing("hook_session"))?;
        let offsets: Vec<u64> = probes.iter().map(|probe| probe.offset.0).collect();
        let cookies: Vec<u64> = probes.iter().map(|probe| probe.cookie.pack()).collect();
        let path = path_of(file);
        let link = MultiLink { path: &path, offsets: &offsets, cookies: &cookies, pid: Some(pid), at_return: false };
        let link = link_multi(program, AttachType::UprobeSession, link).map_err(|error| refused(&error))?;
        Ok(vec![Link::new(link)])
    }
}
