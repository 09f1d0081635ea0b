//! heapbpf's agent, stage by stage, in reading order.

pub mod address;
pub mod ids;
pub mod units;

pub mod ledger;
pub mod object;
pub mod proc;
pub mod report;
pub mod symbolize;
pub mod target;
