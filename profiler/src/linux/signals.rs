//! Which signals this process ignores and blocks, to be handed on to a program that it starts, and who sent one.

#![expect(unsafe_code, reason = "rustix has neither sigaction nor sigprocmask for programs with a libc")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a program inherits: the signals that are ignored, and those that are blocked.
///
/// To be asked for before heapbpf installs any handler: a shell that starts a job in the background, or `nohup`, has
/// signals ignored, and a handler in their place would let them kill the program.
#[derive(Clone, Copy)]
pub struct InheritedSignals {
    /// Bit n for signal n.
    ignored: u128,
    blocked: libc::sigset_t,
}

impl InheritedSignals {
    /// Of now and this thread. `SIGPIPE` counts as not ignored: Rust's runtime ignores it before `main`, and nothing tells
    /// how it was found.
    pub fn now() -> Self {
        let is_ignored = |signal: i32| signal != libc::SIGPIPE && disposition(signal) == Some(libc::SIG_IGN);
        let ignored = (1..=SIGNAL_MAX).filter(|&signal| is_ignored(signal)).fold(0, |set, signal| set | 1 << signal);
        let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: without a new set this only fills the old one, which is valid when zeroed, too.
        let blocked = unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), blocked.as_mut_ptr());
            blocked.assume_init()
        };
        Self { ignored, blocked }
    }

    /// Whether a signal is ignored.
    pub fn ignores(&self, signal: i32) -> bool {
        (1..=SIGNAL_MAX).contains(&signal) && self.ignored & (1 << signal) != 0
    }

    /// Makes this process the way it was. For a child between fork and exec: it makes system calls and nothing else.
    pub(super) fn restore(&self) {
        for signal in 1..=SIGNAL_MAX {
            let action = if self.ignores(signal) { libc::SIG_IGN } else { libc::SIG_DFL };
            // SAFETY: neither ignoring a signal nor its default runs code of ours. It fails for those that cannot be
            // changed, which is right.
            unsafe { libc::signal(signal, action) };
        }
        // SAFETY: the set was filled by the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.blocked, ptr::null_mut()) };
    }
}

impl std::fmt::Debug for InheritedSignals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InheritedSignals").field("ignored", &self.ignored).finish_non_exhaustive()
    }
}

/// Makes a write beyond the limit of a file's size (`ulimit -f`) fail, instead of ending this process by SIGXFSZ.
pub(crate) fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Signals of which the last one was sent by a process (`kill`), and not by the kernel for a terminal, which sends it to all
/// processes of a group. Bit n for signal n.
static FROM_PROCESS: AtomicU64 = AtomicU64::new(0);

/// Records from now on who sends these signals. To be called before others listen for them, so that they find it recorded.
///
/// # Errors
///
/// The system's.
pub(crate) fn record_senders(signals: &[i32]) -> io::Result<()> {
    for &signal in signals {
        // `SI_FROMUSER` in include/uapi/asm-generic/siginfo.h: codes of signals that processes send are 0 and below.
        let action = move |info: &libc::siginfo_t| {
            if info.si_code <= 0 {
                FROM_PROCESS.fetch_or(1 << signal, Ordering::Relaxed);
            } else {
                FROM_PROCESS.fetch_and(!(1 << signal), Ordering::Relaxed);
            }
        };
        // SAFETY: the action changes an atomic, which is allowed in a signal handler.
        unsafe { signal_hook_registry::register_sigaction(signal, action) }?;
    }
    Ok(())
}

/// Whether a process sent the last signal of this number.
pub(crate) fn is_from_process(signal: i32) -> bool {
    FROM_PROCESS.load(Ordering::Relaxed) & (1 << signal) != 0
}

/// The highest signal number.
const SIGNAL_MAX: i32 = 64;

fn disposition(signal: i32) -> Option<libc::sighandler_t> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action this only fills the old one.
    let result = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: filled by the call, or zeroed, which is valid.
    (result == 0).then(|| unsafe { action.assume_init() }.sa_sigaction)
}
