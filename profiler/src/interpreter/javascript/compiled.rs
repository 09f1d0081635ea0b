//! Functions that V8 has compiled, and those that were inlined into them.

use std::sync::Arc;

use profiler_common::interpreter::INSTRUCTION_UNKNOWN;
use profiler_common::limits::PAGE_BYTES;

use super::super::arch::CODE_ALIGNMENT;
use super::super::memory::Memory;
use super::bytecode::offset_in;
use super::functions::{SHARED_DATA, Scripts, SharedFunction, bytecode_of};
use super::heap::{Array, Heap};
use super::positions::{Entry, Position, entries};
use crate::object::interpreted::{Compiled, Scope};
use crate::object::script::Spot;

const PAGE: usize = 4096;
/// Code before the address that is searched for its beginning.
const SEARCH_BYTES: u64 = 1 << 20;
/// In what precedes instructions, unless it is the code object: a reference to it.
const STREAM_CODE: u64 = 8;
const TABLE_BYTES_MAX: usize = 1 << 20;
const INLININGS_BYTES_MAX: usize = 1 << 16;
/// An inlined call: where it is, the index of the function among the literals, and nothing.
const INLINING_BYTES: usize = 16;
/// Instead of the index: the function that is compiled, which calls itself (`SourcePosition::kNotInlined`).
const OWN_FUNCTION: i32 = -1;

/// Code of a function.
struct Code {
    object: u64,
    /// Address of its instructions.
    start: u64,
}

/// The code at this address, compiled from a function. Without inlined functions and lines of calls if they are not known.
pub(super) fn read(
    heap: &Heap<'_, impl Memory>,
    scripts: &mut Scripts,
    (shared, function): (u64, &SharedFunction),
    address: u64,
) -> Compiled {
    let code = find(heap, address);
    let is_baseline = code.as_ref().is_some_and(|code| is_baseline(heap, code) == Some(true));
    let (spot, parts) = match code {
        Some(code) if is_baseline => (baseline_spot(heap, &code, shared, function, address), None),
        code => (None, code.and_then(|code| Parts::read(heap, &code, shared).map(|parts| (code, parts)))),
    };
    let mut builder = Builder {
        functions: vec![(shared, function.clone())],
        scopes: Vec::new(),
        parts: parts.as_ref().map(|(_, parts)| parts),
    };
    let position = parts.as_ref().and_then(|(code, parts)| parts.position(u32::try_from(address - code.start).ok()?));
    let innermost = position.and_then(|position| builder.scope(heap, scripts, position, INLINED_MAX));
    let may_lack_inlined = innermost.is_none() && !is_baseline;
    let innermost = innermost.unwrap_or_else(|| builder.outermost(spot.or_else(|| function.first_spot())));
    let functions = builder.functions.iter().map(|(_, function)| (Arc::clone(&function.name), function.file()));
    Compiled {
        functions: functions.collect(),
        scripts: builder.functions.iter().map(|(_, function)| function.in_script()).collect(),
        scopes: builder.scopes,
        calls: vec![(INSTRUCTION_UNKNOWN, innermost)],
        may_lack_inlined,
    }
}

/// Functions that are inlined into each other.
const INLINED_MAX: u32 = 64;

/// The code object whose instructions contain the address.
fn find(heap: &Heap<'_, impl Memory>, address: u64) -> Option<Code> {
    let layout = &heap.layout.code;
    let mut page: Option<(u64, [u8; PAGE])> = None;
    let nearest = address & !(CODE_ALIGNMENT - 1);
    for start in (0..SEARCH_BYTES / CODE_ALIGNMENT).map(|index| nearest.wrapping_sub(index * CODE_ALIGNMENT)) {
        let header = start.wrapping_sub(layout.header);
        let wanted = if layout.is_inline { header } else { header.wrapping_add(STREAM_CODE) };
        let (first, inside) = (wanted & !(PAGE_BYTES - 1), usize::try_from(wanted & (PAGE_BYTES - 1)).ok()?);
        let bytes = match &page {
            Some((known, bytes)) if *known == first => bytes,
            // What precedes the first page of generated code is not mapped.
            _ => &page.insert((first, heap.memory.bytes(first)?)).1,
        };
        let word = u64::from_le_bytes(*bytes.get(inside..)?.first_chunk()?);
        if let Some(object) = code_object(heap, word, header, start, address) {
            return Some(Code { object, start });
        }
    }
    None
}

/// The code object, if this word before instructions belongs to one with the address.
fn code_object(heap: &Heap<'_, impl Memory>, word: u64, header: u64, start: u64, address: u64) -> Option<u64> {
    let layout = &heap.layout.code;
    if word & 3 != 1 {
        return None;
    }
    let object = if layout.is_inline {
        heap.of_kind(header | 1, heap.layout.kinds.code)?
    } else {
        let object = heap.of_kind(word, heap.layout.kinds.code)?;
        (heap.field(object, layout.start)? == start).then_some(object)?
    };
    let bytes = heap.memory.integer(object.wrapping_add(layout.bytes))?;
    (address - start < u64::from(bytes)).then_some(object)
}

fn is_baseline(heap: &Heap<'_, impl Memory>, code: &Code) -> Option<bool> {
    let layout = &heap.layout.code;
    let flags = heap.memory.integer(code.object.wrapping_add(layout.flags))?;
    Some(flags & layout.kind_mask == layout.baseline)
}

