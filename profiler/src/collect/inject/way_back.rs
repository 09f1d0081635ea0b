//! Code of a process by which an injected thread restores itself.

use std::io;

use heapbpf_base::ids::Pid;
use heapbpf_linux::arch::{self, ADDRESS_END, RETURN_FROM_SIGNAL, SYSCALL_AND_RETURN};
use heapbpf_linux::proc::maps::{Region, RegionKind};
use heapbpf_linux::proc::process;
use heapbpf_linux::ptrace::Tracee;

use super::code::{BYTES_MAX, search};

/// Code of a process by which a thread restores itself after a system call if its tracer is killed: the thread returns to the end
/// of a signal handler, with a frame that contains its former state.
pub(crate) struct WayBack {
    pub(crate) instruction: u64,
    pub(super) restorer: u64,
}

impl WayBack {
    /// Finds the code. `None` without such code, and for threads with a shadow stack, on which the return would fail.
    pub(crate) fn find(pid: Pid, tracee: &Tracee, mapped: &[Region]) -> io::Result<Option<Self>> {
        let status = process::thread_status(pid, tracee.tid())?;
        if arch::has_shadow_stack(&status, tracee) {
            return Ok(None);
        }
        let is_code = |region: &&Region| {
            region.executable && region.readable && !region.writable && region.end.0 < ADDRESS_END && !region.is_stubs()
        };
        let is_libc = |region: &&Region| match &region.kind {
            RegionKind::File { path } => path
                .file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| ["libc.", "libc-", "ld-musl"].iter().any(|prefix| name.starts_with(prefix))),
            _ => false,
        };
        let (libc, mut others): (Vec<&Region>, Vec<&Region>) = mapped.iter().filter(is_code).partition(is_libc);
        // The kernel's code is searched first: it is short, and has the end of signal handlers on some processors.
        others.sort_by_key(|region| region.kind != RegionKind::Kernel);
        let mut left_bytes = BYTES_MAX;
        let mut find = |code: &[u8]| {
            libc.iter().chain(&others).find_map(|region| search(tracee.pid(), region, code, &mut left_bytes))
        };
        let (instruction, restorer) = (find(&SYSCALL_AND_RETURN), find(&RETURN_FROM_SIGNAL));
        Ok(instruction.zip(restorer).map(|(instruction, restorer)| Self { instruction, restorer }))
    }
}
