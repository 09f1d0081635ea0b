//! Plain data: earlier stages of the pipeline collect it, recordings store it, reports print it.

pub(crate) mod guardrails;
pub(crate) mod history;

mod health;
mod process;
mod profile;

pub(crate) use health::{
    ChangeReason, Health, IntervalChange, Loss, NamesFrom, ProbeScope, ScopeKind, Symbolization, SymbolizationFailure,
    UnfoundHook,
};
pub(crate) use process::{Beginning, HookStatus, Origin, Others, Skipped, TargetFacts};
pub(crate) use profile::{
    CallsiteProfile, Frame, FrameId, HeapProfile, LeakCandidate, Leaks, MappingProfile, ModuleProfile, ThreadProfile,
    TypeEvidence, TypeName, Window, WindowReason, base_name,
};
pub use profile::{Profile, TargetProfile};
