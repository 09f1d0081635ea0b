//! Interface between a session and its caller: requests in, progress and results out.

use std::io;
use std::time::Duration;

use anyhow::Result;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::check::heap_snapshot::HeapSnapshot;
use crate::snapshot::Snapshot;
use crate::units::EstimatedBytes;

/// Request to a running session, sent as a signal to heapbpf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// End the window and write it: `SIGUSR1`.
    Dump,
    /// Start later windows now: `SIGUSR2`.
    Mark,
}

/// Receives requests. While it exists, its signals do not terminate heapbpf. Pending signals of the same kind count once.
#[derive(Debug, Default)]
pub struct Control {
    signals: Option<(Signal, Signal)>,
}

impl Control {
    /// Listens for the signals.
    ///
    /// # Errors
    ///
    /// When the signal handlers cannot be installed.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { signals: Some((signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?)) })
    }

    /// Never receives a request.
    pub fn none() -> Self {
        Self::default()
    }

    /// Waits for the next request. If both are pending, the dump comes first: after the mark its window would be empty.
    pub async fn next(&mut self) -> Request {
        let Some((dump, mark)) = &mut self.signals else { return std::future::pending().await };
        tokio::select! {
            biased;
            _ = dump.recv() => Request::Dump,
            _ = mark.recv() => Request::Mark,
        }
    }
}

/// Callbacks for session events. The ring buffer is not drained meanwhile, so they must return immediately.
pub trait Listener {
    /// Called every half second.
    fn progress(&mut self, _progress: &Progress) {}

    /// A window ended; the snapshot contains it.
    fn dumped(&mut self, _snapshot: Snapshot) {}

    /// A target was inspected for leaks, or could not be.
    fn inspected(&mut self, _inspected: Result<HeapSnapshot>) {}

    /// A mark was set at this time since the start: later windows start there.
    fn marked(&mut self, _elapsed: Duration) {}

    /// Whether earlier dumps are still being written. Dumps that were not requested by a signal wait then.
    fn is_busy(&self) -> bool {
        false
    }

    /// Whether a further dump can be queued. Requests wait otherwise; several of a kind then count once.
    fn has_room(&self) -> bool {
        true
    }
}

impl Listener for () {}

#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub elapsed: Duration,
    pub duration: Option<Duration>,
    pub targets: usize,
    /// Over the last period.
    pub events_per_second: f64,
    /// Of all running targets.
    pub live_bytes: EstimatedBytes,
    /// Dropped events of all reasons.
    pub lost: u64,
}
