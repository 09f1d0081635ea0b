//! What becomes of books beside events, when they are put right: kept for a recording, so that its replay does the same.

use profiler_common::interval::Interval;
use serde::{Deserialize, Serialize};

use super::{Ledger, LiveAllocation};
use crate::address::TargetAddr;

/// A change of books that no event has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Correction {
    /// The block here is not live: the record of its free was lost.
    Gone(TargetAddr),
    /// A block is live, the record of whose allocation was lost.
    Found(LiveAllocation),
    /// The block here counts as sampled at this interval, or not at all: live blocks were thinned out.
    Thinned(TargetAddr, Option<IntervalCode>),
}

/// The bits of an interval.
type IntervalCode = u32;

impl Ledger {
    /// Keeps a correction that was made, where there is a recording.
    pub(super) fn note(&mut self, correction: Correction) {
        if self.number != 0 {
            self.corrections.push(correction);
        }
    }

    /// The corrections since this was last asked.
    pub fn take_corrections(&mut self) -> Vec<Correction> {
        std::mem::take(&mut self.corrections)
    }

    /// Makes a correction again.
    pub fn correct(&mut self, correction: &Correction) {
        match correction {
            Correction::Gone(address) => {
                if let Some(block) = self.live.remove(*address) {
                    self.forget(block);
                }
            }
            Correction::Found(block) => self.find(block),
            Correction::Thinned(address, to) => {
                if let Some(known) = self.live.get(*address) {
                    self.reweigh(*address, known, to.map(Interval::from_code));
                }
            }
        }
    }
}
