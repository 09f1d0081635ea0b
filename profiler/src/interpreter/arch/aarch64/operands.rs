//! Finds the words that code reads, of its module and of thread-local storage.

use std::ops::Range;

use profiler_common::arch::aarch64::{RESULT, X0, X18, X30};
use profiler_common::hook::Register;
use rustc_hash::FxHashMap;

use super::super::thread_local::{Content, THREAD_LOCAL_INSTRUCTIONS_MAX, ThreadLocal};
use crate::arch::aarch64::{Control, Word};

/// The first argument of a call.
const ARGUMENT: Register = X0;

/// What registers contain.
#[derive(Default)]
struct Values(FxHashMap<Register, Content>);

impl Values {
    fn get(&self, register: Register) -> Option<Content> {
        self.0.get(&register).copied()
    }

    fn set(&mut self, register: Register, content: Content) {
        self.0.insert(register, content);
    }

    /// Applies an instruction at this address. Of calls, only the link register changes.
    fn step(&mut self, at: u64, word: Word) {
        let written = self.written(at, word);
        let loaded = word.as_load().and_then(|load| match self.get(load.base)? {
            Content::Address(address) => Some((load, address)),
            _ => None,
        });
        let writes = word.writes();
        self.0.retain(|register, _| !writes.contains(*register));
        self.0.extend(written);
        if let Some((load, address)) = loaded {
            self.0
                .extend(load.words().map(|(to, distance)| (to, Content::Word(address.wrapping_add_signed(distance)))));
        }
    }

    /// The register that the instruction writes, and what it contains afterwards. `None` also for loads.
    fn written(&self, at: u64, word: Word) -> Option<(Register, Content)> {
        if let Some(address) = word.address(at) {
            return Some((word.register(0), Content::Address(address)));
        }
        if let Some(to) = word.as_thread_pointer() {
            return Some((to, Content::Pointer(ThreadLocal::Fixed(0))));
        }
        if let Some((to, value)) = word.as_constant() {
            return Some((to, Content::Constant(value)));
        }
        if let Some((register, kept, value)) = word.as_insertion() {
            return match self.get(register)? {
                Content::Constant(before) => Some((register, Content::Constant(before & kept | value))),
                _ => None,
            };
        }
        if let Some(moved) = word.as_move() {
            return Some((moved.to, self.get(moved.from)?));
        }
        if let Some((to, from, value)) = word.as_addition() {
            return match self.get(from)? {
                Content::Address(address) => Some((to, Content::Address(address.wrapping_add(value)))),
                Content::Pointer(pointer) => Some((to, Content::Pointer(pointer.plus(value)))),
                _ => None,
            };
        }
        let (to, parts) = word.as_sum()?;
        Some((to, Content::Pointer(self.sum(parts)?)))
    }

    /// The sum of the thread pointer and an offset.
    fn sum(&self, parts: [Register; 2]) -> Option<ThreadLocal> {
        let (pointer, offset) = match parts.map(|part| self.get(part)) {
            [Some(Content::Pointer(ThreadLocal::Fixed(more))), Some(offset)]
            | [Some(offset), Some(Content::Pointer(ThreadLocal::Fixed(more)))] => (more, offset),
            _ => return None,
        };
        match offset {
            Content::Word(slot) => Some(ThreadLocal::Loaded(slot, pointer)),
            Content::Described(slot) => Some(ThreadLocal::Descriptor(slot, pointer)),
            Content::Constant(offset) => Some(ThreadLocal::Fixed(pointer.wrapping_add(offset))),
            Content::Address(_) | Content::Pointer(_) => None,
        }
    }

    /// Applies a call; `None` for one that does not compute an address in thread-local storage.
    fn call(&mut self, control: Control) -> Option<()> {
        let Some(Content::Address(slot)) = self.get(ARGUMENT) else { return None };
        match control {
            // A descriptor's function changes no other register.
            Control::CallThrough(_) => self.set(RESULT, Content::Described(slot)),
            Control::Call(_) => {
                self.0.retain(|register, _| register.number() > X18.number() && *register != X30);
                self.set(RESULT, Content::Pointer(ThreadLocal::Module(slot, 0)));
            }
            _ => return None,
        }
        Some(())
    }

