//! How a target's heap came to be what it is: its totals at many instants, its callsites' at few.

use crate::units::MonotonicNanos;

/// See the module. Times are of the recording; estimates are as exact as a float of 64 bits holds them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The target's totals, in the order of time.
    pub curve: Vec<Moment>,
    /// When [`CallsiteProfile::history`](super::profile::CallsiteProfile::history) is known, in the order of time.
    pub instants: Vec<Instant>,
}

/// The totals of a target at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// When.
    pub time: MonotonicNanos,
    /// What there was.
    pub held: Held,
}

/// What was live at an instant, and what had been allocated until then since the recording began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Held {
    /// Bytes live.
    pub live_bytes: f64,
    /// Blocks live.
    pub live_count: f64,
    /// Bytes allocated.
    pub alloc_bytes: f64,
    /// Blocks allocated.
    pub alloc_count: f64,
}

/// An instant at which callsites were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instant {
    /// When.
    pub time: MonotonicNanos,
    /// What happened then, if it is not of the periodic ones.
    pub occasion: Option<Occasion>,
}

/// Why callsites were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// The window with this number ended.
    Dump(u32),
    /// A mark was set.
    Mark,
}

/// What a callsite holds since an instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Index into [`History::instants`]; changes are in that order.
    pub instant: u32,
    /// What it holds since.
    pub held: Held,
}
