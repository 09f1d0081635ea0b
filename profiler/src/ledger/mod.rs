//! The ledger of one target: live sampled blocks, mapped address ranges, and the totals of each callsite. Frames of a
//! stack may arrive after the first event that names it, or never. Pure: no clock, file or map.

mod callsite;
pub(crate) mod confidence;
pub(crate) mod curve;
pub(crate) mod details;
pub(crate) mod inventory;
#[expect(clippy::module_inception, reason = "the type of that name")]
mod ledger;
pub(crate) mod limit;
pub(crate) mod live;
mod queries;
mod ranges;
mod resync;
pub(crate) mod snapshot;
pub(crate) mod timeline;
pub(crate) mod totals;

#[cfg(test)]
mod tests;

pub(crate) use ledger::Ledger;
pub(crate) use limit::CallsiteLimit;
pub(crate) use live::{FreedBlock, LiveAllocation};
pub(crate) use resync::Reconciled;
