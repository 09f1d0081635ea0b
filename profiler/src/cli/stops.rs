//! The signals that end a recording: Ctrl-C and what service managers send.

use std::task::{Context as TaskContext, Waker};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::session::Launched;

/// See the module.
pub(super) struct Stops {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// Interrupts that are not meant for heapbpf: the first one belongs to the command that it has started, which gets it
    /// from the terminal as well.
    pub(super) interrupts_left: u32,
    /// The signal to stop has come.
    pub(super) came: bool,
}

impl Stops {
    pub(super) fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            interrupts_left: 0,
            came: false,
        })
    }

    /// Waits for the signal to stop. What is sent to heapbpf alone is passed on to the command, if there is one.
    pub(super) async fn wait(&mut self, command: Option<Launched>) {
        while !self.came {
            tokio::select! {
                _ = self.interrupt.recv() => self.interrupted(),
                _ = self.terminate.recv() => self.terminated(command),
            }
        }
    }

    /// Whether it has come already. What has come is dealt with as by [`wait`](Self::wait).
    pub(super) async fn pending(&mut self, command: Option<Launched>) -> bool {
        // Signals are told of when the runtime gets a turn.
        tokio::task::yield_now().await;
        let mut context = TaskContext::from_waker(Waker::noop());
        if self.interrupt.poll_recv(&mut context).is_ready() {
            self.interrupted();
        }
        if self.terminate.poll_recv(&mut context).is_ready() {
            self.terminated(command);
        }
        self.came
    }

    fn interrupted(&mut self) {
        match self.interrupts_left.checked_sub(1) {
            Some(left) => self.interrupts_left = left,
            None => self.came = true,
        }
    }

    fn terminated(&mut self, command: Option<Launched>) {
        match command {
            Some(command) => command.terminate(),
            None => self.came = true,
        }
    }
}
