//! Signals that would end or stop this process, kept until something is over that must not be left half done: another process would be
//! left without its tracer, or stand still as long as this one does. Refuses to keep those that somebody listens for: they do no harm.

#![expect(unsafe_code, reason = "rustix has no sigaction for programs with a libc")]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What people and service managers send.
const SIGNALS: [libc::c_int; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGALRM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTSTP,
];

/// Those that have come: bit n for signal n.
static CAME: AtomicU64 = AtomicU64::new(0);

static KEEPING: Mutex<Keeping> = Mutex::new(Keeping { depth: 0, signals: Vec::new() });

struct Keeping {
    /// How many ask for it.
    depth: usize,
    /// What would have ended or stopped this process.
    signals: Vec<libc::c_int>,
}

/// Signals are kept as long as one of these is there, and sent again when the last one is dropped.
#[derive(Debug)]
pub struct Deferral(());

impl Deferral {
    /// Keeps them from now on.
    #[must_use]
    pub fn begin() -> Self {
        let mut keeping = keeping();
        if keeping.depth == 0 {
            keeping.signals = SIGNALS.into_iter().filter(|&signal| is_default(signal)).collect();
            keeping.signals.iter().for_each(|&signal| set(signal, note as *const () as libc::sighandler_t));
        }
        keeping.depth += 1;
        Self(())
    }

    /// Whether one has come that will end this process: what can be broken off is to be.
    #[must_use]
    pub fn is_to_end() -> bool {
        CAME.load(Ordering::Relaxed) & !(1 << libc::SIGTSTP) != 0
    }
}

impl Drop for Deferral {
    fn drop(&mut self) {
        let mut keeping = keeping();
        keeping.depth -= 1;
        if keeping.depth > 0 {
            return;
        }
        let signals = std::mem::take(&mut keeping.signals);
        signals.iter().for_each(|&signal| set(signal, libc::SIG_DFL));
        drop(keeping);
        let came = CAME.swap(0, Ordering::Relaxed);
        for signal in signals.into_iter().filter(|signal| came & (1 << signal) != 0) {
            // SAFETY: sends a signal to this process, as somebody has before.
            unsafe { libc::kill(libc::getpid(), signal) };
        }
    }
}

fn keeping() -> MutexGuard<'static, Keeping> {
    KEEPING.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn note(signal: libc::c_int) {
    CAME.fetch_or(1 << signal, Ordering::Relaxed);
}

fn is_default(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action this only fills the old one, which is valid when zeroed, too.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_DFL
    }
}

fn set(signal: libc::c_int, action: libc::sighandler_t) {
    // SAFETY: a valid value for every field.
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    (new.sa_sigaction, new.sa_flags) = (action, libc::SA_RESTART);
    // SAFETY: the action is the default, or `note`, which does nothing that is forbidden in a handler.
    unsafe { libc::sigaction(signal, &raw const new, ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    fn raise(signal: libc::c_int) {
        // SAFETY: sends a signal to this process.
        unsafe { libc::kill(libc::getpid(), signal) };
    }

    #[test]
    #[ignore = "a part of another test, which ends its process"]
    #[expect(clippy::print_stdout, reason = "the other test reads it")]
    fn is_ended() {
        let outer = Deferral::begin();
        let inner = Deferral::begin();
        assert!(!Deferral::is_to_end());
        raise(libc::SIGTSTP);
        while CAME.load(Ordering::Relaxed) == 0 {}
        assert!(!Deferral::is_to_end());
        raise(libc::SIGTERM);
        while !Deferral::is_to_end() {}
        drop(inner);
        println!("\ngoes on");
        // It is to end, and not to stand still.
        CAME.fetch_and(!(1 << libc::SIGTSTP), Ordering::Relaxed);
        drop(outer);
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn what_ends_a_process_waits() {
        let mut command = Command::new(std::env::current_exe().expect("known"));
        command.args(["--ignored", "--exact", "--nocapture", "sys::deferral::tests::is_ended"]);
        let output = command.stdout(Stdio::piped()).output().expect("it starts");
        assert!(String::from_utf8_lossy(&output.stdout).contains("\ngoes on\n"), "{output:?}");
        assert_eq!(output.status.signal(), Some(libc::SIGTERM));
    }
}
