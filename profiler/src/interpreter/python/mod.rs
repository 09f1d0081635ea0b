//! CPython 3.8 to 3.14. Up to 3.12, offsets are those of the version's headers; later versions publish them in memory.

mod heap;
mod lines;
mod offsets;
mod record;

use std::ops::Range;
use std::sync::Arc;

use heapbpf_base::address::{LinkAddr, TargetAddr};
use heapbpf_base::ids::Pid;
use heapbpf_base::language::Language;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::ObjectTypes;
use heapbpf_linux::process_memory;
use object::elf::SHF_WRITE;
use profiler_common::interpreter::{AddressRange, Interpreter, USES_MUSL};
use profiler_common::record::RecordKind;

use self::heap::{Data, HeapError, Layout};
use self::offsets::DEBUG_OFFSETS_BYTES;
use self::offsets::Unsupported;
use super::implementation::{Entered, Implementation, ObjectHeap, Record, Runtime, Sign, found};
use super::loops::loops;
use super::memory::HeapMemory;
use super::process::Process;
use super::version::Version;
use crate::object::ObjectError;
use crate::object::elf::Section;
use crate::object::module::Module;
use crate::object::symbols::definitions;

pub(super) const IMPLEMENTATION: Implementation = Implementation {
    language: Language::Python,
    sign: Sign::Symbol(RUNTIME),
    detect: |module| Cpython::of(module).map(found),
    record: Some(Record { kind: RecordKind::Code, decode: record::decode }),
    #[cfg(test)]
    load: None,
};

/// State of the whole interpreter.
const RUNTIME: &str = "_PyRuntime";
/// The interpreter loop.
const LOOP: &str = "_PyEval_EvalFrameDefault";
/// The type of types.
const TYPE_OF_TYPES: &str = "PyType_Type";
/// The version as a number, since 3.11.
const VERSION: &str = "Py_Version";

/// CPython in a module, by link addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cpython {
    version: Result<Version, Unsupported>,
    runtime: LinkAddr,
    /// The loop, then the part of it that the compiler considered cold.
    loops: Vec<Range<u64>>,
    /// `None` if the module does not export the type of types.
    type_of_types: Option<LinkAddr>,
    /// Sections with data that can be written.
    data: Vec<Range<u64>>,
}

impl Cpython {
    /// `None` if the module contains no CPython.
    fn of(module: &Module) -> Result<Option<Self>, ObjectError> {
        let image = module.image().map_err(Clone::clone)?;
        let elf = module.elf().map_err(Clone::clone)?;
        let found = definitions(image, elf, &[RUNTIME, LOOP, VERSION, TYPE_OF_TYPES]);
        let get = |name: &str| found.iter().find(|definition| definition.name == name);
        let (Some(runtime), Some(evaluate)) = (get(RUNTIME), get(LOOP)) else { return Ok(None) };
        let hexversion = get(VERSION).and_then(|definition| {
            let offset = elf.data_offset(definition.address)?;
            let bytes = image.read(offset, 4, 4).ok()?;
            bytes.first_chunk().map(|word| u32::from_le_bytes(*word))
        });
        let version = hexversion.map(Version::of_hex).or_else(|| Version::of_path(module.path()));
        let version = version.ok_or(Unsupported::NoVersion);
        let is_data = |section: &&Section| section.flags & u64::from(SHF_WRITE) != 0 && section.address.0 != 0;
        let data = elf.sections.iter().filter(is_data);
        Ok(Some(Self {
            version,
            runtime: runtime.address,
            loops: loops(image, module, evaluate),
            type_of_types: get(TYPE_OF_TYPES).map(|definition| definition.address),
            data: data.map(|it| it.address.0..it.address.0.saturating_add(it.size_bytes)).collect(),
        }))
    }

    /// The interpreter of a process that maps the module with this load bias.
    fn in_process(
        &self,
        pid: Pid,
        bias: u64,
        uses_musl: bool,
        control_block: Option<u64>,
    ) -> Result<Interpreter, Unsupported> {
        let version = self.version.clone()?;
        let control_block = control_block.ok_or(Unsupported::NoControlBlock)?;
        let runtime = self.runtime.0.wrapping_add(bias);
        let mut published = [0; DEBUG_OFFSETS_BYTES];
        if version.publishes_offsets() {
            let read = process_memory::read(pid, &[(runtime, published.len())], &mut published);
            if read.ok() != Some(published.len()) {
                return Err(Unsupported::Unreadable);
            }
        }
        let mut interpreter = version.interpreter(TargetAddr(runtime), &published)?;
        for (range, found) in interpreter.loops.iter_mut().zip(&self.loops) {
            *range = AddressRange { start: found.start.wrapping_add(bias), bytes: found.end - found.start };
        }
        interpreter.control_block = control_block;
        if uses_musl {
            interpreter.flags |= USES_MUSL;
        }
        Ok(interpreter)
    }
}

impl ObjectHeap for Cpython {
    fn count(&self, process: &Process, memory: &dyn HeapMemory, time: MonotonicNanos) -> Result<ObjectTypes, String> {
        let &Process { pid, bias, uses_musl, .. } = process;
        let runtime = self.runtime.0.wrapping_add(bias);
        memory
            .range(runtime, runtime.wrapping_add(DEBUG_OFFSETS_BYTES as u64), DEBUG_OFFSETS_BYTES)
            .ok_or_else(|| HeapError::Unreadable.to_string())?;
        // Objects do not depend on threads.
        let interpreter = self.in_process(pid, bias, uses_musl, Some(0)).map_err(|reason| reason.to_string())?;
        let version = self.version.clone().map_err(|reason| reason.to_string())?;
        let moved = |range: &Range<u64>| range.start.wrapping_add(bias)..range.end.wrapping_add(bias);
        let sections: Vec<Range<u64>> = self.data.iter().map(moved).collect();
        let module = bias..sections.iter().map(|section| section.end).max().unwrap_or(bias);
        let layout = Layout::of(version, interpreter.text_ascii, interpreter.text_wide);
        let type_of_types = self.type_of_types.ok_or(HeapError::NoTypes).map_err(|reason| reason.to_string())?;
        let data = Data { sections, module };
        heap::count(memory, &data, layout, type_of_types.0.wrapping_add(bias), time)
            .map_err(|reason| reason.to_string())
    }
}

impl Runtime for Cpython {
    fn enter(&self, process: &Process) -> Result<Option<Entered>, String> {
        let &Process { pid, bias, uses_musl, control_block, .. } = process;
        let place = self.in_process(pid, bias, uses_musl, control_block).map_err(|reason| reason.to_string())?;
        Ok(Some(Entered { place: Arc::new(place), reader: None }))
    }

    fn heap(&self) -> Option<&dyn ObjectHeap> {
        Some(self)
    }
}

#[cfg(test)]
mod tests;
