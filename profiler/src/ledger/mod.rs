//! Live blocks and callsites of one target. Pure: no clock, file or map.

pub mod snapshot;
pub mod totals;
