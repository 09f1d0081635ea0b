//! Facts about targets and recordings, as plain data. Stages of the pipeline find them out, recordings store them, and reports print them.

pub mod guardrails;
pub mod history;
pub mod leaks;

mod beginning;
mod code;
mod health;
mod hook;
mod intervals;
mod others;
mod profile;
mod symbolization;
mod type_name;
mod window;

pub use beginning::{Beginning, Origin};
pub(crate) use code::base_name;
pub use code::{MappingProfile, ModuleProfile, ThreadProfile};
pub use health::{Health, UnfoundHook};
pub use hook::HookStatus;
pub use intervals::{ChangeReason, IntervalChange};
pub use others::{Others, Skipped};
pub use profile::{CallsiteProfile, Frame, FrameId, HeapProfile, Profile, TargetProfile};
pub use symbolization::{NamesFrom, Symbolization, SymbolizationFailure};
pub use type_name::{TypeEvidence, TypeName};
pub use window::{Window, WindowReason};
