//! `heapbpf doctor`, and the process that it probes.

use std::io::Write;

use anyhow::{Context, Result};

use super::args::DoctorArgs;
use super::{exit, privilege, terminal};
use crate::doctor::{Diagnosis, serve, text, write_json};
use crate::ids::Pid;

/// Finds out, tells, and returns the exit code: whether profiling would work.
pub(super) fn run(args: &DoctorArgs) -> Result<u8> {
    privilege::raise_memory_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    let _inside = runtime.enter();
    let diagnosis = Diagnosis::make(args.pid.map(Pid), args.placement.into());
    let mut out = terminal::output();
    if args.json {
        write_json(&diagnosis, &mut out)?;
    } else {
        let (_, colour) = terminal::layout();
        out.write_all(text(&diagnosis, colour).as_bytes())?;
    }
    Ok(if diagnosis.works() { exit::DONE } else { exit::FAILED })
}

/// Is the process that is probed.
pub(super) fn target() -> Result<u8> {
    serve(std::io::stdin().lock(), terminal::output())?;
    Ok(exit::DONE)
}
