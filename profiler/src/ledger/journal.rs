//! Records of single changes of a ledger: movements for consumers of events, corrections for recordings.

use profiler_common::interval::Interval;
use serde::{Deserialize, Serialize};

use super::live::LiveAllocation;
use crate::address::TargetAddr;
use crate::units::Weight;

/// A change of the live amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// A block was allocated, or memory mapped.
    In(Weight),
    /// A block was freed, or memory unmapped; a part of a mapping counts as no block unless it is the last.
    Out(Weight),
    /// A free was undone: the block is still live.
    Back(Weight),
    /// The weight of a live block changed; the new one is 0 if the block is no longer sampled.
    Reweighed { from: Weight, to: Weight },
}

/// One change of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The callsite's [`CallsiteSnapshot::index`](super::snapshot::CallsiteSnapshot::index).
    pub callsite: u32,
    pub movement: Movement,
}

/// A change of a ledger that was not caused by an event: recordings contain it so that a replay repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Correction {
    /// The block at this address is not live: its free record was dropped.
    Gone(TargetAddr),
    /// A block is live whose allocation record was dropped.
    Found(LiveAllocation),
    /// The block at this address counts as sampled at this interval (see [`Interval::code`]), or not at all: live blocks were thinned.
    Thinned(TargetAddr, Option<u32>),
}

impl Correction {
    pub(super) fn thinned(address: TargetAddr, to: Option<Interval>) -> Self {
        Self::Thinned(address, to.map(Interval::code))
    }
}
