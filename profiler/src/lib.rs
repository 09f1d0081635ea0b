//! heapbpf's agent, stage by stage, in reading order.

pub mod address;
pub mod ids;
pub mod units;

pub mod unwind;

pub mod ledger;
pub mod report;
