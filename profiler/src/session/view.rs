//! Snapshots for views, which may request them at any time: their share of the session's time is bounded.

use std::sync::Arc;
use std::time::Duration;

use heapbpf_base::units::MonotonicNanos;

use crate::snapshot::Snapshot;

/// A snapshot takes milliseconds, or a few hundred with many millions of live blocks, and the ring buffer is not
/// drained meanwhile. The next one is taken no sooner than after this many times as long: 2 % of the time.
const REST_FACTOR: u32 = 50;

#[derive(Debug, Default)]
pub(super) struct ViewCache {
    latest: Option<Latest>,
}

#[derive(Debug)]
struct Latest {
    snapshot: Arc<Snapshot>,
    taken: MonotonicNanos,
    cost: Duration,
}

impl ViewCache {
    /// The latest snapshot, if it is too early for another.
    pub(super) fn reusable(&self, now: MonotonicNanos) -> Option<Arc<Snapshot>> {
        let Latest { snapshot, taken, cost } = self.latest.as_ref()?;
        (now.since(*taken) < cost.saturating_mul(REST_FACTOR)).then(|| Arc::clone(snapshot))
    }

    /// Keeps a snapshot that was taken from `begun` to `done`.
    pub(super) fn keep(&mut self, snapshot: Arc<Snapshot>, begun: MonotonicNanos, done: MonotonicNanos) {
        self.latest = Some(Latest { snapshot, taken: done, cost: done.since(begun) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_take_at_most_a_fiftieth_of_the_time() {
        let millis = |ms: u64| MonotonicNanos(ms * 1_000_000);
        let mut cache = ViewCache::default();
        assert!(cache.reusable(millis(0)).is_none());
        let first = Arc::new(Snapshot::default());
        cache.keep(Arc::clone(&first), millis(1000), millis(1010));
        assert!(cache.reusable(millis(1509)).is_some_and(|reused| Arc::ptr_eq(&reused, &first)));
        assert!(cache.reusable(millis(1510)).is_none());
    }
}
