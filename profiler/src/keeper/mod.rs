//! The process that owns uprobe links, ptrace stops and injections (ARCHITECTURE.md, "Why the keeper exists").

mod client;
mod protocol;
mod serve;

pub(crate) use client::{Keeper, KeeperError, Launch, Link, stop};
pub use protocol::COMMAND;
pub(crate) use protocol::Site;
pub use serve::serve;
