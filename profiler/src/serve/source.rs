//! Source of the served profiles: those of the running recording, or the last one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use heapbpf_ledger::model::Profile;
use hyper::StatusCode;
use tokio::sync::watch;

use super::refusal::Refusal;
use crate::live::{Feed, Unavailable};
use crate::push::PushStatus;
use crate::snapshot::Snapshot;

/// Maximum age of profiles that clients share.
const AGE: Duration = Duration::from_secs(1);

/// Factor of the time that a profile took: it is used for this many times as long, so that clients cost at most 5 % of a core.
const AGE_FACTOR: u32 = 20;
const AGE_MAX: Duration = Duration::from_secs(60);

pub(super) struct Source {
    pub(super) feed: Feed,
    /// Time that the last profile took.
    cost_ns: AtomicU64,
    pushed: Option<watch::Receiver<PushStatus>>,
}

/// A state of the recording, and whether it goes on.
pub(super) struct State<T> {
    pub(super) value: Arc<T>,
    pub(super) is_recording: bool,
}

impl Source {
    pub(super) fn new(feed: Feed, pushed: Option<watch::Receiver<PushStatus>>) -> Self {
        Self { feed, cost_ns: AtomicU64::new(0), pushed }
    }

    /// The counters of `--push`; `None` without `--push`.
    pub(super) fn pushed(&self) -> Option<PushStatus> {
        self.pushed.as_ref().map(|pushed| pushed.borrow().clone())
    }

    /// Maximum age of a profile, which is longer where profiles are expensive.
    pub(super) fn age(&self) -> Duration {
        let cost = Duration::from_nanos(self.cost_ns.load(Ordering::Relaxed));
        (cost * AGE_FACTOR).clamp(AGE, AGE_MAX)
    }

    pub(super) async fn snapshot(&self, age_max: Duration) -> Result<State<Snapshot>, Refusal> {
        match self.feed.snapshot(age_max).await {
            Ok(value) => Ok(State { value, is_recording: true }),
            Err(Unavailable::NotRecording) => {
                let value = self.feed.last().await.ok_or_else(|| refusal(Unavailable::NotRecording))?;
                Ok(State { value, is_recording: false })
            }
            Err(error) => Err(refusal(error)),
        }
    }

    pub(super) async fn profile(&self, age_max: Duration) -> Result<State<Profile>, Refusal> {
        let start = Instant::now();
        let State { value, is_recording } = self.snapshot(age_max).await?;
        let value = self.feed.named(&value).await.map_err(refusal)?;
        let cost_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // The time of a cached profile is no measure of the next one.
        if start.elapsed() > Duration::from_millis(1) {
            self.cost_ns.store(cost_ns, Ordering::Relaxed);
        }
        Ok(State { value, is_recording })
    }
}

pub(super) fn refusal(error: Unavailable) -> Refusal {
    match error {
        Unavailable::Naming => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        Unavailable::Busy | Unavailable::NotRecording => Refusal::unavailable(error.to_string()),
    }
}
