//! Steps and facts: the entries of a recording besides events.

use std::sync::Arc;

use heapbpf_base::address::{FileOffset, TargetAddr};
use heapbpf_base::ids::{LedgerId, ModuleId, Pid, Tid};
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::live::Correction;
use heapbpf_ledger::model::{Health, MemoryFacts, Others, Symbolization};
use heapbpf_ledger::timeline::TimelinePoint;
use heapbpf_linux::proc::maps::Mapping;
use serde::{Deserialize, Serialize};

use crate::object::elf::Segment;
use crate::object::module::Module;
use crate::process::address_space::{Interpreted, MappedModule};
use crate::snapshot::{HeapFacts, TargetFacts};
use crate::symbolize::ResolvedFrame;

/// A change of ledgers. Written with postcard: the order of variants and fields is part of the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// An empty ledger was created for a process.
    Opened { ledger: LedgerId, pid: Pid },
    /// A ledger was copied for a child, which is not a target yet; it is empty above the limit on live blocks.
    Forked { parent: LedgerId, ledger: LedgerId, child: Pid, is_empty: bool },
    /// A process called exec: its events go to a new ledger.
    Succeeded { before: LedgerId, ledger: LedgerId },
    /// Events of a process go to this ledger from now on.
    Joined { pid: Pid, ledger: LedgerId },
    /// Events of a process go to no ledger.
    Left { pid: Pid },
    /// The target exited, and reports include it. `closed` is the time at which its live blocks were last sampled, if ever.
    Ended { ledger: LedgerId, closed: Option<MonotonicNanos> },
    /// All callsites of a ledger were sampled.
    Sampled { ledger: LedgerId, point: TimelinePoint },
    /// The executable mappings of a target changed. Contains all of them, by ascending address.
    Mapped { ledger: LedgerId, mappings: Vec<MappedRange> },
    /// A ledger was resynced.
    Corrected { ledger: LedgerId, corrections: Vec<Correction> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MappedRange {
    pub start: TargetAddr,
    pub end: TargetAddr,
    pub offset: FileOffset,
    /// Module of the range; `None` for generated code without names.
    pub module: Option<ModuleId>,
}

/// A fact besides events. Written as JSON: readers skip unknown fields and kinds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Fact {
    Session(SessionFacts),
    /// State of a target; replaces earlier states.
    Target(LedgerId, TargetRecord),
    Module(ModuleFacts),
    Health(Box<HealthFacts>),
    Mark(Mark),
    /// Name of a thread; replaces earlier names.
    Thread(LedgerId, ThreadFacts),
    /// Samples of the places of the resident memory.
    Memory(LedgerId, MemoryFacts),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionFacts {
    pub started_unix_ns: u64,
    pub started_monotonic_ns: u64,
    pub interval_bytes: u64,
    /// Whether callsites distinguish the allocating threads.
    pub by_thread: bool,
    pub arguments: Vec<String>,
    pub version: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadFacts {
    pub tid: Tid,
    /// Name in `/proc/PID/task/TID/comm`.
    pub name: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetRecord {
    #[serde(with = "super::target")]
    pub facts: TargetFacts,
    /// Whether the target's probes have been attached.
    pub begun: bool,
    pub heaps: Vec<HeapFacts>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleFacts {
    /// Number of the module, from 0 without gaps.
    pub id: ModuleId,
    /// Path of the module in the first target that mapped it.
    pub path: String,
    pub build_id: Option<Vec<u8>>,
    /// Size in bytes and modification time (seconds, nanoseconds; Unix) of the file: identifies files without a build id.
    pub file: Option<(u64, i64, i64)>,
    /// First executable segments, which translate mapped into linked addresses.
    #[serde(default)]
    pub code: Vec<Segment>,
}

/// Maximum number of segments of a module that are recorded; linked files have one.
const CODE_SEGMENTS_MAX: usize = 64;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthFacts {
    /// Time of the counters.
    pub monotonic_ns: u64,
    /// Time of the counters since the Unix epoch: that clock may be set, or run at another pace.
    pub unix_ns: u64,
    pub health: Health,
    pub others: Others,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub monotonic_ns: u64,
    pub reason: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    pub locations: Vec<NamedLocation>,
    pub symbolization: Symbolization,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedLocation {
    pub module: ModuleId,
    pub offset: FileOffset,
    /// Frames at the location, the innermost first.
    pub frames: Arc<[ResolvedFrame]>,
}

/// A location in a function without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionStart {
    pub module: ModuleId,
    pub offset: FileOffset,
    pub start: FileOffset,
}

impl FunctionStart {
    /// Start of the function at a location; `None` for a location with a name.
    pub fn of(location: &NamedLocation) -> Option<Self> {
        let [ResolvedFrame { function: None, start: Some(start), .. }] = *location.frames else { return None };
        Some(Self { module: location.module, offset: location.offset, start })
    }
}

impl From<FunctionStart> for NamedLocation {
    fn from(FunctionStart { module, offset, start }: FunctionStart) -> Self {
        Self { module, offset, frames: [ResolvedFrame::starting_at(start)].into() }
    }
}

impl MappedRange {
    /// Range of words that stands for a runtime's code. The range's offset is the number of the runtime's module.
    pub fn of_interpreted(Interpreted { start, end, code, interpreter }: Interpreted) -> Self {
        Self { start, end, offset: FileOffset(interpreter.0.into()), module: Some(code) }
    }

    /// The runtime whose code the range stands for; `None` for other ranges.
    pub fn interpreted(&self) -> Option<Interpreted> {
        let code = self.module.filter(|_| self.start.is_interpreted())?;
        let interpreter = ModuleId(u32::try_from(self.offset.0).ok()?);
        Some(Interpreted { start: self.start, end: self.end, code, interpreter })
    }

    /// Range of a mapping. `generated` is the module that stands for generated code: its offsets are addresses.
    pub fn of(mapped: &MappedModule, generated: Option<ModuleId>) -> Self {
        let Mapping { start, end, offset, .. } = mapped.mapping;
        match (mapped.module, generated) {
            (None, Some(_)) => Self { start, end, offset: FileOffset(mapped.own_start()), module: generated },
            (module, _) => Self { start, end, offset, module },
        }
    }
}

impl ModuleFacts {
    pub fn of(id: ModuleId, module: &Module) -> Self {
        let file = module.image().ok().map(|image| {
            let identity = image.identity();
            (identity.size_bytes, identity.modified.0, identity.modified.1)
        });
        let build_id = module.build_id().map(|build_id| build_id.as_bytes().to_vec());
        let code = module.elf().map(|elf| elf.code().take(CODE_SEGMENTS_MAX).copied().collect());
        Self { id, path: module.path().to_string(), build_id, file, code: code.unwrap_or_default() }
    }
}
