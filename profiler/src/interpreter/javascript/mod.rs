//! V8, the JavaScript engine of Node.js 18 to 24. It publishes offsets in its objects for debuggers.
//!
//! All of it is in the memory of the target, which controls it: reads have limits, and what contradicts itself is an error.

mod bytecode;
mod compiled;
mod functions;
mod heap;
mod layout;
mod positions;

use std::ops::Range;
use std::sync::Arc;

use heapbpf_base::language::Language;
use heapbpf_linux::memory::page_bytes;
use profiler_common::interpreter::AddressRange;
use profiler_common::v8::V8;

use self::functions::Scripts;
use self::heap::Heap;
use self::layout::{Layout, Published, Unsupported};
use super::arch::CODE_AREA_BYTES;
use super::implementation::{Entered, Implementation, Reader, Runtime, Sign, found};
use super::memory::Memory;
use super::process::{CodeMapping, Process};
use crate::object::ObjectError;
use crate::object::interpreted::{Code, CodeBody, CodeLines, Function, PlacedCode};
use crate::object::module::Module;
use crate::object::script::TargetFiles;
use crate::object::symbols::{definitions, exported_integers, local_objects};

pub(super) const IMPLEMENTATION: Implementation = Implementation {
    language: Language::JavaScript,
    sign: Sign::Symbol(SIGN),
    detect: |module| Library::of(module).map(found),
    record: None,
    #[cfg(test)]
    load: Some(|state| Box::new(serde_json::from_value::<Engine>(state).expect("an engine was saved"))),
};

/// A module without this symbol describes no objects of V8.
const SIGN: &str = "v8dbg_SmiTag";

const PREFIX: &str = "v8dbg_";
const MAJOR: &str = "_ZN2v88internal7Version6major_E";
/// Machine code of the engine's own functions. Versions until 10 have a pointer with the second name.
const BUILTINS: [&str; 2] = ["v8_Default_embedded_blob_code_data_", "v8_Default_embedded_blob_code_"];
const BUILTINS_SIZE: &str = "v8_Default_embedded_blob_code_size_";
/// Bytes of each bytecode, for operands of 1, 2 and 4 bytes.
const BYTECODE_SIZES: &str = "_ZN2v88internal11interpreter9Bytecodes14kBytecodeSizesE";
const BYTECODE_SIZES_BYTES_MAX: u64 = 3 * 256;
const BUILTINS_BYTES_MAX: u32 = 1 << 26;
/// Without a copy, the area is not known: generated code may follow this near to other generated code.
const CODE_GROWTH_BYTES: u64 = 128 << 20;

/// The engine in a module, by link addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Library {
    layout: Result<Layout, Unsupported>,
    builtins: Option<Range<u64>>,
}

impl Library {
    /// `None` if the module does not describe the objects of an engine.
    fn of(module: &Module) -> Result<Option<Self>, ObjectError> {
        let image = module.image().map_err(Clone::clone)?;
        let elf = module.elf().map_err(Clone::clone)?;
        let published = exported_integers(image, elf, PREFIX);
        if published.is_empty() {
            return Ok(None);
        }
        let integer = |address| {
            let bytes = image.read(elf.data_offset(address)?, 4, 4).ok()?;
            bytes.first_chunk().map(|word| u32::from_le_bytes(*word))
        };
        let major = definitions(image, elf, &[MAJOR]).first().and_then(|found| integer(found.address)).unwrap_or(0);
        let found = local_objects(image, elf, &[BUILTINS[0], BUILTINS[1], BUILTINS_SIZE, BYTECODE_SIZES]);
        let object = |name: &str| found.iter().find(|found| found.name == name);
        let label = |name: &str| object(name).map(|found| found.address);
        let sizes = object(BYTECODE_SIZES).and_then(|sizes| {
            image.read(elf.data_offset(sizes.address)?, sizes.size_bytes, BYTECODE_SIZES_BYTES_MAX).ok()
        });
        let size = label(BUILTINS_SIZE).and_then(integer).filter(|&bytes| bytes <= BUILTINS_BYTES_MAX);
        let builtins = BUILTINS.iter().find_map(|name| label(name)).zip(size);
        Ok(Some(Self {
            layout: Layout::new(&Published(published), major.cast_signed(), sizes.unwrap_or_default().into()),
            builtins: builtins.map(|(start, bytes)| start.0..start.0.saturating_add(bytes.into())),
        }))
    }