/// The place of code that was generated from bytecode without optimization.
fn baseline_spot(
    heap: &Heap<'_, impl Memory>,
    code: &Code,
    shared: u64,
    function: &SharedFunction,
    address: u64,
) -> Option<Spot> {
    let layout = heap.layout;
    let bytecode = bytecode_of(heap, heap.field(code.object, layout.code.data)?)?;
    // Closures of the same source share the bytecode.
    if bytecode_of(heap, heap.field(shared, SHARED_DATA)?)? != bytecode {
        return None;
    }
    let table = heap.array_bytes(heap.field(code.object, layout.code.positions)?, TABLE_BYTES_MAX)?;
    let instructions = heap.bytecode(bytecode, TABLE_BYTES_MAX)?;
    let offset = offset_in(&instructions, &layout.bytecode_sizes, &table, address - code.start)?;
    let positions = heap.array_bytes(heap.field(bytecode, layout.bytecode_positions)?, TABLE_BYTES_MAX)?;
    position_at(&entries(&positions), offset)?.unit.and_then(|unit| function.spot(unit))
}

/// Tables of a code object.
struct Parts {
    positions: Vec<Entry>,
    literals: Option<Array>,
    inlinings: Vec<(Position, i32)>,
}

impl Parts {
    /// `None` for code without them, or of another function.
    fn read(heap: &Heap<'_, impl Memory>, code: &Code, shared: u64) -> Option<Self> {
        let layout = &heap.layout.code;
        let data = heap.array(heap.field(code.object, layout.data)?)?;
        let own = heap.element(data, layout.shared)?;
        if shared_of(heap, own)? != shared {
            return None;
        }
        let positions = entries(&heap.array_bytes(heap.field(code.object, layout.positions)?, TABLE_BYTES_MAX)?);
        let literals = heap.element(data, layout.literals).and_then(|word| heap.array(word));
        let inlinings =
            heap.element(data, layout.inlinings).and_then(|word| heap.array_bytes(word, INLININGS_BYTES_MAX));
        let inlining = |bytes: &[u8; INLINING_BYTES]| {
            let [position, rest] = [&bytes[..8], &bytes[8..12]];
            let position = i64::from_le_bytes(*position.first_chunk()?);
            Some((Position::of_bits(position), i32::from_le_bytes(*rest.first_chunk()?)))
        };
        let inlinings = inlinings.unwrap_or_default();
        let inlinings = inlinings.as_chunks::<INLINING_BYTES>().0.iter().filter_map(inlining).collect();
        Some(Self { positions, literals, inlinings })
    }

    fn position(&self, offset: u32) -> Option<Position> {
        position_at(&self.positions, offset)
    }
}

fn position_at(entries: &[Entry], offset: u32) -> Option<Position> {
    let behind = entries.partition_point(|entry| entry.offset <= offset);
    entries.get(behind.checked_sub(1)?).map(|entry| entry.position)
}

/// The shared part that a literal refers to, directly or by its wrapper.
fn shared_of(heap: &Heap<'_, impl Memory>, word: u64) -> Option<u64> {
    let (object, kind) = heap.object(word)?;
    if kind == heap.layout.kinds.shared {
        Some(object)
    } else if Some(kind) == heap.layout.kinds.shared_wrapper {
        heap.of_kind(heap.field(object, heap.layout.wrapper_shared)?, heap.layout.kinds.shared)
    } else {
        None
    }
}

struct Builder<'a> {
    /// With their shared parts; the first is the one that was compiled.
    functions: Vec<(u64, SharedFunction)>,
    scopes: Vec<Scope>,
    parts: Option<&'a Parts>,
}

impl Builder<'_> {
    fn outermost(&mut self, spot: Option<Spot>) -> u32 {
        self.add(0, spot, None)
    }

    fn add(&mut self, function: u32, spot: Option<Spot>, caller: Option<u32>) -> u32 {
        let (line, column) = (spot.map(|spot| spot.line), spot.map(|spot| spot.column));
        self.scopes.push(Scope { function, line, column, caller });
        u32::try_from(self.scopes.len() - 1).unwrap_or(u32::MAX)
    }

    /// A place, after those that it is inlined into. `None` if one of them cannot be read.
    fn scope(
        &mut self,
        heap: &Heap<'_, impl Memory>,
        scripts: &mut Scripts,
        position: Position,
        depth: u32,
    ) -> Option<u32> {
        let parts = self.parts?;
        let Some(inlined) = position.inlined else {
            let spot = position.unit.and_then(|unit| self.functions[0].1.spot(unit));
            return Some(self.outermost(spot));
        };
        let &(call, literal) = parts.inlinings.get(usize::from(inlined))?;
        // Calls that are inlined into others come behind them.
        if depth == 0 || call.inlined.is_some_and(|outer| outer >= inlined) {
            return None;
        }
        let caller = self.scope(heap, scripts, call, depth - 1)?;
        let inner = if literal == OWN_FUNCTION {
            self.functions[0].0
        } else {
            shared_of(heap, heap.element(parts.literals?, u64::try_from(literal).ok()?)?)?
        };
        let (index, function) = self.function(heap, scripts, inner)?;
        let spot = position.unit.and_then(|unit| function.spot(unit));
        Some(self.add(index, spot, Some(caller)))
    }

    fn function(
        &mut self,
        heap: &Heap<'_, impl Memory>,
        scripts: &mut Scripts,
        shared: u64,
    ) -> Option<(u32, SharedFunction)> {
        let index = match self.functions.iter().position(|(known, _)| *known == shared) {
            Some(index) => index,
            None => {
                let function = scripts.function(heap, shared)?;
                self.functions.push((shared, function));
                self.functions.len() - 1
            }
        };
        Some((u32::try_from(index).ok()?, self.functions[index].1.clone()))
    }
}
