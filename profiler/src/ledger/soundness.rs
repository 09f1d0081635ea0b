//! Whether books that were read from a file hold together: whatever the file says, using them must not go wrong.

use super::Ledger;
use super::callsite::{COUNT_MAX, Callsite};
use super::totals::Totals;

impl Ledger {
    /// Whether all that refers to a callsite leads to one, and no sum is near the end of its number. What was read from a
    /// file need not be so, and then must not be used.
    pub fn is_sound(&self) -> bool {
        let callsites = self.callsites.len();
        let leads = |callsite: u32| (callsite as usize) < callsites;
        let ages = self.ages_at_end.iter().flatten();
        self.live.callsites().all(leads)
            && self.ranges.is_sound(leads)
            && self.threads.callsites().all(leads)
            && self.callsite_ids.values().copied().all(leads)
            && self.callsites.iter().all(Callsite::is_sound)
            && self.heaps.values().chain([&self.totals]).all(Totals::is_sound)
            && ages.into_iter().all(|(_, ages)| ages.histogram.is_sound() && ages.total.is_sound())
            && self.curve.is_sound()
            && self.highest.is_sound()
            && self.frees_unknown.max(self.peak) < COUNT_MAX
    }
}
