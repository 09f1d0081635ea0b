//! HotSpot, OpenJDK's virtual machine, from JDK 11 on. It publishes the layout of its structures (`vmStructs.hpp`) for debuggers.
//!
//! All of it is in the memory of the target, which controls it: reads have limits, and what contradicts itself is an error.

mod frozen;
mod layout;
mod method;
pub(crate) mod perf_map;
mod scopes;
mod stream;
mod structs;

use std::sync::Arc;

use heapbpf_base::ids::Pid;
use heapbpf_base::language::Language;
use profiler_common::hotspot::{CODE_HEAPS_MAX, CodeHeap, Hotspot};
use profiler_common::interpreter::{AddressRange, CodeKind};

use self::layout::Layout;
use self::method::Methods;
use self::perf_map::is_machine;
use self::structs::{Exports, Structs, Unsupported};
use super::implementation::{Entered, Implementation, Reader, Runtime, Sign, found};
use super::memory::Memory;
use super::process::Process;
use crate::object::ObjectError;
use crate::object::interpreted::{Code, CodeBody, Function, PlacedCode};
use crate::object::module::Module;
use crate::object::symbols::definitions;

pub(super) const IMPLEMENTATION: Implementation = Implementation {
    language: Language::Java,
    sign: Sign::Path(is_machine),
    detect: |module| Library::of(module).map(found),
    record: None,
    #[cfg(test)]
    load: Some(|state| Box::new(serde_json::from_value::<Machine>(state).expect("a machine was saved"))),
};

/// The exports of a module that is HotSpot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Library(Exports);

impl Library {
    /// `None` if the module does not describe the structures of a machine.
    fn of(module: &Module) -> Result<Option<Self>, ObjectError> {
        let image = module.image().map_err(Clone::clone)?;
        let elf = module.elf().map_err(Clone::clone)?;
        let found = definitions(image, elf, &[Exports::STRUCTS, Exports::TYPES]);
        let get = |name: &str| found.iter().find(|definition| definition.name == name).map(|found| found.address);
        let (Some(structs), Some(types)) = (get(Exports::STRUCTS), get(Exports::TYPES)) else { return Ok(None) };
        Ok(Some(Self(Exports { structs, types })))
    }

    /// The machine of a process that maps the module with this load bias. `None` if it has not generated its interpreter yet.
    fn in_process(self, pid: Pid, bias: u64) -> Result<Option<Machine>, Unsupported> {
        let structs = Structs::read(&pid, self.0, bias)?;
        let layout = Layout::new(&structs, &pid)?;
        let Some(mut place) = place(&structs, &layout, &pid)? else { return Ok(None) };
        let Some(frozen) = frozen::find(&structs, &layout, &pid) else { return Ok(None) };
        place.frozen = frozen;
        Ok(Some(Machine::new(layout, place)))
    }
}

impl Runtime for Library {
    fn enter(&self, process: &Process) -> Result<Option<Entered>, String> {
        let machine = self.in_process(process.pid, process.bias).map_err(|reason| reason.to_string())?;
        Ok(machine.map(|machine| Entered { place: Arc::new(machine.place), reader: Some(Box::new(machine)) }))
    }
}

/// The virtual machine of a process.
#[derive(Debug)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
struct Machine {
    layout: Layout,
    place: Hotspot,
    #[cfg_attr(test, serde(skip))]
    methods: Methods,
}

impl Machine {
    fn new(layout: Layout, place: Hotspot) -> Self {
        Self { layout, place, methods: Methods::default() }
    }

    /// Reads the names and lines of code. `None` if it has been replaced, or is malformed.
    fn read(&mut self, memory: &impl Memory, code: &PlacedCode) -> Option<Code> {
        let body = match code.kind {
            CodeKind::JavaInterpreted => {
                let method = self.methods.get(memory, &self.layout, code.place.address)?;
                let is_same = memory.word(code.place.address.wrapping_add(self.layout.method_constant))
                    == Some(code.place.refers_to);
                CodeBody::Function(is_same.then(|| method.function())?)
            }
            CodeKind::JavaCompiled => {
                CodeBody::Compiled(scopes::read(memory, &self.layout, &mut self.methods, &code.place)?)
            }
            CodeKind::JavaStub => {
                let name = method::text(memory, code.place.refers_to)?;
                CodeBody::Function(Function { name: Some(name), ..Function::default() })
            }
            _ => return None,
        };
        Some(Code { id: code.id, body })
    }
}

