//! What code reads: words of its module, and of thread-local storage.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::super::thread_local::{Content, THREAD_LOCAL_INSTRUCTIONS_MAX, ThreadLocal};
use super::{target, words};

/// A general register; 31 is the stack pointer or zero.
type Register = u32;
type Registers = FxHashMap<Register, Content>;

const ARGUMENT: Register = 0;
const RESULT: Register = 0;
/// Registers that a function may change: x0 to x18, and x30.
const VOLATILE: [u32; 2] = [18, 30];

/// An instruction, as far as it matters here ("Arm Architecture Reference Manual for A-profile architecture", C4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// `adr`, `adrp`.
    Address(Register, u64),
    /// `mrs` of the thread pointer.
    ThreadPointer(Register),
    /// `movz`, `movn`.
    Constant(Register, u64),
    /// `movk`: the mask is of the bits that it keeps.
    Insert(Register, u64, u64),
    /// `mov` of a register.
    Copy(Register, Register),
    /// `add` and `sub` of a constant.
    Add(Register, Register, u64),
    /// `add` of a register.
    Sum(Register, [Register; 2]),
    /// `ldr` of a word, at a register's address plus a constant.
    Load(Register, Register, u64),
    /// `ldr` of a word, at the sum of two registers.
    LoadSum(Register, [Register; 2]),
    /// `bl`.
    Call(u64),
    /// `blr`.
    CallRegister(Register),
    /// Other branches.
    Branch,
    /// May change these registers.
    Other([Register; 3]),
}

/// The bits of a field.
fn bits(word: u32, from: u32, count: u32) -> u32 {
    word >> from & ((1 << count) - 1)
}

fn operation(at: u64, word: u32) -> Operation {
    let (first, second, third) = (bits(word, 0, 5), bits(word, 5, 5), bits(word, 16, 5));
    let address_bits = || i64::from(bits(word, 5, 19).cast_signed() << 13 >> 11 | bits(word, 29, 2).cast_signed());
    let wide = || u64::from(bits(word, 5, 16)) << (16 * bits(word, 21, 2));
    let sum = |register| (register, [second, third]);
    match word {
        _ if word & 0x9f00_0000 == 0x1000_0000 => Operation::Address(first, at.wrapping_add_signed(address_bits())),
        _ if word & 0x9f00_0000 == 0x9000_0000 => {
            Operation::Address(first, (at & !0xfff).wrapping_add_signed(address_bits() << 12))
        }
        _ if word & 0xffff_ffe0 == 0xd53b_d040 => Operation::ThreadPointer(first),
        _ if word & 0xff80_0000 == 0xd280_0000 => Operation::Constant(first, wide()),
        _ if word & 0xff80_0000 == 0x9280_0000 => Operation::Constant(first, !wide()),
        _ if word & 0xff80_0000 == 0xf280_0000 => {
            Operation::Insert(first, !(0xffff_u64 << (16 * bits(word, 21, 2))), wide())
        }
        _ if word & 0xffe0_ffe0 == 0xaa00_03e0 => Operation::Copy(first, third),
        _ if word & 0xbf80_0000 == 0x9100_0000 => {
            let value = u64::from(bits(word, 10, 12)) << (12 * bits(word, 22, 1));
            Operation::Add(first, second, if word >> 30 == 0b11 { value.wrapping_neg() } else { value })
        }
        _ if word & 0xffe0_fc00 == 0x8b00_0000 => {
            let (register, registers) = sum(first);
            Operation::Sum(register, registers)
        }
        _ if word & 0xffc0_0000 == 0xf940_0000 => Operation::Load(first, second, u64::from(bits(word, 10, 12)) * 8),
        _ if word & 0xffe0_0c00 == 0xf840_0000 => {
            let offset = i64::from(bits(word, 12, 9).cast_signed() << 23 >> 23);
            Operation::Load(first, second, offset.cast_unsigned())
        }
        _ if word & 0xffe0_fc00 == 0xf860_6800 => {
            let (register, registers) = sum(first);
            Operation::LoadSum(register, registers)
        }
        _ if word & 0xfc00_0000 == 0x9400_0000 => Operation::Call(target(at, word, 0, 26)),
        _ if word & 0xffff_fc1f == 0xd63f_0000 => Operation::CallRegister(second),
        // Hints are of the same group: `paciasp`, `bti`, `nop`.
        _ if word & 0xffff_f01f == 0xd503_201f => Operation::Other([31; 3]),
        _ if word & 0x1c00_0000 == 0x1400_0000 => Operation::Branch,
        // Pairs have a second register, and loads and stores may change the address's.
        _ => Operation::Other([first, second, bits(word, 10, 5)]),
    }
}

