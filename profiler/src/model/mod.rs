//! Plain data: earlier stages of the pipeline collect it, recordings store it, reports print it.

mod health;
mod interpreter_frames;
mod loss;
mod memory;
mod process;
mod profile;
mod verdict;
mod workload;

pub(crate) use health::{
    Action, ChangeReason, Download, Excess, Guardrails, Health, InlineEngine, InlinedHeap, IntervalChange, NamesFrom,
    Overhead, ProbeCosts, ProbeScope, Reached, ScopeKind, SymbolSource, Symbolization, SymbolizationFailure,
    Unaccounted, UnfoundHook, UnnamedModule,
};
pub(crate) use interpreter_frames::{InterpreterFrames, LanguageFunctions};
pub(crate) use loss::Loss;
pub(crate) use memory::{
    Inventory, MemoryAccount, MemoryClass, MemoryFacts, MemoryGrowth, MemoryMapping, MemoryPart, MemoryPoint,
};
pub(crate) use process::{Beginning, End, HookKind, HookStatus, Origin, Others, Skipped, TargetFacts, TargetId};
pub(crate) use profile::{
    CallsiteProfile, Change, Frame, FrameId, FrameKind, HeapProfile, History, LeakCandidate, Leaks, MappingProfile,
    ModuleProfile, SourcePiece, ThreadProfile, TimelinePoint, TypeEvidence, TypeName, base_name,
};
pub use profile::{CurvePoint, HeapUsage, Profile, SampleTrigger, TargetProfile, Window, WindowReason};
pub(crate) use verdict::{Defect, Finding};
pub(crate) use workload::{Pod, Workload};

pub(crate) use crate::linux::rights::Rights;
