//! The ledger of one target: every live sampled block, and the totals of each callsite.
//!
//! ```text
//!   live                                   callsites                             stacks
//!   0x55d0…1040 ─ 4,096 B, T, callsite 0   0 ─ stack a, libc  alloc 9  free 7    a ─ [caller, …, main]
//!   0x55d0…20c0 ─   128 B, T, callsite 0   1 ─ stack b, libc  alloc 1  free 0    b ─ frames not received yet
//!   0x55d0…5560 ─    24 B, T, callsite 1
//! ```
//!
//! Mapped memory is stored as address ranges (`ranges`) instead, because it can be unmapped in parts.
//!
//! Pure: events in, snapshots out; no clock, file or map. A callsite is a stack and a heap, and optionally a thread.
//! The frames of its stack may arrive after the first event that names it, or never if the ring buffer was full.

mod callsite;
pub(crate) mod curve;
pub(crate) mod details;
// One file for the type, one for each larger task.
#[expect(clippy::module_inception, reason = "the type of that name")]
mod ledger;
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
pub(crate) use live::LiveAllocation;
pub(crate) use resync::Reconciled;
