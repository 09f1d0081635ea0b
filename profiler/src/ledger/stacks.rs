//! Stacks that events have named, and whose frames have not come.

use super::Ledger;
use super::callsite::Callsite;
use crate::ids::StackId;
use crate::units::EstimatedCount;

impl Ledger {
    /// Callsites whose frames have not come. They may come yet.
    pub fn stacks_lost(&self) -> u64 {
        let is_lost = |callsite: &&Callsite| !self.stacks.contains_key(&callsite.stack);
        let lost = self.callsites.iter().filter(is_lost);
        lost.filter(|callsite| !callsite.totals(self.peak).is_empty()).count() as u64
    }

    /// Stacks of blocks that are live, and whose frames have not come.
    pub fn stacks_missing(&self) -> Vec<StackId> {
        let is_live = |callsite: &&Callsite| callsite.totals(self.peak).live_count() > EstimatedCount::ZERO;
        let callsites = self.callsites.iter().filter(|callsite| !self.stacks.contains_key(&callsite.stack));
        callsites.filter(is_live).map(|callsite| callsite.stack).collect()
    }
}
