//! The keeper: a process that owns what must not be interrupted, all uprobe links, ptrace stops and injected system
//! calls (ARCHITECTURE.md, "Why the keeper exists"). It has its own session and ignores the signals of terminals and
//! service managers. `client.rs` is the agent's side, `serve.rs` and `links.rs` are the keeper's.

mod client;
mod links;
mod protocol;
mod serve;

pub(crate) use client::{Keeper, KeeperError, Launch, Link, stop};
pub use protocol::COMMAND;
pub(crate) use protocol::Site;
pub use serve::serve;
