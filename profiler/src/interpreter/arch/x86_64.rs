//! Branches and operands of x86-64 code.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, MemorySize, Mnemonic, OpKind, Register};
use rustc_hash::FxHashMap;

use super::thread_local::{Content, THREAD_LOCAL_INSTRUCTIONS_MAX, ThreadLocal};

/// Addresses outside of this code, which begins at `start`, that it jumps to directly.
pub(in crate::interpreter) fn branches_out(code: &[u8], start: u64) -> Vec<u64> {
    let end = start.saturating_add(code.len() as u64);
    let decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut targets: Vec<u64> = decoder
        .into_iter()
        .filter(|instruction| {
            matches!(instruction.flow_control(), FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch)
                && matches!(instruction.op0_kind(), OpKind::NearBranch64)
        })
        .map(|instruction| instruction.near_branch_target())
        .filter(|target| !(start..end).contains(target))
        .collect();
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// Addresses of direct calls of a function, and of jumps to it, in code that begins at `start`. An instruction's bytes that look like
/// such a call have its distance by chance once in 4 GiB.
pub(in crate::interpreter) fn direct_calls(code: &[u8], start: u64, function: u64) -> impl Iterator<Item = u64> {
    const CALL: u8 = 0xe8;
    const JUMP: u8 = 0xe9;
    code.array_windows().enumerate().filter_map(move |(index, [opcode, distance @ ..]): (usize, &[u8; 5])| {
        let at = start.wrapping_add(index as u64);
        let target = at.wrapping_add(5).wrapping_add_signed(i32::from_le_bytes(*distance).into());
        (matches!(*opcode, CALL | JUMP) && target == function).then_some(at)
    })
}

/// Number of indirect jumps.
pub(in crate::interpreter) fn indirect_jumps(code: &[u8]) -> usize {
    let decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    decoder.into_iter().filter(|instruction| instruction.flow_control() == FlowControl::IndirectBranch).count()
}

/// Whether a function passes 0 as its first argument to the one that it ends in.
pub(in crate::interpreter) fn passes_zero(code: &[u8]) -> bool {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE).into_iter();
    decoder.any(|instruction| {
        let registers = [instruction.op0_register(), instruction.op1_register()];
        instruction.mnemonic() == Mnemonic::Xor && registers == [Register::EDI; 2]
    })
}

/// The first pointer in thread-local storage that this function, which begins at `start`, reads. Other than protection of the stack.
pub(in crate::interpreter) fn thread_local(code: &[u8], start: u64) -> Option<ThreadLocal> {
    let mut registers: FxHashMap<Register, Content> = FxHashMap::default();
    let decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    for instruction in decoder.into_iter().take(THREAD_LOCAL_INSTRUCTIONS_MAX) {
        let base = registers.get(&instruction.memory_base()).copied();
        if instruction.flow_control() == FlowControl::IndirectCall
            && let Some(Content::Address(descriptor)) = base
        {
            registers.insert(Register::RAX, Content::Described(descriptor));
        } else if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
            let Some(&Content::Address(slot)) = registers.get(&Register::RDI) else { return None };
            registers.insert(Register::RAX, Content::Pointer(ThreadLocal::Module(slot, 0)));
        } else if instruction.flow_control() != FlowControl::Next {
            return None;
        } else if let Some(found) = access(&instruction, base) {
            return Some(found);
        } else if instruction.op0_kind() == OpKind::Register {
            let target = instruction.op0_register().full_register();
            let content = content(&instruction, base, registers.get(&target).copied());
            match content {
                Some(content) => registers.insert(target, content),
                None => registers.remove(&target),
            };
        }
    }
    None
}

/// The read of a pointer in thread-local storage.
fn access(instruction: &Instruction, base: Option<Content>) -> Option<ThreadLocal> {
    /// `header.stack_guard` in the thread control block.
    const STACK_GUARD: u64 = 0x28;
    if instruction.mnemonic() != Mnemonic::Mov || instruction.op1_kind() != OpKind::Memory {
        return None;
    }
    let more = instruction.memory_displacement64();
    let is_thread = instruction.memory_segment() == Register::FS;
    match (base, instruction.memory_base()) {
        (None, Register::None) if is_thread && ![0, STACK_GUARD].contains(&more) => Some(ThreadLocal::Fixed(more)),
        (Some(Content::Constant(offset)), _) if is_thread => Some(ThreadLocal::Fixed(offset.wrapping_add(more))),
        (Some(Content::Word(slot)), _) if is_thread => Some(ThreadLocal::Loaded(slot, more)),
        (Some(Content::Described(slot)), _) if is_thread => Some(ThreadLocal::Descriptor(slot, more)),
        (Some(Content::Pointer(pointer)), _) if !is_thread => Some(pointer.plus(more)),
        _ => None,
    }
}