/// What registers contain after an instruction, other than branches.
fn execute(registers: &mut Registers, operation: Operation) {
    let get = |register: Register| registers.get(&register).copied();
    let (register, content) = match operation {
        Operation::Address(register, address) => (register, Some(Content::Address(address))),
        Operation::ThreadPointer(register) => (register, Some(Content::Pointer(ThreadLocal::Fixed(0)))),
        Operation::Constant(register, value) => (register, Some(Content::Constant(value))),
        Operation::Insert(register, mask, value) => {
            let inserted = match get(register) {
                Some(Content::Constant(before)) => Some(Content::Constant(before & mask | value)),
                _ => None,
            };
            (register, inserted)
        }
        Operation::Copy(register, from) => (register, get(from)),
        Operation::Add(register, base, value) => {
            let sum = match get(base) {
                Some(Content::Address(address)) => Some(Content::Address(address.wrapping_add(value))),
                Some(Content::Pointer(pointer)) => Some(Content::Pointer(pointer.plus(value))),
                _ => None,
            };
            (register, sum)
        }
        Operation::Sum(register, parts) => (register, sum(parts.map(get)).map(Content::Pointer)),
        Operation::Load(register, base, offset) => {
            let word = match get(base) {
                Some(Content::Address(address)) => Some(Content::Word(address.wrapping_add(offset))),
                _ => None,
            };
            (register, word)
        }
        Operation::LoadSum(register, _) => (register, None),
        Operation::Other(changed) => {
            registers.retain(|register, _| !changed.contains(register));
            return;
        }
        Operation::Call(_) | Operation::CallRegister(_) | Operation::Branch => return,
    };
    match content {
        Some(content) => registers.insert(register, content),
        None => registers.remove(&register),
    };
}

/// The sum of the thread pointer and an offset.
fn sum(parts: [Option<Content>; 2]) -> Option<ThreadLocal> {
    let (pointer, offset) = match parts {
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

/// The first pointer in thread-local storage that this function, which begins at `start`, reads.
pub(in crate::interpreter) fn thread_local(code: &[u8], start: u64) -> Option<ThreadLocal> {
    /// At the thread pointer: two words of the C library's.
    const RESERVED: u64 = 16;
    let mut registers = Registers::default();
    for (at, word) in words(code, start).take(THREAD_LOCAL_INSTRUCTIONS_MAX) {
        let operation = operation(at, word);
        let get = |register: Register| registers.get(&register).copied();
        match operation {
            Operation::Load(_, base, offset) => {
                if let Some(Content::Pointer(pointer)) = get(base) {
                    let found = pointer.plus(offset);
                    if !matches!(found, ThreadLocal::Fixed(..RESERVED)) {
                        return Some(found);
                    }
                }
            }
            Operation::LoadSum(_, parts) => {
                if let Some(found) = sum(parts.map(get)) {
                    return Some(found);
                }
            }
            // A descriptor's function changes no other register.
            Operation::CallRegister(_) => {
                let Some(Content::Address(slot)) = get(ARGUMENT) else { return None };
                registers.insert(RESULT, Content::Described(slot));
            }
            Operation::Call(_) => {
                let Some(Content::Address(slot)) = get(ARGUMENT) else { return None };
                let [last, link] = VOLATILE;
                registers.retain(|register, _| *register > last && *register != link);
                registers.insert(RESULT, Content::Pointer(ThreadLocal::Module(slot, 0)));
            }
            Operation::Branch => return None,
            _ => {}
        }
        execute(&mut registers, operation);
    }
    None
}

/// The function that this one, which begins at `start`, calls first.
pub(in crate::interpreter) fn first_call(code: &[u8], start: u64) -> Option<u64> {
    let branches = |operation: &Operation| {
        matches!(operation, Operation::Call(_) | Operation::CallRegister(_) | Operation::Branch)
    };
    match words(code, start).map(|(at, word)| operation(at, word)).find(branches)? {
        Operation::Call(function) => Some(function),
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
    let mut registers = Registers::default();
    for (at, word) in words(&pthread_self()?, 0) {
        let operation = operation(at, word);
        if operation == Operation::Branch {
            break;
        }
        execute(&mut registers, operation);
    }
    let Some(Content::Pointer(ThreadLocal::Fixed(offset))) = registers.get(&RESULT) else { return None };
    Some(offset.wrapping_neg()).filter(|distance| (1..=BYTES_MAX).contains(distance))
}

/// Link address of the first pointer through which this function, which begins at `start`, reads an argument for another, at this
/// offset.
pub(in crate::interpreter) fn read_through(code: &[u8], start: u64, offset: u64) -> Option<u64> {
    let mut registers = Registers::default();
    for (at, word) in words(code, start) {
        let operation = operation(at, word);
        if let Operation::Load(ARGUMENT, base, at) = operation
            && at == offset
            && let Some(Content::Word(pointer)) = registers.get(&base)
        {
            return Some(*pointer);
        }
        execute(&mut registers, operation);
    }
    None
}

/// Address of the first member of a structure that this code, which begins at `start`, reads: a word. The code refers to no other
/// structure, and to this one by its address or by an entry of the global offset table.
pub(in crate::interpreter) fn member_of(code: &[u8], start: u64, structure: &Range<u64>) -> Option<u64> {
    const RETURN: u32 = 0xd65f_03c0;
    let mut registers = Registers::default();
    for (at, word) in words(code, start).take_while(|&(_, word)| word != RETURN) {
        let operation = operation(at, word);
        if let Operation::Load(_, base, offset) = operation {
            let address = match registers.get(&base) {
                Some(Content::Address(address)) => Some(address.wrapping_add(offset)),
                // Of the global offset table.
                Some(Content::Word(_)) => structure.start.checked_add(offset),
                _ => None,
            };
            let member = address.filter(|it| structure.contains(it) && *it > structure.start);
            if let Some(member) = member.filter(|it| it.is_multiple_of(8)) {
                return Some(member);
            }
        }
        execute(&mut registers, operation);
    }
    None
}

#[cfg(test)]
mod tests;
