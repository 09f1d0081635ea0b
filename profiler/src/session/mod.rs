//! One recording, from attaching to the last snapshot. [`session`] is the loop over the parts in the other files.

mod command;
mod config;
mod cut_stacks;
mod discovery;
mod earlier;
mod followed;
mod foreign;
mod generated_code;
mod go_profile;
mod guard;
mod hint;
mod hooks;
mod inspection;
mod intake;
mod interpreters;
mod jvm_maps;
mod keeper_monitor;
mod lifecycle;
mod links;
mod mappings;
mod memory;
mod meter;
mod object_counts;
mod overload;
mod probes;
mod process_table;
mod rates;
mod raw_stacks;
mod residency;
mod resume;
mod resync;
mod scope;
mod selected;
#[expect(clippy::module_inception, reason = "the session itself")]
mod session;
mod stack_copies;
mod stale;
mod stubs;
mod target;
mod threads;
mod unwinding;
mod view;
#[cfg(test)]
mod walks;
mod windows;

pub(crate) use command::{Command, Launched};
pub use config::{Control, Hold, SessionConfig};
pub(crate) use config::{Engine, Listener, Policy, Progress, Request, ScopeChoice, Treatment, UnwindMode};
pub(crate) use guard::TooSmall;
pub(crate) use inspection::{CallRate, Leftovers, call_rate, inspect, remove_leftovers};
pub use overload::OverloadPolicy;
pub use raw_stacks::RawSample;
pub(crate) use scope::ScopeForecast;
pub use session::Session;
pub(crate) use windows::DumpPlan;