    /// The pointer in thread-local storage that this instruction reads.
    fn thread_local_read(&self, word: Word) -> Option<ThreadLocal> {
        /// At the thread pointer: two words of the C library's.
        const RESERVED: u64 = 16;
        if let Some(parts) = word.as_load_at_sum() {
            return self.sum(parts);
        }
        let load = word.as_load()?;
        let Some(Content::Pointer(pointer)) = self.get(load.base) else { return None };
        let mut found = load.words().map(|(_, distance)| pointer.plus(distance.cast_unsigned()));
        found.find(|found| !matches!(found, ThreadLocal::Fixed(..RESERVED)))
    }
}

/// The first pointer in thread-local storage that this function, which begins at `start`, reads.
pub(in crate::interpreter) fn thread_local(code: &[u8], start: u64) -> Option<ThreadLocal> {
    let mut values = Values::default();
    for (at, word) in Word::all(code, start).take(THREAD_LOCAL_INSTRUCTIONS_MAX) {
        if let Some(found) = values.thread_local_read(word) {
            return Some(found);
        }
        match word.control(at) {
            Control::Next => values.step(at, word),
            control => values.call(control)?,
        }
    }
    None
}

/// The function that this one, which begins at `start`, calls first.
pub(in crate::interpreter) fn first_call(code: &[u8], start: u64) -> Option<u64> {
    let mut controls = Word::all(code, start).map(|(at, word)| word.control(at));
    match controls.find(|control| *control != Control::Next)? {
        Control::Call(function) => Some(function),
        _ => None,
    }
}

/// Whether the second word of a descriptor is an offset from the thread pointer, which is before the storage; else it is the address
/// of a module and an offset. Nothing is mapped below the lowest address that programs are linked at.
pub(in crate::interpreter) fn is_offset(described: u64) -> bool {
    const LOWEST_ADDRESS: u64 = 0x40_0000;
    described < LOWEST_ADDRESS
}

/// Distance of the thread pointer from the control block of its thread, which `pthread_self` returns: its size, which differs between
/// versions of the C library.
pub(in crate::interpreter) fn control_block(pthread_self: impl FnOnce() -> Option<Vec<u8>>) -> Option<u64> {
    /// glibc's have 1792 bytes (2.31) to 1856 (2.36), musl's 200.
    const BYTES_MAX: u64 = 1 << 14;
    let mut values = Values::default();
    for (at, word) in Word::all(&pthread_self()?, 0).take_while(|(at, word)| word.control(*at) == Control::Next) {
        values.step(at, word);
    }
    let Some(Content::Pointer(ThreadLocal::Fixed(offset))) = values.get(RESULT) else { return None };
    Some(offset.wrapping_neg()).filter(|distance| (1..=BYTES_MAX).contains(distance))
}

/// Link address of the first pointer through which this function, which begins at `start`, reads an argument for another, at this
/// offset.
pub(in crate::interpreter) fn read_through(code: &[u8], start: u64, offset: u64) -> Option<u64> {
    let mut values = Values::default();
    for (at, word) in Word::all(code, start) {
        if let Some(load) = word.as_load()
            && let Some(Content::Word(pointer)) = values.get(load.base)
            && load.words().any(|(to, distance)| to == ARGUMENT && distance.cast_unsigned() == offset)
        {
            return Some(pointer);
        }
        values.step(at, word);
    }
    None
}

/// Address of the first member of a structure that this code, which begins at `start`, reads: a word. The code refers to no other
/// structure, and to this one by its address or by an entry of the global offset table.
pub(in crate::interpreter) fn member_of(code: &[u8], start: u64, structure: &Range<u64>) -> Option<u64> {
    let mut values = Values::default();
    let is_member = |it: &u64| structure.contains(it) && *it > structure.start && it.is_multiple_of(8);
    for (at, word) in Word::all(code, start).take_while(|(at, word)| word.control(*at) != Control::Return) {
        if let Some(load) = word.as_load() {
            let base = match values.get(load.base) {
                Some(Content::Address(address)) => Some(address),
                // Of the global offset table.
                Some(Content::Word(_)) => Some(structure.start),
                _ => None,
            };
            let mut read = load.words().filter_map(|(_, distance)| base?.checked_add_signed(distance));
            if let Some(member) = read.find(is_member) {
                return Some(member);
            }
        }
        values.step(at, word);
    }
    None
}

#[cfg(test)]
mod tests;
