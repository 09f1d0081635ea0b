//! How a target's heap came to be what it is: its totals at many instants, its callsites' at few.

pub use crate::ledger::curve::Moment;
pub(crate) use crate::ledger::timeline::Instant;
pub use crate::ledger::timeline::Occasion;
pub use crate::ledger::totals::Held;

/// See the module. Times are of the recording; estimates are as exact as a float of 64 bits holds them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The target's totals, in the order of time.
    pub curve: Vec<Moment>,
    /// When [`CallsiteProfile::history`](super::profile::CallsiteProfile::history) is known, in the order of time.
    pub instants: Vec<Instant>,
}

/// What a callsite holds since an instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Index into [`History::instants`]; changes are in that order.
    pub instant: u32,
    /// What it holds since.
    pub held: Held,
}