/// What an instruction writes to its register.
fn content(instruction: &Instruction, base: Option<Content>, before: Option<Content>) -> Option<Content> {
    let is_memory = instruction.op1_kind() == OpKind::Memory;
    let displacement = instruction.memory_displacement64();
    let is_thread = is_memory && instruction.memory_segment() == Register::FS;
    // With no base and no offset, it is the thread pointer itself.
    let is_thread_pointer = is_thread && instruction.memory_base() == Register::None && displacement == 0;
    match instruction.mnemonic() {
        Mnemonic::Lea if instruction.is_ip_rel_memory_operand() => Some(Content::Address(displacement)),
        Mnemonic::Lea => match base? {
            Content::Pointer(pointer) => Some(Content::Pointer(pointer.plus(displacement))),
            _ => None,
        },
        Mnemonic::Mov if is_thread_pointer => Some(Content::Pointer(ThreadLocal::Fixed(0))),
        Mnemonic::Mov if is_memory && instruction.is_ip_rel_memory_operand() => Some(Content::Word(displacement)),
        Mnemonic::Mov if !is_memory && instruction.op1_kind() != OpKind::Register => {
            Some(Content::Constant(instruction.immediate(1)))
        }
        Mnemonic::Add if is_thread_pointer => match before? {
            Content::Word(slot) => Some(Content::Pointer(ThreadLocal::Loaded(slot, 0))),
            Content::Described(slot) => Some(Content::Pointer(ThreadLocal::Descriptor(slot, 0))),
            Content::Constant(offset) => Some(Content::Pointer(ThreadLocal::Fixed(offset))),
            _ => None,
        },
        Mnemonic::Add if is_memory && instruction.is_ip_rel_memory_operand() => match before? {
            Content::Pointer(ThreadLocal::Fixed(more)) => {
                Some(Content::Pointer(ThreadLocal::Loaded(displacement, more)))
            }
            _ => None,
        },
        _ => None,
    }
}

/// The function that this one, which begins at `start`, calls first.
pub(in crate::interpreter) fn first_call(code: &[u8], start: u64) -> Option<u64> {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE).into_iter();
    let call = decoder.find(|instruction| instruction.flow_control() != FlowControl::Next)?;
    (call.flow_control() == FlowControl::Call).then(|| call.near_branch_target())
}

/// Whether the second word of a descriptor is an offset from the thread pointer, which is behind the storage; else it is the address
/// of a module and an offset.
pub(in crate::interpreter) fn is_offset(described: u64) -> bool {
    described.cast_signed() < 0
}

/// Distance of the thread pointer from the control block of its thread: it refers to it, whatever the code of `pthread_self`.
#[expect(clippy::unnecessary_wraps, reason = "unknown on other processors for some code")]
pub(in crate::interpreter) fn control_block(_pthread_self: impl FnOnce() -> Option<Vec<u8>>) -> Option<u64> {
    Some(0)
}

/// Link address of the first pointer through which this function, which begins at `start`, reads an argument for another, at this
/// offset.
pub(in crate::interpreter) fn read_through(code: &[u8], start: u64, offset: u64) -> Option<u64> {
    let mut pointers: FxHashMap<Register, u64> = FxHashMap::default();
    for instruction in Decoder::with_ip(64, code, start, DecoderOptions::NONE) {
        if instruction.op0_kind() != OpKind::Register {
            continue;
        }
        let is_read = instruction.mnemonic() == Mnemonic::Mov && instruction.op1_kind() == OpKind::Memory;
        let displacement = instruction.memory_displacement64();
        let target = instruction.op0_register().full_register();
        let pointer = pointers.get(&instruction.memory_base()).copied();
        if is_read && target == Register::RDI && displacement == offset && pointer.is_some() {
            return pointer;
        }
        if is_read && instruction.is_ip_rel_memory_operand() {
            pointers.insert(target, displacement);
        } else {
            pointers.remove(&target);
        }
    }
    None
}

/// V8's generated code, with a copy of its builtins, is in an area of this size (`kMaximalCodeRangeSize` in `src/common/globals.h`).
pub(in crate::interpreter) const CODE_AREA_BYTES: u64 = 512 << 20;

/// V8's instructions of a function begin at multiples of it (`kCodeAlignment` in `src/common/globals.h`).
pub(in crate::interpreter) const CODE_ALIGNMENT: u64 = 64;

