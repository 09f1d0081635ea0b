//! Perf events: one for each entry, one for each return. Needs Linux 5.15, which brought cookies (`BPF_LINK_CREATE` for
//! perf events with `bpf_cookie`); works without tracefs.
//!
//! Return probes of this kind also fire in other processes that have a probe of their own on the same function
//! (`uretprobe_perf_func` has no filter, up to 7.2 at least), so the programs go by thread: a return whose entry was not
//! seen is nobody's.

use std::fs::File;
use std::num::NonZeroU32;
use std::path::Path;

use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use aya::programs::{ProgramError, UProbe};

use super::{AttachError, Backend, Link, Probe, path_of, refused};
use crate::bpf::load::Kernel;
use crate::ids::Pid;

/// See the module.
#[derive(Debug)]
pub struct Perf;

impl Backend for Perf {
    fn name(&self) -> &'static str {
        "perf"
    }

    fn attach(&self, kernel: &mut Kernel, file: &File, probes: &[Probe], pid: Pid) -> Result<Vec<Link>, AttachError> {
        let path = path_of(file);
        let mut links = Vec::new();
        for probe in probes {
            // The return first: an entry that is seen then has its return seen as well.
            if probe.cookie.shape.allocates() {
                links.push(attach(kernel.perf_program(true)?, &path, probe, pid)?);
            }
            links.push(attach(kernel.perf_program(false)?, &path, probe, pid)?);
        }
        Ok(links)
    }
}

fn attach(program: &mut UProbe, path: &Path, probe: &Probe, pid: Pid) -> Result<Link, AttachError> {
    let point = UProbeAttachPoint {
        location: UProbeAttachLocation::AbsoluteOffset(probe.offset.0),
        cookie: Some(probe.cookie.pack()),
    };
    let scope = UProbeScope::OneProcess(NonZeroU32::new(pid.0).ok_or_else(|| refused(&"process 0 is the idle task"))?);
    let link = program.attach(point, path, scope).map_err(|error| refused(&causes(&error)))?;
    Ok(Link::new(program.take_link(link).map_err(|error| refused(&causes(&error)))?))
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
