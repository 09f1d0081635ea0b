//! What the agent uses of a language's implementation: how a module with it is recognised, how a process with it is entered, and how
//! the code that stacks contain gets its names. A folder per language implements these.

use std::fmt::Debug;
use std::sync::Arc;

use heapbpf_base::language::Language;
use heapbpf_base::language::facts::Functions;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::ingest::field::DecodeError;
use heapbpf_ledger::model::ObjectTypes;
use heapbpf_linux::bpf_map::ArrayValue;
use profiler_common::record::RecordKind;

use super::memory::{HeapMemory, Memory};
use super::process::Process;
use crate::object::ObjectError;
use crate::object::interpreted::{Code, CodeBody, Function, PlacedCode};
use crate::object::module::Module;

/// The implementation of a language.
pub(super) struct Implementation {
    pub(super) language: Language,
    pub(super) sign: Sign,
    pub(super) detect: Detect,
    /// `None` if the kernel side sends only the place of code, whose names a [`Reader`] reads.
    pub(super) record: Option<Record>,
    /// Restores what [`Reader::save`] has saved.
    #[cfg(test)]
    pub(super) load: Option<fn(serde_json::Value) -> Box<dyn Reader>>,
}

/// What a module must have to contain an implementation.
pub(super) enum Sign {
    /// A path that passes; no other implementation is in the module.
    Path(fn(&str) -> bool),
    /// A symbol.
    Symbol(&'static str),
}

/// Returns `None` if the module does not contain the implementation.
pub(super) type Detect = fn(&Module) -> Result<Option<Arc<dyn Runtime>>, ObjectError>;

/// The record that the kernel side sends with the names of code.
pub(super) struct Record {
    pub(super) kind: RecordKind,
    pub(super) decode: fn(&[u8]) -> Result<NamedCode, DecodeError>,
}

/// A runtime that a module contains.
pub(crate) trait Runtime: Debug + Send + Sync {
    /// Finds the runtime's structures in a process that maps the module. Returns `None` if it has not started yet.
    fn enter(&self, process: &Process) -> Result<Option<Entered>, String>;

    /// The runtime's own heap. `None` if heapbpf cannot count its objects.
    fn heap(&self) -> Option<&dyn ObjectHeap> {
        None
    }
}

/// A heap of objects that have types.
pub(crate) trait ObjectHeap {
    /// Counts the objects in a process by type, while it runs.
    fn count(&self, process: &Process, memory: &dyn HeapMemory, time: MonotonicNanos) -> Result<ObjectTypes, String>;
}

/// A runtime of a process.
pub(crate) struct Entered {
    /// Where its structures are, for the kernel's map.
    pub(crate) place: Arc<dyn ArrayValue>,
    /// `None` if the kernel side sends the names.
    pub(crate) reader: Option<Box<dyn Reader>>,
}

/// Reads the names of code from a process.
pub(crate) trait Reader: Debug + Send {
    /// Reads names and lines. Returns `None` if the code has been replaced, or is malformed.
    fn read(&mut self, memory: &dyn Memory, code: &PlacedCode) -> Option<Code>;

    /// For a test's snapshot.
    #[cfg(test)]
    fn save(&self) -> (Language, serde_json::Value);
}

/// A module's runtime.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) language: Language,
    pub(crate) functions: &'static Functions,
    pub(crate) runtime: Arc<dyn Runtime>,
}

/// Code as the kernel side has sent it.
#[derive(Debug)]
pub(crate) enum Sent {
    Named(Language, NamedCode),
    Placed(PlacedCode),
}

/// Code with its names.
#[derive(Debug)]
pub(crate) struct NamedCode {
    pub(crate) code: Code,
    /// Reads code that is too long for a record.
    pub(crate) whole: Option<Box<dyn Whole>>,
}

/// Code of which a record has only a part.
pub(crate) trait Whole: Debug + Send {
    /// Returns `None` if the part is not in memory any more.
    fn read(&self, memory: &dyn Memory) -> Option<Code>;
}

impl NamedCode {
    pub(super) fn of(id: u64, function: Function) -> Self {
        Self { code: Code { id, body: CodeBody::Function(function) }, whole: None }
    }
}

pub(super) fn found<R: Runtime + 'static>(runtime: Option<R>) -> Option<Arc<dyn Runtime>> {
    runtime.map(|runtime| -> Arc<dyn Runtime> { Arc::new(runtime) })
}
