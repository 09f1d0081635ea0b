//! Awaits that a descriptor is readable.

#![expect(unsafe_code, reason = "tokio's registration of descriptors is unsafe since 1.54")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::unix::AsyncFd;

/// A descriptor registered with the runtime.
#[derive(Debug)]
pub(crate) struct Readiness(AsyncFd<OwnedFd>);

impl Readiness {
    /// Registers a duplicate of `fd`, so that the original can be used and closed independently.
    pub(crate) fn of(fd: impl AsFd) -> io::Result<Self> {
        let duplicate = fd.as_fd().try_clone_to_owned()?;
        // SAFETY: `AsyncFd` owns the descriptor until it is dropped, and `OwnedFd` always returns the same one.
        Ok(Self(unsafe { AsyncFd::register(duplicate) }?))
    }

    /// Waits until it is readable (edge-triggered). Fails when the runtime is shutting down.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}
