//! Stops of a tracee: waits for one, and ends that of a program that was stopped at its exec by SIGSTOP, so that the program cannot
//! notice it.

use std::io;
use std::time::{Duration, Instant};

use crate::linux::proc::stat;
use crate::linux::ptrace::{Stop, Tracee};

/// A stop takes microseconds, except in an uninterruptible wait, which may last indefinitely and block everything else.
const STOP_WAIT: Duration = Duration::from_millis(20);

/// How long a process may wait for a processor, on which it would stop.
const PROCESSOR_WAIT: Duration = Duration::from_secs(2);

const SIGCONT: u64 = 1 << (libc::SIGCONT - 1);

/// `stop` is the first one since it is traced. Returns the one at which it is held then: it still has run no instruction. `None`
/// if it does not stop.
pub(super) fn end_stop(tracee: &Tracee, stop: Stop) -> io::Result<Option<Stop>> {
    if stop == Stop::Signal(libc::SIGSTOP) {
        // It is not passed on.
        return Ok(Some(Stop::Trap));
    }
    // It may have inherited a mask that would leave the signal pending.
    let Some(blocked) = tracee.blocked_signals()? else { return Ok(Some(stop)) };
    tracee.block_signals(blocked & !SIGCONT)?;
    tracee.end_group_stop()?;
    let held = run_to_continuation(tracee, stop);
    tracee.block_signals(blocked)?;
    held
}

fn run_to_continuation(tracee: &Tracee, mut stop: Stop) -> io::Result<Option<Stop>> {
    loop {
        // A group-stop that has ended needs no `PTRACE_LISTEN`.
        tracee.run(if stop == Stop::Group { Stop::Trap } else { stop })?;
        match await_stop(tracee)? {
            Some(Stop::Signal(libc::SIGCONT)) => return Ok(Some(Stop::Trap)),
            Some(next) if !matches!(next, Stop::Ended(_)) => stop = next,
            Some(ended) => return Ok(Some(ended)),
            None => {
                // Without the signal, for whatever reason.
                tracee.interrupt()?;
                return await_stop(tracee);
            }
        }
    }
}

/// Waits until it stops. `None` if it does not, because it waits uninterruptibly; on a busy machine it may wait for a processor first.
pub(super) fn await_stop(tracee: &Tracee) -> io::Result<Option<Stop>> {
    let begun = Instant::now();
    let is_runnable = || stat::status(tracee.pid(), tracee.tid()).is_some_and(|status| status.state == 'R');
    loop {
        if let Some(stop) = tracee.wait(STOP_WAIT)? {
            return Ok(Some(stop));
        }
        if begun.elapsed() > PROCESSOR_WAIT || !is_runnable() {
            // It may have stopped meanwhile.
            return tracee.wait(Duration::ZERO);
        }
    }
}
