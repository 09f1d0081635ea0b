//! Which signals this process ignores and blocks, to be handed on to a program that it starts.

#![expect(unsafe_code, reason = "rustix has neither sigaction nor sigprocmask for programs with a libc")]

use std::mem::MaybeUninit;
use std::ptr;

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
    #[must_use]
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
    #[must_use]
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

/// The highest signal number.
const SIGNAL_MAX: i32 = 64;

fn disposition(signal: i32) -> Option<libc::sighandler_t> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action this only fills the old one.
    let result = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: filled by the call, or zeroed, which is valid.
    (result == 0).then(|| unsafe { action.assume_init() }.sa_sigaction)
}
