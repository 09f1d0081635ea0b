//! Perf events: one for the entry, one for the return. Needs Linux 5.15, which brought cookies
//! (`BPF_LINK_CREATE` for perf events with `bpf_cookie`); works without tracefs.
//!
//! Return probes of this kind also fire in other processes that have a probe of their own on the same function
//! (`uretprobe_perf_func` has no filter, up to 7.2 at least), so the programs go by thread: a return whose entry was not
//! seen is nobody's.

use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use aya::programs::{ProgramError, UProbe};

use super::{AttachError, Attached, Backend, Probe};
use crate::bpf::load::Kernel;
use crate::ids::Pid;

/// See the module.
#[derive(Debug)]
pub struct Perf;

impl Backend for Perf {
    fn name(&self) -> &'static str {
        "perf"
    }

    fn attach(&self, kernel: &mut Kernel, probe: Probe<'_>, pid: Pid) -> Result<Attached, AttachError> {
        let mut links = Vec::new();
        // The return first: an entry that is seen then has its return seen as well.
        if probe.shape.allocates() {
            links.push(attach(kernel.return_program()?, probe, pid)?);
        }
        links.push(attach(kernel.entry_program(probe.shape)?, probe, pid)?);
        Ok(Attached { links })
    }
}

fn attach(program: &mut UProbe, probe: Probe<'_>, pid: Pid) -> Result<Box<dyn Send>, AttachError> {
    // The open file, not its path: the path may lie in another mount namespace, or name another file by now.
    let path = PathBuf::from(format!("/proc/self/fd/{}", probe.file.as_raw_fd()));
    let point = UProbeAttachPoint {
        location: UProbeAttachLocation::AbsoluteOffset(probe.offset.0),
        cookie: Some(probe.cookie.pack()),
    };
    let scope = UProbeScope::OneProcess(NonZeroU32::new(pid.0).ok_or_else(|| refused(&"process 0 is the idle task"))?);
    let link = program.attach(point, path, scope).map_err(|error| refused(&causes(&error)))?;
    Ok(Box::new(program.take_link(link).map_err(|error| refused(&causes(&error)))?))
}

fn refused(reason: &dyn std::fmt::Display) -> AttachError {
    AttachError::Refused(reason.to_string())
}

/// An error with all that caused it: aya puts the system's word last.
fn causes(error: &ProgramError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
