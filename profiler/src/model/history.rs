//! A target's heap over time: its totals at many points in time, its callsites' at few.

pub use crate::ledger::curve::CurvePoint;
pub use crate::ledger::timeline::SampleTrigger;
pub(crate) use crate::ledger::timeline::TimelinePoint;
pub use crate::ledger::totals::HeapUsage;

/// Times are of the recording; estimates have the precision of a 64-bit float.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    pub curve: Vec<CurvePoint>,
    /// Points in time of [`CallsiteProfile::history`](super::CallsiteProfile::history), in the order of time.
    pub instants: Vec<TimelinePoint>,
}

/// What a callsite holds from a point in time on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Index into [`History::instants`]; changes are in that order.
    pub instant: u32,
    pub held: HeapUsage,
}
