//! How much something grew, and how sure that is.

use profiler_common::interval::Interval;

use crate::ledger::totals::{Totals, Z_95};
use crate::model::Profile;
use crate::report::View;
use crate::units::Weight;

/// No block is sampled at a larger interval.
const INTERVAL_BYTES_MAX: u32 = 1 << 30;

/// What was counted before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Before; nothing where there was none.
    pub before: Totals,
    /// After; nothing where there is none any more.
    pub after: Totals,
    /// The largest interval, in bytes, at which either was sampled, or would have been.
    pub interval_bytes: [u64; 2],
}

impl Change {
    /// Whether the view has nothing to say of it, before or after.
    pub fn is_nothing(&self, view: View) -> bool {
        view.estimate(&self.before) == 0.0 && view.estimate(&self.after) == 0.0
    }

    /// How much of the view's quantity there is more of, in bytes or blocks; negative where there is less.
    pub fn growth(&self, view: View) -> f64 {
        match view {
            View::LiveBytes => (self.after.live_bytes() - self.before.live_bytes()).to_f64(),
            View::LiveCount => (self.after.live_count() - self.before.live_count()).to_f64(),
            View::AllocBytes => (self.after.alloc_bytes - self.before.alloc_bytes).to_f64(),
            View::AllocCount => (self.after.alloc_count - self.before.alloc_count).to_f64(),
        }
    }

    /// Between what the growth lies with 95 % confidence.
    ///
    /// The variances of both estimates add up. That is exact where their samples are independent, and more than is needed
    /// where both come from one recording: what is in both was drawn once, so the errors go the same way and cancel in the
    /// difference. Each side counts as if one block of the callsite's mean size had been sampled more: the variance is
    /// itself estimated from the samples, and is too small, or nothing, where there are few.
    pub fn confidence(&self, view: View) -> [f64; 2] {
        let estimated = view.variance(&self.before).to_f64() + view.variance(&self.after).to_f64();
        let one_more: f64 =
            self.interval_bytes.iter().map(|&interval_bytes| self.variance_of_one(view, interval_bytes)).sum();
        let margin = Z_95 * (estimated + one_more).max(0.0).sqrt();
        let growth = self.growth(view);
        [growth - margin, growth + margin]
    }

    /// What one sample of a block of the mean size adds to the variance at this interval.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
    fn variance_of_one(&self, view: View, interval_bytes: u64) -> f64 {
        let (bytes, blocks) = match view {
            View::LiveBytes | View::LiveCount => (
                self.before.live_bytes().to_f64() + self.after.live_bytes().to_f64(),
                self.before.live_count().to_f64() + self.after.live_count().to_f64(),
            ),
            View::AllocBytes | View::AllocCount => (
                self.before.alloc_bytes.to_f64() + self.after.alloc_bytes.to_f64(),
                self.before.alloc_count.to_f64() + self.after.alloc_count.to_f64(),
            ),
        };
        if blocks <= 0.0 {
            return 0.0;
        }
        let interval = Interval::nearest(
            u32::try_from(interval_bytes).map_or(INTERVAL_BYTES_MAX, |bytes| bytes.min(INTERVAL_BYTES_MAX)),
        );
        let weight = Weight::of((bytes / blocks).max(0.0) as u64, interval);
        match view {
            View::LiveBytes | View::AllocBytes => weight.bytes_variance.to_f64(),
            View::LiveCount | View::AllocCount => weight.count_variance.to_f64(),
        }
    }

    /// Whether it may as well not have changed: the interval holds 0.
    pub fn is_noise(&self, view: View) -> bool {
        let [low, high] = self.confidence(view);
        low <= 0.0 && high >= 0.0
    }

    /// Whether both sides are exact.
    pub fn is_exact(&self) -> bool {
        self.interval_bytes.iter().all(|&bytes| bytes <= 1)
    }

    /// Adds what another one did.
    pub(super) fn add(&mut self, other: &Self) {
        self.before.add(&other.before);
        self.after.add(&other.after);
        for (mine, others) in self.interval_bytes.iter_mut().zip(other.interval_bytes) {
            *mine = others.max(*mine);
        }
    }
}

/// The largest interval of the profile's heaps; its own where it has none.
pub(super) fn largest_interval_bytes(profile: &Profile) -> u64 {
    let heaps = profile.targets.iter().flat_map(|target| &target.heaps).map(|heap| heap.interval_bytes);
    heaps.chain(profile.others.folded_interval_bytes).max().unwrap_or(profile.interval_bytes)
}
