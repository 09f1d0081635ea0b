//! The keeper: a process that owns what must not be interrupted, all uprobe links, ptrace stops and injected system
//! calls.
//!
//! - `kill -9` of the agent while it attaches or detaches would leave breakpoints in targets: the kernel removes them by writing
//!   to the target's pages, and cannot fault those in while SIGKILL is pending (`uprobe: … failed to unregister, leaking
//!   uprobe`).
//! - An interrupted system call injection would crash the target.
//!
//! The keeper has its own session and ignores the signals of terminals and service managers. When the agent exits at
//! any point, the keeper completes the current request, resumes stopped threads, closes all links and exits.
//!
//! ```text
//! agent ── requests, with descriptors ─▶ keeper: `heapbpf keeper` ── links ─▶ kernel
//! ```
//! `client.rs` is the agent's side, the other files the keeper's.

mod client;
mod links;
mod protocol;
mod serve;

pub(crate) use client::{Keeper, KeeperError, Launch, Link, stop};
pub use protocol::COMMAND;
pub(crate) use protocol::Site;
pub use serve::serve;
