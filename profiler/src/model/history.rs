//! A target's heap over time: its totals at many points in time, its callsites' at few.

pub use crate::ledger::curve::Moment;
pub(crate) use crate::ledger::timeline::Instant;
pub use crate::ledger::timeline::Occasion;
pub use crate::ledger::totals::Held;

/// Times are of the recording; estimates have the precision of a 64-bit float.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The target's totals, in the order of time.
    pub curve: Vec<Moment>,
    /// Points in time of [`CallsiteProfile::history`](super::CallsiteProfile::history), in the order of time.
    pub instants: Vec<Instant>,
}

/// What a callsite holds from a point in time on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Index into [`History::instants`]; changes are in that order.
    pub instant: u32,
    pub held: Held,
}
