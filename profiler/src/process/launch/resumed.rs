//! Ends the stop of a program that was stopped at its exec by SIGSTOP, so that the program cannot notice it.

use std::io;
use std::time::Duration;

use crate::linux::ptrace::{Stop, Tracee};

const SIGCONT: u64 = 1 << (libc::SIGCONT - 1);

/// `stop` is the first one since it is traced. Returns the one at which it is held then: it still has run no instruction. `None`
/// if it does not stop within `patience`.
pub(super) fn end_stop(tracee: &Tracee, stop: Stop, patience: Duration) -> io::Result<Option<Stop>> {
    if stop == Stop::Signal(libc::SIGSTOP) {
        // It is not passed on.
        return Ok(Some(Stop::Trap));
    }
    // It may have inherited a mask that would leave the signal pending.
    let Some(blocked) = tracee.blocked_signals()? else { return Ok(Some(stop)) };
    tracee.block_signals(blocked & !SIGCONT)?;
    tracee.end_group_stop()?;
    let held = run_to_continuation(tracee, stop, patience);
    tracee.block_signals(blocked)?;
    held
}

fn run_to_continuation(tracee: &Tracee, mut stop: Stop, patience: Duration) -> io::Result<Option<Stop>> {
    loop {
        // A group-stop that has ended needs no `PTRACE_LISTEN`.
        tracee.run(if stop == Stop::Group { Stop::Trap } else { stop })?;
        match tracee.wait(patience)? {
            Some(Stop::Signal(libc::SIGCONT)) => return Ok(Some(Stop::Trap)),
            Some(next) if !matches!(next, Stop::Ended(_)) => stop = next,
            Some(ended) => return Ok(Some(ended)),
            None => {
                // Without the signal, for whatever reason.
                tracee.interrupt()?;
                return tracee.wait(patience);
            }
        }
    }
}
