//! From the kernel side's records to the model that reports show: [`ingest`] decodes records, a [`Ledger`] has one target's live sampled
//! blocks, mapped address ranges and the totals of each callsite, [`leak`] searches unreachable and growing blocks, and [`model`] is
//! the profile. Pure: no clock, no system call. Frames of a stack may arrive after the first event that names it, or never.
//!
//! ```
//! use heapbpf_base::ids::Pid;
//! use heapbpf_ledger::Ledger;
//!
//! let ledger = Ledger::new(Pid(1));
//! assert_eq!(ledger.live_blocks(), 0);
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests choose their names, and print to nobody's terminal")
)]
#![expect(missing_docs, reason = "what names and types say is not repeated; only heapbpf uses this crate")]

mod callsite;
pub mod confidence;
pub mod curve;
pub mod details;
pub mod ingest;
pub mod inventory;
pub mod leak;
mod ledger;
pub mod limit;
pub mod live;
pub mod model;
mod queries;
mod ranges;
mod resync;
pub mod snapshot;
pub mod timeline;
pub mod totals;

#[cfg(test)]
mod tests;

pub use ledger::Ledger;
pub use limit::CallsiteLimit;
pub use live::{FreedBlock, LiveAllocation};
pub use resync::Reconciled;
