//! Stops of a tracee: waits for a stop, and ends the stop of a program at its exec by SIGSTOP, so that the program cannot notice
//! it.

use std::io;
use std::time::{Duration, Instant};

use heapbpf_linux::proc::stat;
use heapbpf_linux::ptrace::{Stop, Tracee};

/// Time limit for a stop. It takes microseconds, except in an uninterruptible wait, which may last indefinitely and block
/// everything else.
const STOP_WAIT: Duration = Duration::from_millis(20);

/// Time for which a process may wait for a processor, on which it would stop.
const PROCESSOR_WAIT: Duration = Duration::from_secs(2);

const SIGCONT: u64 = 1 << (libc::SIGCONT - 1);

/// Ends the stop of a program by SIGSTOP. `stop` is the first one since the program is traced. Returns the stop at which it is
/// held then: it still has run no instruction. `None` if it does not stop.
pub(super) fn end_stop(tracee: &Tracee, stop: Stop) -> io::Result<Option<Stop>> {
    if stop == Stop::Signal(libc::SIGSTOP) {
        // SIGSTOP is not passed on.
        return Ok(Some(Stop::Trap));
    }
    // The program may have inherited a mask that would leave the signal pending.
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
                // The signal has not arrived, for whatever reason.
                tracee.interrupt()?;
                return await_stop(tracee);
            }
        }
    }
}

/// Waits until the tracee stops. `None` if it does not, because it waits uninterruptibly; on a busy machine it may wait for a
/// processor first.
pub(super) fn await_stop(tracee: &Tracee) -> io::Result<Option<Stop>> {
    let begun = Instant::now();
    let is_runnable = || stat::status(tracee.pid(), tracee.tid()).is_some_and(|status| status.state == 'R');
    loop {
        if let Some(stop) = tracee.wait(STOP_WAIT)? {
            return Ok(Some(stop));
        }
        if begun.elapsed() > PROCESSOR_WAIT || !is_runnable() {
            // The tracee may have stopped meanwhile.
            return tracee.wait(Duration::ZERO);
        }
    }
}
