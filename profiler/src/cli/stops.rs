//! The signals that end a recording: Ctrl-C, what service managers send, and the end of the terminal session.

use std::task::{Context as TaskContext, Poll, Waker};

use anyhow::{Context, Result};
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

use crate::linux::signals::{self, InheritedSignals};
use crate::session::Launched;

/// Listens for SIGINT, SIGTERM and SIGHUP. With a command, they are the command's: heapbpf forwards those that a process has
/// sent (a `kill` of the whole group reaches the command twice), and records until it exits. A second SIGINT ends heapbpf all
/// the same.
pub(super) struct Stops {
    listeners: Vec<(Signal, unix::Signal)>,
    /// SIGINTs that belong to the command alone: the first one, when there is a command.
    pub(super) interrupts_left: u32,
    /// A signal to stop has come.
    pub(super) came: bool,
}

impl Stops {
    /// `inherited` is how signals were before heapbpf listened for any.
    pub(super) fn new(inherited: &InheritedSignals) -> Result<Self> {
        let mut listeners = Vec::new();
        for (number, kind) in [
            (Signal::INT, SignalKind::interrupt()),
            (Signal::TERM, SignalKind::terminate()),
            (Signal::HUP, SignalKind::hangup()),
        ] {
            // `nohup heapbpf …` is to outlive the terminal session.
            if number != Signal::HUP || !inherited.ignores(libc::SIGHUP) {
                signals::record_senders(&[number.as_raw()]).context("cannot listen for signals")?;
                listeners.push((number, signal(kind).context("cannot listen for signals")?));
            }
        }
        Ok(Self { listeners, interrupts_left: 0, came: false })
    }

    /// Waits for a signal to stop.
    pub(super) async fn wait(&mut self, command: Option<Launched>) {
        while !self.came {
            let signal = std::future::poll_fn(|context| self.poll(context)).await;
            self.receive(signal, command);
        }
    }

    /// Waits for one more signal, whatever has come before. Ignores the interrupt that belongs to the command: it may have ended the
    /// command, and with it the recording, before it was received here.
    pub(super) async fn next(&mut self, command: Option<Launched>) {
        loop {
            let signal = std::future::poll_fn(|context| self.poll(context)).await;
            let is_commands = signal == Signal::INT && self.interrupts_left > 0;
            self.receive(signal, command);
            if !is_commands {
                return;
            }
        }
    }

    /// Whether a signal to stop has come already. What has come is dealt with as by [`wait`](Self::wait).
    pub(super) async fn pending(&mut self, command: Option<Launched>) -> bool {
        // The runtime delivers signals when it gets a turn.
        tokio::task::yield_now().await;
        let mut context = TaskContext::from_waker(Waker::noop());
        while let Poll::Ready(signal) = self.poll(&mut context) {
            self.receive(signal, command);
        }
        self.came
    }

    fn poll(&mut self, context: &mut TaskContext<'_>) -> Poll<Signal> {
        let mut came = self.listeners.iter_mut().filter_map(|(signal, listener)| {
            let is_ready = listener.poll_recv(context).is_ready();
            is_ready.then_some(*signal)
        });
        came.next().map_or(Poll::Pending, Poll::Ready)
    }

    fn receive(&mut self, signal: Signal, command: Option<Launched>) {
        let Some(command) = command else {
            self.came |= signal != Signal::INT || self.interrupts_left == 0;
            self.interrupts_left = self.interrupts_left.saturating_sub(1);
            return;
        };
        // The kernel sends what comes from the terminal to the command as well.
        if signals::is_from_process(signal.as_raw()) {
            command.signal(signal);
        }
        if signal == Signal::INT {
            self.came |= self.interrupts_left == 0;
            self.interrupts_left = self.interrupts_left.saturating_sub(1);
        }
    }
}
