//! Plain data: earlier stages of the pipeline collect it, recordings store it, reports print it.

mod health;
mod memory;
mod process;
mod profile;
mod verdict;

pub(crate) use health::{
    Action, ChangeReason, Excess, Guardrails, Health, InlineEngine, InlinedHeap, IntervalChange, Loss, NamesFrom,
    Overhead, ProbeCosts, ProbeScope, Reached, ScopeKind, Symbolization, SymbolizationFailure, UnfoundHook,
};
pub(crate) use memory::{
    Inventory, MemoryAccount, MemoryClass, MemoryFacts, MemoryGrowth, MemoryMapping, MemoryPart, MemoryPoint, Runtime,
};
pub(crate) use process::{Beginning, HookStatus, Origin, Others, Skipped, TargetFacts};
pub(crate) use profile::{
    CallsiteProfile, Change, Frame, FrameId, HeapProfile, History, LeakCandidate, Leaks, MappingProfile, ModuleProfile,
    SourcePiece, ThreadProfile, TimelinePoint, TypeEvidence, TypeName, Window, WindowReason, base_name,
};
pub use profile::{CurvePoint, HeapUsage, Profile, SampleTrigger, TargetProfile};
pub(crate) use verdict::{Defect, Finding};