/// Address of the first member of a structure that this code, which begins at `start`, reads: a word. The code refers to no other
/// structure, and to this one by its address or by an entry of the global offset table.
pub(in crate::interpreter) fn member_of(code: &[u8], start: u64, structure: &Range<u64>) -> Option<u64> {
    let decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let body = decoder.into_iter().take_while(|it| !matches!(it.flow_control(), FlowControl::Return));
    body.filter(reads_word).find_map(|instruction| {
        let displacement = instruction.memory_displacement64();
        let address = match instruction.memory_base() {
            Register::RIP => displacement,
            Register::None => return None,
            _ => structure.start.checked_add(displacement)?,
        };
        let is_inside = structure.contains(&address) && address > structure.start && address.is_multiple_of(8);
        is_inside.then_some(address)
    })
}

fn reads_word(instruction: &Instruction) -> bool {
    let is_memory = (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
    is_memory
        && instruction.mnemonic() != Mnemonic::Lea
        && matches!(instruction.memory_size(), MemorySize::UInt64 | MemorySize::Int64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn direct_jumps_leave_the_code() {
        let code = [
            0x90, // nop
            0x74, 0xfd, // je 0x1000
            0x0f, 0x84, 0xf7, 0x0f, 0, 0, // je 0x2000
            0xe8, 0xf2, 0x1f, 0, 0, // call 0x3000
            0xe9, 0xed, 0xef, 0xff, 0xff, // jmp 0
            0xff, 0xe0, // jmp *%rax
        ];
        assert_eq!(branches_out(&code, 0x1000), [0, 0x2000]);
    }

    #[test]
    fn calls_and_jumps_to_a_function_are_found() {
        let code = [
            0xe8, 0xfb, 0x0f, 0, 0,    // call 0x2000
            0x90, // nop
            0xe9, 0xf5, 0x0f, 0, 0, // jmp 0x2000
            0xe8, 0, 0, 0, 0, // call 0x1010
        ];
        assert_eq!(direct_calls(&code, 0x1000, 0x2000).collect::<Vec<_>>(), [0x1000, 0x1006]);
    }

    #[test]
    fn indirect_jumps_are_counted() {
        // jmp *(%r14), jmp *%rax, call *%rax, jmp
        assert_eq!(indirect_jumps(&[0x41, 0xff, 0x26, 0xff, 0xe0, 0xff, 0xd0, 0xeb, 0]), 2);
        // xor %esi,%esi; xor %edi,%edi; jmp
        assert!(passes_zero(&[0x31, 0xf6, 0x31, 0xff, 0xe9, 0, 0, 0, 0]) && !passes_zero(&[0x31, 0xf6]));
    }

    #[test]
    fn every_model_of_thread_local_storage_is_read() {
        let check = |code: &[u8], expected| assert_eq!(thread_local(code, 0x1000), expected, "{code:x?}");
        // Global dynamic: data16 lea 0x100(%rip),%rdi; data16 data16 rex.W call; mov (%rax),%rax.
        let mut code =
            vec![0x48, 0x83, 0xec, 8, 0x66, 0x48, 0x8d, 0x3d, 0, 1, 0, 0, 0x66, 0x66, 0x48, 0xe8, 0, 0, 0, 0];
        let call = code.len();
        code.extend([0x48, 0x8b, 0]);
        check(&code, Some(ThreadLocal::Module(0x110c, 0)));
        // Local dynamic: the offset is in the instruction.
        code.truncate(call);
        code.extend([0x48, 0x8b, 0x80, 16, 0, 0, 0]);
        check(&code, Some(ThreadLocal::Module(0x110c, 16)));
        // Local dynamic: mov 0x28(%rsp) is none; lea 8(%rax),%rdx; mov 4(%rdx),%rax.
        code.truncate(call);
        code.extend([0x48, 0x8d, 0x50, 8, 0x48, 0x8b, 0x42, 4]);
        check(&code, Some(ThreadLocal::Module(0x110c, 12)));
        // Local executable: mov %fs:-8,%rax, after the guard of the stack.
        let guard = [0x64, 0x48, 0x8b, 4, 0x25, 0x28, 0, 0, 0];
        let local = [0x64, 0x48, 0x8b, 4, 0x25, 0xf8, 0xff, 0xff, 0xff];
        check(&[guard, local].concat(), Some(ThreadLocal::Fixed(8u64.wrapping_neg())));
        // mov %fs:0,%rax; lea -16(%rax),%rax; mov (%rax),%rax.
        let pointer = [0x64, 0x48, 0x8b, 4, 0x25, 0, 0, 0, 0];
        let relaxed = [&pointer[..], &[0x48, 0x8d, 0x80, 0xf0, 0xff, 0xff, 0xff, 0x48, 0x8b, 0]].concat();
        check(&relaxed, Some(ThreadLocal::Fixed(16u64.wrapping_neg())));
        // mov $-8,%rax; mov %fs:(%rax),%rax.
        check(
            &[0x48, 0xc7, 0xc0, 0xf8, 0xff, 0xff, 0xff, 0x64, 0x48, 0x8b, 0],
            Some(ThreadLocal::Fixed(8u64.wrapping_neg())),
        );
        // Initial executable: mov 0x100(%rip),%rax; mov %fs:(%rax),%rax.
        check(&[0x48, 0x8b, 5, 0, 1, 0, 0, 0x64, 0x48, 0x8b, 0], Some(ThreadLocal::Loaded(0x1107, 0)));
        // mov %fs:0,%rax; add 0x100(%rip),%rax; mov 8(%rax),%rax.
        let relaxed = [&pointer[..], &[0x48, 3, 5, 0, 1, 0, 0, 0x48, 0x8b, 0x40, 8]].concat();
        check(&relaxed, Some(ThreadLocal::Loaded(0x1110, 8)));
        // Descriptors: lea 0x100(%rip),%rax; call *(%rax); mov %fs:(%rax),%rax.
        let described = [0x48, 0x8d, 5, 0, 1, 0, 0, 0xff, 0x10];
        check(&[&described[..], &[0x64, 0x48, 0x8b, 0]].concat(), Some(ThreadLocal::Descriptor(0x1107, 0)));
        // add %fs:0,%rax; mov (%rax),%rax.
        let added = [0x64, 0x48, 3, 4, 0x25, 0, 0, 0, 0, 0x48, 0x8b, 0];
        check(&[&described[..], &added].concat(), Some(ThreadLocal::Descriptor(0x1107, 0)));
        // Calls of others, returns, and nothing.
        for code in [&[0xe8, 0, 0, 0, 0, 0x48, 0x8b, 0][..], &[0xc3], &[]] {
            check(code, None);
        }
    }

    #[test]
    fn pointers_that_arguments_are_read_through() {
        // mov 0x100(%rip),%rbp; cmpq $0,(%rbp); mov 0x200(%rip),%rax; mov 0x10(%rax),%rdi.
        let code =
            [0x48, 0x8b, 0x2d, 0, 1, 0, 0, 0x48, 0x83, 0x7d, 0, 0, 0x48, 0x8b, 5, 0, 2, 0, 0, 0x48, 0x8b, 0x78, 0x10];
        assert_eq!(read_through(&code, 0x1000, 16), Some(0x1213));
        assert_eq!(read_through(&code, 0x1000, 24), None);
    }

    #[test]
    fn members_are_read_by_address_and_by_displacement() {
        let structure = 0x3000..0x3400;
        let debian = [
            0x48, 0x8d, 0x05, 0xf9, 0x1f, 0, 0, // lea 0x3000(%rip),%rax
            0x48, 0x83, 0xb8, 0xe8, 0x01, 0, 0, 0, // cmpq $0,0x1e8(%rax)
            0x0f, 0x95, 0xc0, // setne %al
            0xc3, // ret
            0x48, 0x8b, 0x40, 0x08, // mov 8(%rax),%rax
        ];
        assert_eq!(member_of(&debian, 0x1000, &structure), Some(0x31e8));
        let direct = [0x48, 0x83, 0x3d, 0xe0, 0x21, 0, 0, 0, 0x0f, 0x95, 0xc0, 0xc3]; // cmpq $0,0x31e8(%rip)
        assert_eq!(member_of(&direct, 0x1000, &structure), Some(0x31e8));
        let table = [
            0x48, 0x8b, 0x05, 0xf9, 0x3f, 0, 0, // mov 0x5000(%rip),%rax
            0x48, 0x8b, 0x80, 0x00, 0x02, 0, 0, // mov 0x200(%rax),%rax
            0xc3,
        ];
        assert_eq!(member_of(&table, 0x1000, &structure), Some(0x3200));
        // Outside of the structure, its beginning, unaligned, behind the end of the function, or not decoded.
        let other = [0x48, 0x8b, 0x80, 0x00, 0x04, 0, 0, 0x48, 0x8b, 0x00, 0x48, 0x8b, 0x40, 0x01, 0xc3];
        for code in [&other[..], &debian[15..], &debian[18..19], &[]] {
            assert_eq!(member_of(code, 0x1000, &structure), None);
        }
    }

    proptest! {
        #[test]
        fn any_code_has_no_member_outside_of_the_structure(code: [u8; 64]) {
            let structure = 0x3000..0x3400;
            if let Some(address) = member_of(&code, 0x1000, &structure) {
                prop_assert!(structure.contains(&address));
            }
        }
    }
}
