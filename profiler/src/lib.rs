//! heapbpf's agent, stage by stage, in reading order.

pub mod address;
pub mod ids;
pub mod memory;
pub mod units;

pub mod linux;

pub mod object;
pub mod process;

pub mod allocator;
pub mod bpf;
pub mod keeper;
pub mod probe;

pub mod ingest;
pub mod unwind;

pub mod collect;
pub mod walk;

pub mod leak;
pub mod ledger;
pub mod model;
pub mod snapshot;
pub mod symbolize;

pub mod guardrail;
pub mod health;
pub mod report;

pub mod recording;

pub mod check;

pub mod session;

pub mod doctor;

#[doc(hidden)]
pub mod fuzzing;

pub mod cli;
