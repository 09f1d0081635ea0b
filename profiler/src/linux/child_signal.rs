//! A descriptor that is readable when a child or a traced thread of this process has changed its state.

#![expect(unsafe_code, reason = "handlers of signals cannot be checked")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use signal_hook_registry::SigId;

/// Receives SIGCHLD from now on. Each one receives all.
#[derive(Debug)]
pub(crate) struct ChildSignal {
    event: Arc<std::os::fd::OwnedFd>,
    id: SigId,
}

impl ChildSignal {
    /// Has SIGCHLD delivered to the calling thread, too.
    ///
    /// # Errors
    ///
    /// When there are no descriptors left.
    pub(crate) fn listen() -> io::Result<Self> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let handled = Arc::clone(&event);
        let action = move || {
            // It is readable already where this would block.
            let _ = rustix::io::write(&*handled, &1_u64.to_ne_bytes());
        };
        // SAFETY: the action makes a system call, which is allowed in a signal handler.
        let id = unsafe { signal_hook_registry::register(libc::SIGCHLD, action) }?;
        mask(libc::SIG_UNBLOCK);
        Ok(Self { event, id })
    }

    /// Makes the descriptor unreadable until the next signal.
    pub(crate) fn clear(&self) {
        // Nothing is there to be read where it was cleared already.
        let _ = rustix::io::read(&*self.event, &mut [0; 8]);
    }
}

impl AsFd for ChildSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for ChildSignal {
    fn drop(&mut self) {
        signal_hook_registry::unregister(self.id);
    }
}

/// Keeps SIGCHLD from interrupting system calls of the calling thread, and of threads that it starts.
pub(crate) fn block() {
    mask(libc::SIG_BLOCK);
}

fn mask(how: libc::c_int) {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is initialised by the first call, and only read by the last.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        libc::pthread_sigmask(how, set.as_ptr(), ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn each_receives_the_signal_of_a_child() {
        let both = [ChildSignal::listen().expect("descriptors"), ChildSignal::listen().expect("descriptors")];
        Command::new("true").status().expect("it runs");
        for signal in both {
            let mut awaited = [PollFd::new(&signal, PollFlags::IN)];
            while poll(&mut awaited, None).is_err() {}
            signal.clear();
        }
    }
}