impl Reader for Machine {
    fn read(&mut self, memory: &dyn Memory, code: &PlacedCode) -> Option<Code> {
        self.read(&memory, code)
    }

    #[cfg(test)]
    fn save(&self) -> (Language, serde_json::Value) {
        (Language::Java, serde_json::to_value(self).expect("it can be saved"))
    }
}

/// Where the machine has its code. `None` if it has not generated its interpreter yet.
fn place(structs: &Structs, layout: &Layout, memory: &impl Memory) -> Result<Option<Hotspot>, Unsupported> {
    let heaps = structs.value("CodeCache", "_heaps")?;
    let interpreter = structs.value("AbstractInterpreter", "_code")?;
    let heap_memory = structs.offset("CodeHeap", "_memory")?;
    let heap_segments = structs.offset("CodeHeap", "_segmap")?;
    let heap_shift = structs.offset("CodeHeap", "_log2_segment_size")?;
    let [low, high] =
        [structs.offset("VirtualSpace", "_low_boundary")?, structs.offset("VirtualSpace", "_high_boundary")?];
    // Its name until JDK 15.
    let count = structs.find("GenericGrowableArray", "_len");
    let count = count.map_or_else(|| structs.offset("GrowableArrayBase", "_len"), Ok)?;
    let data = structs.offset("GrowableArray<int>", "_data")?;
    let buffer = structs.offset("StubQueue", "_stub_buffer")?;
    let limit = structs.offset("StubQueue", "_buffer_limit")?;
    let (Some(heaps), Some(interpreter)) = (memory.word(heaps), memory.word(interpreter)) else {
        return Err(Unsupported::Unreadable);
    };
    if heaps == 0 || interpreter == 0 {
        return Ok(None);
    }
    let read = || {
        let first = memory.word(interpreter.wrapping_add(buffer))?;
        let bytes = memory.integer(interpreter.wrapping_add(limit))?;
        let mut place = layout.place();
        place.interpreter = AddressRange { start: first, bytes: bytes.into() };
        let count = memory.integer(heaps.wrapping_add(count))?;
        let data = memory.word(heaps.wrapping_add(data))?;
        let heap = |index: u64| {
            let heap = memory.word(data.wrapping_add(index * 8))?;
            let (memory_at, segments_at) = (heap.wrapping_add(heap_memory), heap.wrapping_add(heap_segments));
            let start = memory.word(memory_at.wrapping_add(low))?;
            let bytes = memory.word(memory_at.wrapping_add(high))?.checked_sub(start)?;
            let segments = memory.word(segments_at.wrapping_add(low))?;
            let segment_shift = memory.integer(heap.wrapping_add(heap_shift))?;
            Some(CodeHeap { range: AddressRange { start, bytes }, segments, segment_shift, reserved: 0 })
        };
        Some((place, count, (0..u64::from(count).min(CODE_HEAPS_MAX as u64)).map(heap).collect::<Option<Vec<_>>>()?))
    };
    let (mut place, count, heaps) = read().ok_or(Unsupported::Unreadable)?;
    if count as usize > CODE_HEAPS_MAX {
        return Err(Unsupported::Heaps(count));
    }
    for (target, heap) in place.heaps.iter_mut().zip(&heaps) {
        *target = *heap;
    }
    let start = heaps.iter().map(|heap| heap.range.start).min();
    let end = heaps.iter().map(|heap| heap.range.start.saturating_add(heap.range.bytes)).max();
    let (Some(start), Some(end)) = (start, end) else { return Ok(None) };
    place.code = AddressRange { start, bytes: end - start };
    Ok((place.interpreter.bytes > 0).then_some(place))
}

#[cfg(test)]
mod tests;
