//! RAII guard that defers Ctrl-Z (SIGTSTP) while another process is stopped for this one, and would stay so.

#![expect(unsafe_code, reason = "rustix has no sigaction for programs with a libc")]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether the signal was sent meanwhile.
static CAME: AtomicBool = AtomicBool::new(false);

static DEFERRING: Mutex<Deferring> = Mutex::new(Deferring { depth: 0, is_default: false });

struct Deferring {
    /// Number of guards.
    depth: usize,
    /// The signal would stop this process: nobody else handles or ignores it.
    is_default: bool,
}

/// The signal is deferred as long as one of these exists, and sent again when the last one is dropped.
#[derive(Debug)]
pub(crate) struct Deferral(());

impl Deferral {
    /// Defers it from now on.
    pub(crate) fn begin() -> Self {
        let mut deferring = deferring();
        if deferring.depth == 0 {
            deferring.is_default = is_default();
            if deferring.is_default {
                set(note as *const () as libc::sighandler_t);
            }
        }
        deferring.depth += 1;
        Self(())
    }
}

impl Drop for Deferral {
    fn drop(&mut self) {
        let mut deferring = deferring();
        deferring.depth -= 1;
        if deferring.depth > 0 || !deferring.is_default {
            return;
        }
        set(libc::SIG_DFL);
        drop(deferring);
        if CAME.swap(false, Ordering::Relaxed) {
            // SAFETY: sends a signal to this process, as somebody has before.
            unsafe { libc::kill(libc::getpid(), libc::SIGTSTP) };
        }
    }
}

fn deferring() -> MutexGuard<'static, Deferring> {
    DEFERRING.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn note(_signal: libc::c_int) {
    CAME.store(true, Ordering::Relaxed);
}

fn is_default() -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action this only fills the old one, which is valid when zeroed, too.
    unsafe {
        libc::sigaction(libc::SIGTSTP, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_DFL
    }
}

fn set(action: libc::sighandler_t) {
    // SAFETY: a valid value for every field.
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    (new.sa_sigaction, new.sa_flags) = (action, libc::SA_RESTART);
    // SAFETY: the action is the default, or `note`, which does nothing that is forbidden in a handler.
    unsafe { libc::sigaction(libc::SIGTSTP, &raw const new, ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Stops nothing: that depends on whether the process group is orphaned.
    #[test]
    #[ignore = "a part of another test, because it changes how its process handles a signal"]
    fn is_not_stopped() {
        let outer = Deferral::begin();
        let inner = Deferral::begin();
        // SAFETY: sends a signal to this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGTSTP) };
        while !CAME.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        drop(inner);
        assert!(!is_default());
        assert!(CAME.swap(false, Ordering::Relaxed), "it is sent again at the end");
        drop(outer);
        assert!(is_default());
    }

    #[test]
    fn ctrl_z_waits() {
        let mut command = Command::new(std::env::current_exe().expect("known"));
        command.args(["--ignored", "--exact", "linux::deferral::tests::is_not_stopped"]);
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
    }
}