    /// The engine of a process with these mappings of code.
    fn in_process(&self, code: &[CodeMapping]) -> Result<Engine, Unsupported> {
        let layout = self.layout.clone()?;
        let builtins = self.builtins.as_ref().ok_or(Unsupported::NoBuiltins)?;
        let mut place = layout.place()?;
        let range = |range: Range<u64>| AddressRange { start: range.start, bytes: range.end - range.start };
        let mut parts = code.iter().filter_map(|mapping| Some((mapping, mapping.part(builtins)?)));
        let is_copy = |mapping: &CodeMapping, part: &Range<u64>| {
            let bytes = |range: &Range<u64>| range.end - range.start;
            bytes(&mapping.range) - bytes(part) < 2 * page_bytes()
        };
        let copy = parts.clone().find(|(mapping, part)| is_copy(mapping, part)).map(|(_, part)| part);
        let original = parts.find(|(mapping, part)| !is_copy(mapping, part)).map(|(_, part)| part);
        let found = [original, copy.clone()];
        if found.iter().all(Option::is_none) {
            return Err(Unsupported::NoBuiltins);
        }
        place.builtins = found.map(|part| part.map_or_else(AddressRange::default, range));
        place.generated = range(generated(code, copy.as_ref()));
        Ok(Engine { layout, place, scripts: Scripts::default() })
    }
}

impl Runtime for Library {
    fn enter(&self, process: &Process) -> Result<Option<Entered>, String> {
        let mut engine = self.in_process(&process.code).map_err(|reason| reason.to_string())?;
        engine.scripts = Scripts::new(TargetFiles::of(process.pid));
        Ok(Some(Entered { place: Arc::new(engine.place), reader: Some(Box::new(engine)) }))
    }
}

/// The area of generated code, empty if there is none yet. The engine reserves it at once and fills it by and by. It ends with a copy of
/// the builtins, so it is taken as a whole then, unless something else is in it.
fn generated(code: &[CodeMapping], copy: Option<&Range<u64>>) -> Range<u64> {
    let overlaps = |range: &Range<u64>, other: &Range<u64>| other.start < range.end && range.start < other.end;
    let is_other =
        |mapping: &CodeMapping| !mapping.is_generated && copy.is_none_or(|copy| !overlaps(&mapping.range, copy));
    if let Some(copy) = copy {
        let whole = copy.end.saturating_sub(CODE_AREA_BYTES)..copy.end;
        if !code.iter().any(|mapping| is_other(mapping) && overlaps(&mapping.range, &whole)) {
            return whole;
        }
    }
    // The largest run of generated code between files, and what the engine will add to it.
    let (mut best, mut run): (Range<u64>, Range<u64>) = (0..0, 0..0);
    let (mut room, mut last) = (0..u64::MAX, 0);
    for mapping in code {
        if is_other(mapping) {
            room.end = if run == best { mapping.range.start } else { room.end };
            run = 0..0;
            last = mapping.range.end;
        } else if mapping.is_generated {
            let continues = !run.is_empty() && mapping.range.end - run.start <= CODE_AREA_BYTES;
            run = if continues { run.start..mapping.range.end } else { mapping.range.clone() };
            if run.end - run.start > best.end - best.start {
                best = run.clone();
                room = last..u64::MAX;
            }
        }
    }
    if best.is_empty() {
        return best;
    }
    best.start.saturating_sub(CODE_GROWTH_BYTES).max(room.start)
        ..best.end.saturating_add(CODE_GROWTH_BYTES).min(room.end)
}

/// The engine of a process.
#[derive(Debug)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
struct Engine {
    layout: Layout,
    place: V8,
    #[cfg_attr(test, serde(skip))]
    scripts: Scripts,
}

impl Engine {
    /// Reads the name and lines of a function. `None` if it has been moved or replaced, or is malformed.
    fn read(&mut self, memory: &impl Memory, code: &PlacedCode) -> Option<Code> {
        let heap = Heap { memory, layout: &self.layout };
        let shared = heap.of_kind(code.place.address | 1, self.layout.kinds.shared)?;
        if heap.field(shared, self.layout.shared_name)? != code.place.refers_to {
            return None;
        }
        let function = self.scripts.function(&heap, shared)?;
        let body = if code.place.detail == 0 {
            let starts = functions::bytecode_lines(&heap, shared, &function).unwrap_or_default();
            CodeBody::Function(Function {
                name: Some(function.name.clone()),
                file: function.file(),
                lines: CodeLines::Script { first: function.first_spot(), starts: starts.into() },
                script: function.in_script(),
            })
        } else {
            let of = (shared, &function);
            CodeBody::Compiled(compiled::read(&heap, &mut self.scripts, of, code.place.detail))
        };
        Some(Code { id: code.id, body })
    }
}

impl Reader for Engine {
    fn read(&mut self, memory: &dyn Memory, code: &PlacedCode) -> Option<Code> {
        self.read(&memory, code)
    }

    #[cfg(test)]
    fn save(&self) -> (Language, serde_json::Value) {
        (Language::JavaScript, serde_json::to_value(self).expect("it can be saved"))
    }
}

#[cfg(test)]
mod tests;
