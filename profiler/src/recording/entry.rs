//! What a recording holds, entry by entry, in the order in which it happened.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::replay::Replay;
use crate::address::{FileOffset, TargetAddr};
use crate::ids::{ModuleId, Pid, Tid};
use crate::ingest::event::Event;
use crate::ledger::corrections::Correction;
use crate::ledger::timeline::Instant;
use crate::linux::proc::maps::Mapping;
use crate::model::{Health, Others, Symbolization};
use crate::object::elf::Segment;
use crate::object::module::Module;
use crate::process::address_space::MappedModule;
use crate::snapshot::{HeapFacts, TargetFacts};
use crate::units::MonotonicNanos;

/// One entry.
#[derive(Debug)]
pub enum Entry {
    /// What a target did. Goes to the books that its process has open, or to none.
    Event(Event),
    /// What became of books.
    Step(Step),
    /// What is known besides.
    Fact(Box<Fact>),
    /// The state that older entries led to, which are not there any more.
    Fold(Box<Replay>),
    /// What places in modules are called.
    Names(Vec<NamedPlace>),
    /// How they were named.
    Symbolization(Symbolization),
    /// The recording ended as it was to.
    End(MonotonicNanos),
}

/// The books of one target, by a number that no others of the recording have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BooksId(pub u32);

/// What became of books, as the session acted on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Empty books were opened for a process.
    Opened {
        /// The new books.
        books: BooksId,
        /// Whose they are.
        pid: Pid,
    },
    /// Books were copied for a child, which is no target yet.
    Forked {
        /// What was copied.
        parent: BooksId,
        /// The copy.
        books: BooksId,
        /// The child.
        child: Pid,
        /// There was no room for a copy: the new books are empty.
        is_empty: bool,
    },
    /// A process became another program: its events go to new books.
    Succeeded {
        /// Those that it had.
        before: BooksId,
        /// The new ones.
        books: BooksId,
    },
    /// Events of a process go to these books from now on.
    Joined {
        /// The process.
        pid: Pid,
        /// Its books.
        books: BooksId,
    },
    /// Events of a process go to no books.
    Left {
        /// The process.
        pid: Pid,
    },
    /// Its target has ended: no event will come, and reports name it.
    Kept {
        /// The books.
        books: BooksId,
        /// When its live blocks were looked at for the last time; `None` where they were not.
        closed: Option<MonotonicNanos>,
    },
    /// What callsites hold now was noted, to tell later what it was and how it has grown.
    Noted {
        /// The books.
        books: BooksId,
        /// When, and why.
        instant: Instant,
    },
    /// Where a target's code lies now.
    Mapped {
        /// The target's books.
        books: BooksId,
        /// All executable mappings, by rising address.
        mappings: Vec<MappedRange>,
    },
    /// Books were put right after loss.
    Corrected {
        /// The books.
        books: BooksId,
        /// What was changed, in that order.
        corrections: Vec<Correction>,
    },
}

/// An executable mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MappedRange {
    /// First address.
    pub start: TargetAddr,
    /// First address behind it.
    pub end: TargetAddr,
    /// Where in the file it begins.
    pub offset: FileOffset,
    /// Its module; `None` for generated code.
    pub module: Option<ModuleId>,
}

/// What is known besides events. Written as JSON: a reader passes over fields and kinds that it does not know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Fact {
    /// The recording began.
    Session(SessionFacts),
    /// What is known of a target; later ones take the place of earlier ones.
    Target(BooksId, Known),
    /// A module was met for the first time.
    Module(ModuleFacts),
    /// What was lost so far, and whom the targets are not.
    Health(Box<HealthFacts>),
    /// A snapshot was taken.
    Mark(Mark),
    /// What a thread is called; later ones take the place of earlier ones.
    Thread(BooksId, ThreadFacts),
}

