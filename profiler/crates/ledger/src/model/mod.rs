//! Plain data: earlier stages of the pipeline collect it, recordings store it, reports print it.

mod health;
mod interpreter_frames;
mod loss;
mod memory;
mod object_types;
mod process;
mod profile;
mod program;
mod verdict;
mod workload;

pub use health::{
    Action, ChangeReason, Download, Excess, Guardrails, Health, InlineEngine, InlinedHeap, IntervalChange, NamesFrom,
    Overhead, ProbeCosts, ProbeScope, Reached, ScopeKind, SymbolSource, Symbolization, SymbolizationFailure,
    Unaccounted, UnfoundHook, UnnamedModule,
};
pub use interpreter_frames::{InterpreterFrames, LanguageFunctions};
pub use loss::Loss;
pub use memory::{
    Inventory, MemoryAccount, MemoryClass, MemoryFacts, MemoryGrowth, MemoryMapping, MemoryPart, MemoryPoint,
};
pub use object_types::{HeapBlocks, ObjectType, ObjectTypes};
pub use process::{Beginning, End, HookKind, HookStatus, Origin, Others, Skipped, TargetFacts, TargetId};
pub use profile::{
    CallsiteProfile, Change, Frame, FrameId, FrameKind, HeapProfile, History, LeakCandidate, Leaks, MappingProfile,
    ModuleProfile, SourcePiece, ThreadProfile, TimelinePoint, TypeEvidence, TypeName, base_name,
};
pub use profile::{CurvePoint, HeapUsage, Profile, SampleTrigger, TargetProfile, Window, WindowReason};
pub use program::{Program, shown_path};
pub use verdict::{Defect, Finding};
pub use workload::{Pod, Workload};

pub use heapbpf_linux::rights::Rights;
