//! What users ask of a recording while it runs, by signals to heapbpf.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// End the window now, and write it: `SIGUSR1`.
    Dump,
    /// Later dumps are relative to now: `SIGUSR2`.
    Mark,
}

/// Signals that have orders. From when this is made they do not end heapbpf any more; what comes before anyone asks is kept,
/// though two of a kind count as one until then.
#[derive(Debug, Default)]
pub struct Control {
    signals: Option<(Signal, Signal)>,
}

impl Control {
    /// Listens for the signals.
    ///
    /// # Errors
    ///
    /// If that cannot be.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { signals: Some((signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?)) })
    }

    /// No orders ever come.
    pub fn none() -> Self {
        Self::default()
    }

    /// The next one. When both have come the dump is first: the other way round it would be about nothing.
    pub async fn next(&mut self) -> Order {
        let Some((dump, mark)) = &mut self.signals else { return std::future::pending().await };
        tokio::select! {
            biased;
            _ = dump.recv() => Order::Dump,
            _ = mark.recv() => Order::Mark,
        }
    }
}
