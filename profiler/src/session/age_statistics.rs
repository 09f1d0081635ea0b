//! What is told of a target's live blocks by when they were made: how callsites grow, and what has lived for some time.

use std::time::Duration;

use super::target::Target;
use crate::leak::growth::Growths;
use crate::ledger::totals::Amounts;
use crate::units::MonotonicNanos;

#[derive(Clone, Debug)]
pub(super) struct AgeStatistics {
    /// When this was counted.
    pub(super) counted: MonotonicNanos,
    pub(super) growths: Growths,
    /// What was made so long before, by the callsites' indices, where that was asked for.
    pub(super) older: Option<Vec<Amounts>>,
}

impl Target {
    /// At `now`; of books that are closed, as it was then.
    pub(super) fn age_statistics(&self, now: MonotonicNanos) -> AgeStatistics {
        self.age_statistics_at_end.clone().unwrap_or_else(|| self.count_age_statistics(now))
    }

    /// A pass or two over the live blocks.
    pub(super) fn count_age_statistics(&self, now: MonotonicNanos) -> AgeStatistics {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let older: Option<Vec<Amounts>> = self.older_than.map(|age| {
            let born = MonotonicNanos(now.0.saturating_sub(nanos(age)));
            self.ledger.allocated_before([born]).into_iter().map(|[amounts]| amounts).collect()
        });
        let growths = Growths::of(&self.timeline, &self.ledger, now, older.as_deref());
        AgeStatistics { counted: now, growths, older }
    }
}
