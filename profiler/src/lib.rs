//! heapbpf's agent. ARCHITECTURE.md lists the modules in the order of the pipeline.

#![forbid(unsafe_code)]
#![expect(missing_docs, reason = "no stable interface: `internals` re-exports internal items")]
#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests choose their names, and print to nobody's terminal")
)]

mod account;
mod allocator;
mod arch;
mod bpf;
mod check;
mod cli;
mod collect;
mod debuginfod;
mod doctor;
#[doc(hidden)]
pub mod fuzzing;
mod go_heap;
mod guardrail;
mod http;
mod interpreter;
mod keeper;
mod live;
mod object;
mod object_types;
mod probe;
mod process;
mod push;
mod reader;
mod recording;
mod serve;
mod session;
mod snapshot;
mod symbolize;
mod top;
mod unwind;
mod walk;

pub use cli::run;
pub use reader::{COMMAND as READER_COMMAND, serve as serve_reader};
pub use symbolize::sandbox::{COMMAND as SYMBOLIZER_COMMAND, serve as serve_symbolizer};

/// Items for the tests, examples and fuzz targets of this workspace. Not a stable interface.
#[doc(hidden)]
pub mod internals {
    pub use crate::allocator::custom::{CustomHook, function as parse_function};
    pub use crate::allocator::hook_set::HookSet;
    pub use crate::allocator::selection::interval_bytes;
    pub use crate::allocator::spec::HookSpec;
    pub use crate::bpf::counters::Counters;
    pub use crate::bpf::load::{Kernel, KernelConfig, LinkKind};
    pub use crate::bpf::ring::Ring;
    pub use crate::cli::panic_on_screen;
    pub use crate::collect::ThreadState;
    pub use crate::keeper::{COMMAND as KEEPER_COMMAND, serve as serve_keeper};
    pub use crate::object::image::Image;
    pub use crate::object::module::{Module, ModuleStore, Modules, Recorded};
    pub use crate::object::symbols::{Search, Symbols, Vtables};
    pub use crate::probe::code::Code;
    pub use crate::probe::place::{Emulation, PlacementMode, place};
    pub use crate::process::address_space::AddressSpace;
    pub use crate::process::pattern::{ModulePattern, Names as ProcessNames, Pattern};
    pub use crate::process::selection::Selection;
    pub use crate::recording::block::{BlockWriter, FILE_HEADER_BYTES, Kind, file_header, read_block};
    pub use crate::recording::entry::Names;
    pub use crate::recording::names::{Found, RecordedNames, find as find_modules};
    pub use crate::recording::read::{Reading, read as read_recording};
    pub use crate::recording::replay::{Entry, Replay};
    pub use crate::recording::span::{ReplayedSpan, Span, SpanError};
    pub use crate::recording::write::Writer;
    pub use crate::session::{Control, Hold, OverloadPolicy, RawSample, Session, SessionConfig};
    pub use crate::snapshot::Scope;
    pub use crate::symbolize::profile::profile;
    pub use crate::symbolize::resolver::Resolver;
    pub use crate::symbolize::trim::Trim;
    pub use crate::unwind::{Table, build as build_unwind_table};
    pub use crate::walk::{Scene, Walk, walk};
}