/// How a recording was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionFacts {
    /// When it began, in nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// `CLOCK_MONOTONIC` of that instant.
    pub started_monotonic_ns: u64,
    /// The interval asked for, in bytes.
    pub interval_bytes: u64,
    /// Callsites are told apart by the threads that allocated.
    pub by_thread: bool,
    /// The arguments of heapbpf.
    pub arguments: Vec<String>,
    /// heapbpf's version.
    pub version: String,
}

/// A thread of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadFacts {
    /// Its number.
    pub tid: Tid,
    /// The kernel's name for it.
    pub name: Arc<str>,
}

/// What is known of a target beside its books.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// Who it is.
    pub facts: TargetFacts,
    /// Its probes were in place at some time.
    pub begun: bool,
    /// Its heaps.
    pub heaps: Vec<HeapFacts>,
}

/// What tells a module from others of its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleFacts {
    /// Its number. They are counted from 0 without a gap.
    pub id: ModuleId,
    /// Its path, as the first target names it.
    pub path: String,
    /// Its GNU build id.
    pub build_id: Option<Vec<u8>>,
    /// Size of its file in bytes and when that was last changed (seconds and nanoseconds since the Unix epoch): where there
    /// is no build id they have to do.
    pub file: Option<(u64, i64, i64)>,
    /// The segments that hold its code, the first ones: where it was mapped tells then what its addresses were linked as.
    #[serde(default)]
    pub code: Vec<Segment>,
}

/// Segments of code that are told of a module; linked files have one.
const CODE_SEGMENTS_MAX: usize = 64;

/// What a recording says of its own gaps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthFacts {
    /// As of when, in nanoseconds of `CLOCK_MONOTONIC`.
    pub monotonic_ns: u64,
    /// The same in nanoseconds since the Unix epoch: that clock may be set, or run at another pace.
    pub unix_ns: u64,
    /// Losses and costs since the recording began.
    pub health: Health,
    /// Processes that are no targets of their own.
    pub others: Others,
}

/// A snapshot was taken here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub monotonic_ns: u64,
    /// Why.
    pub reason: String,
}

/// The names of all places in stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The places that have names.
    pub places: Vec<NamedPlace>,
    /// How they were named.
    pub symbolization: Symbolization,
}

/// The functions at one place in a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedPlace {
    /// The module.
    pub module: ModuleId,
    /// Offset in its file.
    pub offset: FileOffset,
    /// The functions, the innermost first.
    pub frames: Arc<[crate::symbolize::ResolvedFrame]>,
}

impl From<&MappedModule> for MappedRange {
    fn from(mapped: &MappedModule) -> Self {
        let Mapping { start, end, offset, .. } = mapped.mapping;
        Self { start, end, offset, module: mapped.module }
    }
}

impl ModuleFacts {
    /// Of a module.
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

impl Entry {
    /// When it happened, where it says so.
    pub fn time(&self) -> Option<MonotonicNanos> {
        match self {
            Self::Event(event) => event_time(event),
            Self::Fact(fact) => match &**fact {
                Fact::Health(health) => Some(MonotonicNanos(health.monotonic_ns)),
                Fact::Mark(mark) => Some(MonotonicNanos(mark.monotonic_ns)),
                // Times are told from the session's beginning, so that comes before all.
                Fact::Session(_) | Fact::Target(..) | Fact::Module(_) | Fact::Thread(..) => None,
            },
            Self::End(time) => Some(*time),
            Self::Step(_) | Self::Fold(_) | Self::Names(_) | Self::Symbolization(_) => None,
        }
    }
}

fn event_time(event: &Event) -> Option<MonotonicNanos> {
    match event {
        Event::Alloc(allocation) => Some(allocation.time),
        Event::Free(free) => Some(free.time),
        Event::Remap(remap) => Some(remap.ended),
        Event::Fork(fork) => Some(fork.time),
        Event::Exec(exec) => Some(exec.time),
        // A restored block has the time of its allocation.
        Event::Restore(_) | Event::Stack(..) | Event::RawStack(..) => None,
    }
}
