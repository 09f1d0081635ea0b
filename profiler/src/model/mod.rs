//! Facts about targets and recordings, as plain data. Stages of the pipeline find them out, recordings store them, and reports print them.

pub(crate) mod guardrails;
pub(crate) mod history;
pub(crate) mod leaks;

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

pub(crate) use beginning::{Beginning, Origin};
pub(crate) use code::base_name;
pub(crate) use code::{MappingProfile, ModuleProfile, ThreadProfile};
pub(crate) use health::{Health, UnfoundHook};
pub(crate) use hook::HookStatus;
pub(crate) use intervals::{ChangeReason, IntervalChange};
pub(crate) use others::{Others, Skipped};
pub(crate) use profile::{CallsiteProfile, Frame, FrameId, HeapProfile};
pub use profile::{Profile, TargetProfile};
pub(crate) use symbolization::{NamesFrom, Symbolization, SymbolizationFailure};
pub(crate) use type_name::{TypeEvidence, TypeName};
pub(crate) use window::{Window, WindowReason};
