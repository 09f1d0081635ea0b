//! One recording, from attaching to the last snapshot. [`session`] is the loop over the parts in the other files.

mod command;
mod config;
mod cut_stacks;
mod descendants;
mod discovery;
mod earlier;
mod followed;
mod following;
mod foreign;
mod guard;
mod hint;
mod hooks;
mod inspection;
mod inventory;
mod keeper_monitor;
mod launching;
mod lifecycle;
mod memory;
mod overload;
mod passes;
mod probes;
mod process_table;
mod rates;
mod raw_stacks;
mod resume;
mod resync;
mod scope;
#[expect(clippy::module_inception, reason = "the session itself")]
mod session;
mod snapshot;
mod stack_copies;
mod stubs;
mod target;
mod threads;
mod unwinding;
mod windows;

pub(crate) use command::{Command, Launched};
pub use config::{Control, Hold, ScopeChoice, SessionConfig, UnwindMode};
pub(crate) use config::{Engine, Listener, Progress};
pub(crate) use guard::TooSmall;
pub(crate) use inspection::{CallRate, Leftovers, call_rate, inspect, remove_leftovers};
pub use overload::OverloadPolicy;
pub use raw_stacks::RawSample;
pub(crate) use scope::ScopeForecast;
pub use session::Session;
pub use windows::DumpPlan;
