//! heapbpf's agent. Modules are in the order of the pipeline.

#![expect(missing_docs, reason = "no stable interface: `internals` re-exports internal items")]

mod address;
mod ids;
mod memory;
mod units;

mod linux;

mod object;
mod process;

mod allocator;
mod bpf;
mod keeper;
mod probe;

mod ingest;
mod unwind;

mod collect;
mod walk;

mod leak;
mod ledger;
mod model;
mod snapshot;
mod symbolize;

mod guardrail;
mod report;

mod recording;

mod check;

mod session;

mod doctor;

mod fuzzing;

mod cli;

pub use cli::run;
pub use symbolize::sandbox::{COMMAND as SYMBOLIZER_COMMAND, serve as serve_symbolizer};

/// Items for the tests, examples and fuzz targets of this workspace. Not a stable interface.
#[doc(hidden)]
pub mod internals {
    pub mod address {
        pub use crate::address::{FileOffset, LinkAddr, TargetAddr};
    }
    pub mod allocator {
        pub mod custom {
            pub use crate::allocator::custom::{CustomHook, function};
        }
        pub mod hook_set {
            pub use crate::allocator::hook_set::HookSet;
        }
        pub mod selection {
            pub use crate::allocator::selection::{HeapSelection, interval_bytes};
        }
        pub mod spec {
            pub use crate::allocator::spec::HookSpec;
        }
    }
    pub mod bpf {
        pub mod counters {
            pub use crate::bpf::counters::Counters;
        }
        pub mod load {
            pub use crate::bpf::load::{Kernel, KernelConfig, LinkKind};
        }
        pub mod ring {
            pub use crate::bpf::ring::Ring;
        }
    }
    pub mod collect {
        pub use crate::collect::ThreadState;
    }
    pub mod fuzzing {
        pub use crate::fuzzing::{link_map, proc_file, symbol_name, unwind_cache, unwind_table};
    }
    pub mod guardrail {
        pub use crate::guardrail::Limits;
    }
    pub mod ids {
        pub use crate::ids::{HeapId, HookId, ModuleId, Pid, Tid};
    }
    pub mod ingest {
        pub mod decode {
            pub use crate::ingest::decode::decode;
        }
        pub mod event {
            pub use crate::ingest::event::{Allocation, Event, RawStack};
        }
    }
    pub mod keeper {
        pub use crate::keeper::{COMMAND, serve};
    }
    pub mod leak {
        pub mod blocks {
            pub use crate::leak::blocks::{Block, Blocks};
        }
        pub mod fold {
            pub use crate::leak::fold::fold;
        }
        pub mod mark {
            pub use crate::leak::mark::{Roots, mark_with};
        }
    }
    pub mod linux {
        pub mod bpf {
            pub use crate::linux::bpf::{AttachType, MultiLink, ProgramLoad, link_multi, load_program};
        }
        pub mod proc {
            pub mod maps {
                pub use crate::linux::proc::maps::{Region, RegionKind, region_of, regions};
            }
            pub mod process {
                pub use crate::linux::proc::process::Auxv;
            }
        }
    }
    pub mod memory {
        pub use crate::memory::{Copied, Memory};
    }
    pub mod model {
        pub use crate::model::{Profile, TargetProfile};
        pub mod history {
            pub use crate::model::history::{CurvePoint, HeapUsage, SampleTrigger};
        }
    }
    pub mod object {
        pub mod image {
            pub use crate::object::image::Image;
        }
        pub mod module {
            pub use crate::object::module::{Module, ModuleStore, Modules, Recorded};
        }
        pub mod symbols {
            pub use crate::object::symbols::{Search, Symbols, Vtables};
        }
    }
    pub mod probe {
        pub mod attach {
            pub use crate::probe::attach::BackendChoice;
        }
        pub mod code {
            pub use crate::probe::code::Code;
        }
        pub mod place {
            pub use crate::probe::place::{Emulation, PlacementMode, place};
        }
    }
    pub mod process {
        pub mod address_space {
            pub use crate::process::address_space::AddressSpace;
        }
        pub mod filter {
            pub use crate::process::selection::Selection;
        }
        pub mod names {
            pub use crate::process::pattern::Names;
        }
        pub mod pattern {
            pub use crate::process::pattern::{ModulePattern, Pattern};
        }
    }
    pub mod recording {
        pub mod block {
            pub use crate::recording::block::{BlockWriter, FILE_HEADER_BYTES, Kind, file_header, read_block};
        }
        pub mod entry {
            pub use crate::recording::entry::Names;
            pub use crate::recording::replay::Entry;
        }
        pub mod modules {
            pub use crate::recording::names::{Found, find};
        }
        pub mod names {
            pub use crate::recording::names::RecordedNames;
        }
        pub mod read {
            pub use crate::recording::read::{Reading, read};
        }
        pub mod replay {
            pub use crate::recording::replay::Replay;
        }
        pub mod span {
            pub use crate::recording::span::{ReplayedSpan, Span, SpanError};
        }
        pub mod write {
            pub use crate::recording::write::Writer;
        }
    }
    pub mod report {
        pub use crate::report::{Format, Group, Presentation, View, summary};
        pub mod diff {
            pub use crate::report::diff::{Diff, Drawing, FORMATS, Side, table};
        }
        pub mod json {
            pub mod read {
                pub use crate::report::json::read::read;
            }
        }
        pub mod suppressions {
            pub use crate::report::suppressions::Suppressions;
        }
    }
    pub mod session {
        pub use crate::session::{Control, DumpPlan, Hold, OverloadPolicy, Session, SessionConfig, UnwindMode};
        pub mod raw {
            pub use crate::session::RawSample;
        }
    }
    pub mod snapshot {
        pub use crate::snapshot::Scope;
    }
    pub mod symbolize {
        pub mod profile {
            pub use crate::symbolize::profile::profile;
        }
        pub mod resolver {
            pub use crate::symbolize::resolver::Resolver;
        }
    }
    pub mod unwind {
        pub use crate::unwind::{Table, build};
    }
    pub mod walk {
        pub use crate::walk::{Scene, Walk, walk};
    }
}
