//! HotSpot, OpenJDK's virtual machine, from JDK 11 on. It publishes the layout of its structures (`vmStructs.hpp`) for debuggers.
//!
//! All of it is in the memory of the target, which controls it: reads have limits, and what contradicts itself is an error.

mod layout;
mod method;
mod scopes;
mod stream;
mod structs;

use std::sync::Arc;
use std::time::{Duration, Instant};

use profiler_common::hotspot::{CODE_HEAPS_MAX, CodeHeap, Hotspot};
use profiler_common::interpreter::{AddressRange, CodeKind};
use rustc_hash::FxHashMap;
use thiserror::Error;

use self::layout::Layout;
use self::method::Method;
use self::structs::{Exports, Structs};
use crate::ids::Pid;
use crate::linux::process_memory;
use crate::object::ObjectError;
use crate::object::interpreted::{Code, CodeBody, Function};
use crate::object::module::Module;
use crate::object::symbols::definitions;

/// Why frames of a machine are not unwound.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unsupported {
    #[error("its memory cannot be read")]
    Unreadable,
    #[error("its own description of its structures (`gHotSpotVMStructs`) lacks `{0}`; JDK 11 to 25 have it")]
    Missing(&'static str),
    #[error("it has {0} heaps of code; up to {CODE_HEAPS_MAX} are supported")]
    Heaps(u32),
}

/// Memory of a target.
trait Memory {
    /// Fills the buffer, or returns `None`.
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()>;

    fn bytes<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(address, &mut bytes)?;
        Some(bytes)
    }

    fn word(&self, address: u64) -> Option<u64> {
        self.bytes(address).map(u64::from_le_bytes)
    }

    fn integer(&self, address: u64) -> Option<u32> {
        self.bytes(address).map(u32::from_le_bytes)
    }

    /// `None` above the limit, too.
    fn range(&self, start: u64, end: u64, bytes_max: usize) -> Option<Vec<u8>> {
        let length = usize::try_from(end.checked_sub(start)?).ok().filter(|&length| length <= bytes_max)?;
        let mut bytes = vec![0; length];
        self.fill(start, &mut bytes)?;
        Some(bytes)
    }
}

impl Memory for Pid {
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        let length = buffer.len();
        let read = process_memory::read(*self, &[(address, length)], buffer).ok()?;
        (read == length).then_some(())
    }
}

/// The exports of a module that is HotSpot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Library(Exports);

impl Library {
    /// `None` if the module does not describe the structures of a machine.
    pub(crate) fn of(module: &Module) -> Result<Option<Self>, ObjectError> {
        let image = module.image().map_err(Clone::clone)?;
        let elf = module.elf().map_err(Clone::clone)?;
        let found = definitions(image, elf, &[Exports::STRUCTS, Exports::TYPES]);
        let get = |name: &str| found.iter().find(|definition| definition.name == name).map(|found| found.address);
        let (Some(structs), Some(types)) = (get(Exports::STRUCTS), get(Exports::TYPES)) else { return Ok(None) };
        Ok(Some(Self(Exports { structs, types })))
    }

    /// The machine of a process that maps the module with this load bias. `None` if it has not generated its interpreter yet.
    pub(crate) fn in_process(self, pid: Pid, bias: u64) -> Result<Option<Machine>, Unsupported> {
        let structs = Structs::read(&pid, self.0, bias)?;
        let layout = Layout::new(&structs, &pid)?;
        Ok(place(&structs, &layout, &pid)?.map(|place| Machine::new(layout, place)))
    }
}

/// Methods whose names are kept; then all are forgotten.
const METHODS_MAX: usize = 1 << 16;

/// Time to read the code of a machine: at once, and as a part of the time since it was found. Real ones take some milliseconds in
/// all; one that pretends must not keep the agent busy.
const READING_MAX: Duration = Duration::from_secs(2);
const READING_PART: u32 = 20;

/// The virtual machine of a process.
#[derive(Debug)]
pub(crate) struct Machine {
    layout: Layout,
    place: Hotspot,
    methods: FxHashMap<u64, (u64, Arc<Method>)>,
    found: Instant,
    spent: Duration,
}

/// Code that a stack contains, as the kernel side describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JavaCode {
    /// As in [`InterpretedFrame::code`](profiler_common::interpreter::InterpretedFrame).
    pub(crate) id: u64,
    pub(crate) kind: CodeKind,
    /// As in [`JavaCodeRecord`](profiler_common::hotspot::JavaCodeRecord).
    pub(crate) address: u64,
    pub(crate) refers_to: u64,
    pub(crate) compilation: u32,
}

impl Machine {
    fn new(layout: Layout, place: Hotspot) -> Self {
        Self { layout, place, methods: FxHashMap::default(), found: Instant::now(), spent: Duration::ZERO }
    }

    pub(crate) fn place(&self) -> &Hotspot {
        &self.place
    }

    /// Reads the names and lines of code. `None` if it has been replaced, is malformed, or reading takes too long.
    pub(crate) fn read(&mut self, pid: Pid, code: &JavaCode) -> Option<Code> {
        let started = Instant::now();
        if self.spent > READING_MAX + self.found.elapsed() / READING_PART {
            return None;
        }
        let read = self.read_from(&pid, code);
        self.spent += started.elapsed();
        read
    }

    fn read_from(&mut self, memory: &impl Memory, code: &JavaCode) -> Option<Code> {
        let body = match code.kind {
            CodeKind::JavaInterpreted => {
                let method = self.method(memory, code.address)?;
                let is_same =
                    memory.word(code.address.wrapping_add(self.layout.method_constant)) == Some(code.refers_to);
                CodeBody::Function(is_same.then(|| method.function())?)
            }
            CodeKind::JavaCompiled => CodeBody::Compiled(scopes::read(self, memory, code)?),
            CodeKind::JavaStub => {
                let name = method::text(memory, code.refers_to)?;
                CodeBody::Function(Function { name: Some(name), ..Function::default() })
            }
            CodeKind::Cpython => return None,
        };
        Some(Code { id: code.id, body })
    }

    /// The names and lines of a method.
    fn method(&mut self, memory: &impl Memory, address: u64) -> Option<Arc<Method>> {
        let constant = memory.word(address.wrapping_add(self.layout.method_constant))?;
        if let Some((_, known)) = self.methods.get(&address).filter(|(of, _)| *of == constant) {
            return Some(Arc::clone(known));
        }
        let method = Arc::new(Method::read(memory, &self.layout, constant)?);
        if self.methods.len() >= METHODS_MAX {
            self.methods.clear();
        }
        self.methods.insert(address, (constant, Arc::clone(&method)));
        Some(method)
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
