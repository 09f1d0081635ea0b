//! The process that owns uprobe links, ptrace stops and injections (ARCHITECTURE.md, "Why the keeper exists").

mod agent;
mod client;
pub(crate) mod control;
mod exec_stops;
mod launch;
mod links;
mod protocol;
mod serve;
mod stubs;

pub(crate) use client::{Keeper, KeeperError, Link, stop, stop_within};
pub(crate) use exec_stops::StoppedExecs;
pub(crate) use launch::Launch;
pub use protocol::COMMAND;
pub(crate) use protocol::{FunctionPlace, Installation, Patch, Site, SlotChange};
pub use serve::serve;
pub(crate) use stubs::{NO_FIRST_THREAD, file_of};
