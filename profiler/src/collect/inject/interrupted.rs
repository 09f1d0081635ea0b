//! System calls that a stop has interrupted, on processors whose registers do not show how they restart: with a time that is
//! left, or not at all after a signal handler. There, the thread makes the call again, up to its exit, where its result shows
//! this; and the thread is returned to an exit with the same result, so that the kernel restarts the call as it would have.

use std::io;
use std::time::Instant;

use heapbpf_linux::arch::{self, Interruption};
use heapbpf_linux::ptrace::{Stop, SyscallPhase};

use super::{CALL_WAIT, InjectedThread};

enum Again {
    AtExit,
    /// The thread was stopped by a signal that has arrived before.
    Stopped,
    Ended,
}

impl InjectedThread {
    /// Makes an interrupted system call again until the registers show how it restarts. Returns false if the thread was killed.
    pub(super) fn reveal_restart(&mut self) -> io::Result<bool> {
        let deadline = Instant::now() + CALL_WAIT;
        loop {
            match self.saved.interruption(&|address| self.tracee.is_call(address)) {
                Interruption::Visible => return Ok(true),
                Interruption::Failed => {
                    // Without its first argument, the call cannot be restarted, and fails.
                    if let Ok(argument) = arch::first_argument(&self.tracee) {
                        self.saved = self.saved.with_first_argument(argument);
                    }
                    return Ok(true);
                }
                Interruption::Rewound => match self.call_again(deadline)? {
                    Again::AtExit => return Ok(true),
                    Again::Stopped => {}
                    Again::Ended => return Ok(false),
                },
            }
            let (Some(saved), Some(blocked)) = (self.tracee.registers()?, self.tracee.blocked_signals()?) else {
                return Ok(false);
            };
            (self.saved, self.blocked) = (saved, blocked);
        }
    }

    /// Makes the interrupted system call again. Signals are not blocked: if this process is killed meanwhile, nothing has
    /// changed.
    fn call_again(&mut self, deadline: Instant) -> io::Result<Again> {
        let mut first_argument = 0;
        let mut stop = Stop::Trap;
        loop {
            self.tracee.run_to_syscall(stop)?;
            self.runs = true;
            stop = self.next(deadline)?;
            match stop {
                Stop::Ended(_) => return Ok(Again::Ended),
                Stop::Trap => return Ok(Again::Stopped),
                Stop::Syscall => match self.tracee.syscall_info()?.map(|info| info.phase) {
                    None => return Ok(Again::Ended),
                    Some(SyscallPhase::Entry { arguments, .. }) => {
                        first_argument = arguments[0];
                        self.tracee.interrupt()?;
                    }
                    Some(_) => {
                        let Some(registers) = self.tracee.registers()? else { return Ok(Again::Ended) };
                        self.saved = registers.at_exit(&self.saved, first_argument);
                        self.at_exit = true;
                        return Ok(Again::AtExit);
                    }
                },
                // SIGSTOP cannot be blocked, and is sent again in the end.
                Stop::Signal(libc::SIGSTOP) => stop = Stop::Trap,
                // If the signal has a handler, the thread stops before the handler runs.
                Stop::Signal(_) => self.tracee.interrupt()?,
                _ => return Err(io::Error::other("the process was stopped by a signal")),
            }
        }
    }

    /// Restores the thread at the exit of its interrupted system call. The kernel takes the first argument of a restarted call
    /// from the last call, so the last call has the same one. If this process is killed from there on, the thread is restored, or
    /// restores itself.
    pub(super) fn restore_at_exit(&mut self, first_argument: u64) -> io::Result<()> {
        if self.ran && self.call(libc::SYS_getppid, [first_argument, 0, 0, 0, 0, 0], &mut |_| ())?.is_none() {
            return Ok(());
        }
        // A stop is requested first: the kernel restarts a call only before a stop or a signal.
        self.tracee.interrupt()?;
        self.tracee.block_signals(self.blocked)?;
        self.tracee.set_registers(&self.saved)?;
        let deadline = Instant::now() + CALL_WAIT;
        let mut stop = Stop::Syscall;
        while !matches!(stop, Stop::Trap | Stop::Ended(_)) {
            self.tracee.run(stop)?;
            self.runs = true;
            stop = self.next(deadline)?;
        }
        Ok(())
    }
}
