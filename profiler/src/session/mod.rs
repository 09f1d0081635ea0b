//! One recording, from attaching to the last snapshot. [`session`] is the loop; the other files are owners of its parts, and what it
//! does with them.

mod command;
mod config;
mod control;
mod discovery;
mod following;
mod guard;
mod hooks;
mod inspection;
mod intake;
mod launching;
mod lifecycle;
mod overload;
mod probes;
mod process_table;
mod rates;
mod resync;
mod scope;
#[expect(clippy::module_inception, reason = "the session itself")]
mod session;
mod snapshot;
mod target;
mod thinning;
mod threads;
mod unwinding;
mod windows;

pub(crate) use command::{Command, Launched};
pub(crate) use config::ScopeChoice;
pub use config::{Hold, SessionConfig, UnwindMode};
pub use control::Control;
pub(crate) use control::{Listener, Progress};
pub(crate) use discovery::{Leftovers, hooks_of, remove_leftovers};
pub(crate) use guard::TooSmall;
pub use intake::RawSample;
pub use overload::OverloadPolicy;
pub use session::Session;
pub use windows::DumpPlan;
