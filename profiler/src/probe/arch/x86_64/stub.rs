//! Stubs of the inline engine for x86-64.
//!
//! At a function's entry, `rax` (but for the number of vector arguments), `r10` and `r11` belong to the callee, as do the flags
//! and all memory below the stack pointer (System V psABI for x86-64, 3.2).

use gimli::write::{CallFrameInstruction, CommonInformationEntry};
use gimli::{Encoding, X86_64 as Dwarf};
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, dword_ptr, eax, ecx, edi, edx, qword_ptr, r8, r9, r10, r10d, r11, rax,
    rcx, rdi, rdx, rsi, rsp,
};
use iced_x86::{
    BlockEncoderOptions, Code, Decoder, DecoderOptions, FlowControl, IcedError, Instruction, MemoryOperand, Register,
};
use object::elf;
use profiler_common::hook::{CallShape, Site};
use profiler_common::limits::{LIVE_FILTER_SLOTS, PAGE_BYTES};
use profiler_common::live::{FILTER_GRANULE_BITS, FILTER_ONE, FILTER_RATIO, FILTER_SPREAD, FILTER_SPREAD_SHIFT};

use super::X86_64;
use crate::keeper::control;
use crate::probe::arch::stub::{
    Common, LN_2, Nothrow, RANDOM_INCREMENT, RANDOM_MIXES, Routine, SlotIndex, StubError, StubFunction, StubSet,
    StubSite, TABLE_BITS, slot,
};

const ARGUMENTS: [AsmRegister64; 6] = [rdi, rsi, rdx, rcx, r8, r9];
/// A `nop` of one byte. Linux 6.18 replaces one of five bytes by a call, which is a third cheaper, of a page that forked children
/// lack: they crash (`create_uprobe_trampoline` in arch/x86/kernel/uprobes.c maps it with `VM_DONTCOPY`).
const NOP: [u8; 1] = [0x90];
const RETURN_ADDRESS_BYTES: i32 = 8;

impl From<IcedError> for StubError {
    fn from(error: IcedError) -> Self {
        Self::Encode(error.to_string())
    }
}

impl StubSet for X86_64 {
    const MACHINE: u16 = elf::EM_X86_64;
    /// The instruction `int3`.
    const PADDING: &'static [u8] = &[0xcc];
    const REACH_BYTES: u64 = 2 << 30;

    fn common_information(encoding: Encoding) -> CommonInformationEntry {
        let mut common = CommonInformationEntry::new(encoding, 1, -8, Dwarf::RA);
        common.add_instruction(CallFrameInstruction::Cfa(Dwarf::RSP, RETURN_ADDRESS_BYTES));
        common.add_instruction(CallFrameInstruction::Offset(Dwarf::RA, -RETURN_ADDRESS_BYTES));
        common
    }

    fn draw(address: u64, table: u64) -> Result<Routine, StubError> {
        let mut asm = CodeAssembler::new(64)?;
        draw(&mut asm, table)?;
        assemble(asm, address, &mut [])
    }

    fn stub(address: u64, function: &StubFunction<'_>, common: &Common) -> Result<Routine, StubError> {
        let (mut asm, mut sites) = (CodeAssembler::new(64)?, Vec::new());
        asm.endbr64()?;
        match function.shape {
            CallShape::Free => free(common, &mut asm, function, &mut sites)?,
            CallShape::Alloc | CallShape::AllocOut | CallShape::Realloc => {
                alloc(common, &mut asm, function, &mut sites)?;
            }
            _ => return Err(StubError::Prefix("no stub exists for functions of its kind")),
        }
        assemble(asm, address, &mut sites)
    }
}

fn assemble(mut asm: CodeAssembler, address: u64, sites: &mut [(CodeLabel, Site)]) -> Result<Routine, StubError> {
    let assembled = asm.assemble_options(address, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
    let site = |&mut (label, site): &mut (CodeLabel, Site)| {
        Ok(StubSite { offset: assembled.label_ip(&label)?.wrapping_sub(address), site })
    };
    let sites = sites.iter_mut().map(site).collect::<Result<_, IcedError>>()?;
    let code = assembled.inner.code_buffer;
    Ok(Routine { frames: frame_sizes(&code), code, sites })
}

/// Offsets at which the distance of the frame's end from the stack pointer changes. After a jump or a return, the stack is as at
/// the entry.
fn frame_sizes(code: &[u8]) -> Vec<(u32, CallFrameInstruction)> {
    let (mut changes, mut size) = (Vec::new(), RETURN_ADDRESS_BYTES);
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let moved = match (instruction.code(), instruction.op0_register()) {
            (Code::Sub_rm64_imm8, Register::RSP) => i32::from(instruction.immediate8().cast_signed()),
            (Code::Add_rm64_imm8, Register::RSP) => -i32::from(instruction.immediate8().cast_signed()),
            _ => match instruction.flow_control() {
                FlowControl::Next => -instruction.stack_pointer_increment(),
                FlowControl::UnconditionalBranch | FlowControl::Return => RETURN_ADDRESS_BYTES - size,
                _ => 0,
            },
        };
        if moved != 0 {
            size += moved;
            let offset = u32::try_from(decoder.position()).unwrap_or(u32::MAX);
            changes.push((offset, CallFrameInstruction::CfaOffset(size)));
        }
    }
    // Behind the last instruction nothing follows.
    changes.retain(|&(at, _)| (at as usize) < code.len());
    changes
}

fn free(
    common: &Common,
    asm: &mut CodeAssembler,
    function: &StubFunction<'_>,
    sites: &mut Vec<(CodeLabel, Site)>,
) -> Result<(), StubError> {
    let pointer = ARGUMENTS[function.pointer.unwrap_or(0)];
    let (mut untracked, mut probe, mut bypass) = (asm.create_label(), asm.create_label(), asm.create_label());
    let bypassed =
        MemoryOperand::with_base_displ(Register::RIP, (common.control + control::BYPASSED as u64).cast_signed());
    // The word is tested only if the filter does not exclude the block, which a set word prevents.
    search_filter(common, asm, pointer, untracked, Some(bypassed))?;
    asm.add_instruction(Instruction::with2(Code::Cmp_rm64_imm8, bypassed, 0)?)?;
    asm.jne(bypass)?;
    asm.set_label(&mut probe)?;
    asm.db(&NOP)?;
    sites.push((probe, Site::StubEntry));
    asm.set_label(&mut untracked)?;
    continue_in(asm, function)?;
    asm.set_label(&mut bypass)?;
    asm.jmp(function.address)?;
    Ok(())
}

/// Jumps to `excluded` if the block is certainly not live, unless a word of memory counts more than one block. Changes rax, r10 and
/// r11.
fn search_filter(
    common: &Common,
    asm: &mut CodeAssembler,
    pointer: AsmRegister64,
    excluded: CodeLabel,
    unless: Option<MemoryOperand>,
) -> Result<(), StubError> {
    let (granule, shift) = (FILTER_GRANULE_BITS, LIVE_FILTER_SLOTS.ilog2());
    asm.mov(rax, pointer)?;
    asm.shr(rax, granule)?;
    asm.mov(r11, rax)?;
    asm.shr(r11, shift)?;
    asm.mov(r10d, u32::try_from(FILTER_SPREAD).unwrap_or(0))?;
    asm.imul_2(r11, r10)?;
    asm.shr(r11, FILTER_SPREAD_SHIFT)?;
    asm.xor(rax, r11)?;
    asm.and(eax, LIVE_FILTER_SLOTS.cast_signed() - 1)?;
    load_address(asm, common.filter)?;
    asm.mov(rax, qword_ptr(r11 + rax * 8))?;
    if let Some(unless) = unless {
        asm.add_instruction(Instruction::with2(Code::Or_r64_rm64, Register::RAX, unless)?)?;
    }
    asm.mov(r10, rax)?;
    asm.shr(r10, FILTER_ONE.ilog2())?;
    asm.jz(excluded)?;
    let mut probe = asm.create_label();
    asm.cmp(r10d, 1)?;
    asm.jne(probe)?;
    asm.mov(r10, FILTER_RATIO)?;
    asm.imul_2(r10, pointer)?;
    asm.shr(r10, 32)?;
    asm.shl(rax, 16)?;
    asm.shr(rax, 16)?;
    asm.cmp(rax, r10)?;
    asm.jne(excluded)?;
    asm.set_label(&mut probe)?;
    asm.nop()?;
    Ok(())
}

fn alloc(
    common: &Common,
    asm: &mut CodeAssembler,
    function: &StubFunction<'_>,
    sites: &mut Vec<(CodeLabel, Site)>,
) -> Result<(), StubError> {
    let (mut sampled, mut probe, mut returned) = (asm.create_label(), asm.create_label(), asm.create_label());
    let (mut enter, mut bypass) = (asm.create_label(), asm.create_label());
    let (mut resized, mut followed) = (asm.create_label(), asm.create_label());
    let old = function.pointer.filter(|_| function.shape == CallShape::Realloc).map(|number| ARGUMENTS[number]);
    let mut unsampled = if old.is_some() { asm.create_label() } else { enter };
    if redirect(asm, function, old, &mut enter)? {
        return continue_in(asm, function);
    }
    find_countdown(common, asm, function)?;
    size_of_call(asm, function, unsampled)?;
    asm.cmp(r10, qword_ptr(r11 + slot::INTERVAL))?;
    asm.jae(sampled)?;
    asm.sub(qword_ptr(r11 + slot::COUNTDOWN), r10)?;
    asm.js(sampled)?;
    if let Some(old) = old {
        asm.set_label(&mut unsampled)?;
        search_filter(common, asm, old, enter, None)?;
        asm.xor(r10d, r10d)?;
        asm.jmp(resized)?;
    }
    asm.set_label(&mut enter)?;
    continue_in(asm, function)?;

    asm.set_label(&mut sampled)?;
    asm.cmp(qword_ptr(r11 + slot::INTERVAL), 0)?;
    asm.je(bypass)?;
    asm.call(common.draw)?;
    if let Some(nothrow) = function.nothrow {
        call_nothrow(asm, nothrow, enter, sites)?;
        asm.set_label(&mut bypass)?;
        asm.jmp(function.address)?;
        return Ok(());
    }
    asm.set_label(&mut probe)?;
    asm.db(&NOP)?;
    sites.push((probe, Site::StubEntry));
    asm.inc(qword_ptr(r11 + slot::SAMPLES))?;
    asm.set_label(&mut followed)?;
    // Subtracting 8 keeps the stack aligned.
    asm.sub(rsp, 8)?;
    asm.call(enter)?;
    asm.add(rsp, 8)?;
    asm.set_label(&mut returned)?;
    asm.db(&NOP)?;
    sites.push((returned, Site::StubReturn));
    asm.ret()?;
    if old.is_some() {
        asm.set_label(&mut resized)?;
        asm.db(&NOP)?;
        sites.push((resized, Site::StubEntry));
        asm.jmp(followed)?;
    }
    asm.set_label(&mut bypass)?;
    asm.jmp(function.address)?;
    Ok(())
}

/// Calls the form of a function that returns null instead of throwing. If it returns null, or a new-handler is set, which may
/// throw or jump, the call continues in the function itself, at `enter`, as one that is not sampled.
fn call_nothrow(
    asm: &mut CodeAssembler,
    nothrow: Nothrow,
    enter: CodeLabel,
    sites: &mut Vec<(CodeLabel, Site)>,
) -> Result<(), StubError> {
    let (mut probe, mut returned, mut left) = (asm.create_label(), asm.create_label(), asm.create_label());
    // An odd number keeps the stack aligned.
    let saved = [rdi, rsi, r10, r11, rdx];
    for register in saved {
        asm.push(register)?;
    }
    // The function may be beyond the reach of a call.
    asm.mov(rax, nothrow.get_handler)?;
    asm.call(rax)?;
    for register in saved.into_iter().rev() {
        asm.pop(register)?;
    }
    asm.test(rax, rax)?;
    asm.jnz(left)?;
    asm.set_label(&mut probe)?;
    asm.db(&NOP)?;
    sites.push((probe, Site::StubEntry));
    asm.inc(qword_ptr(r11 + slot::SAMPLES))?;
    for register in [rdi, rsi, r11] {
        asm.push(register)?;
    }
    // Only the type of this argument is used, not its value.
    asm.lea(ARGUMENTS[nothrow.argument], qword_ptr(probe))?;
    asm.call(nothrow.function)?;
    for register in [r11, rsi, rdi] {
        asm.pop(register)?;
    }
    asm.set_label(&mut returned)?;
    asm.db(&NOP)?;
    sites.push((returned, Site::StubReturn));
    asm.test(rax, rax)?;
    asm.jz(left)?;
    asm.ret()?;
    asm.set_label(&mut left)?;
    asm.inc(qword_ptr(r11 + slot::LEFT))?;
    asm.jmp(enter)?;
    Ok(())
}

/// Redirects calls that a simpler function can handle to its stub: `realloc` of null, and all of `reallocarray`, unless the size
/// overflows. For `reallocarray`, returns true, and the call continues at `overflows`.
fn redirect(
    asm: &mut CodeAssembler,
    function: &StubFunction<'_>,
    old: Option<AsmRegister64>,
    overflows: &mut CodeLabel,
) -> Result<bool, StubError> {
    let size = ARGUMENTS[function.size];
    match (old, function.simpler, function.count) {
        (Some(old), Some(malloc), None) => {
            let mut has_old = asm.create_label();
            asm.test(old, old)?;
            asm.jnz(has_old)?;
            asm.mov(rdi, size)?;
            asm.jmp(malloc)?;
            asm.set_label(&mut has_old)?;
            Ok(false)
        }
        (Some(_), Some(realloc), Some(count)) => {
            asm.mov(r10, size)?;
            product(asm, count)?;
            asm.jo(*overflows)?;
            asm.mov(rsi, r10)?;
            asm.jmp(realloc)?;
            asm.set_label(overflows)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Loads the address of the countdown into r11, and counts the call. Changes rax.
fn find_countdown(common: &Common, asm: &mut CodeAssembler, function: &StubFunction<'_>) -> Result<(), StubError> {
    match common.index {
        SlotIndex::Rseq(offset) => {
            asm.mov(eax, dword_ptr(i64::from(offset).cast_unsigned()).fs())?;
        }
        SlotIndex::Thread(bits) => {
            asm.mov(rax, qword_ptr(0_u64).fs())?;
            asm.shr(rax, 8)?;
            asm.imul_3(eax, eax, u32::try_from(FILTER_SPREAD).unwrap_or(0).cast_signed())?;
            asm.shr(eax, 32 - bits)?;
        }
    }
    asm.shl(eax, slot::BYTES.ilog2())?;
    let base = MemoryOperand::with_base_displ(Register::RIP, (common.control + control::BASE as u64).cast_signed());
    asm.add_instruction(Instruction::with2(Code::Mov_r64_rm64, Register::R11, base)?)?;
    asm.add(r11, rax)?;
    if function.heap_offset > 0 {
        asm.add(r11, i32::try_from(function.heap_offset).map_err(|_| StubError::Encode("too many heaps".to_owned()))?)?;
    }
    asm.inc(qword_ptr(r11 + slot::CALLS))?;
    Ok(())
}

/// Loads the bytes that a call requests into r10. Jumps to `fails` if it will fail. Changes rax.
fn size_of_call(asm: &mut CodeAssembler, function: &StubFunction<'_>, fails: CodeLabel) -> Result<(), StubError> {
    asm.mov(r10, ARGUMENTS[function.size])?;
    if let Some(count) = function.count {
        product(asm, count)?;
        // The call will fail.
        asm.jo(fails)?;
    }
    if function.page_rounded {
        let page = i32::try_from(PAGE_BYTES).unwrap_or(4096);
        asm.add(r10, page - 1)?;
        asm.and(r10, -page)?;
    }
    // 0 bytes count as 1.
    asm.cmp(r10, 1)?;
    asm.adc(r10, 0)?;
    Ok(())
}

/// Multiplies r10 by an argument; sets the overflow flag if the product overflows. Changes rax.
fn product(asm: &mut CodeAssembler, count: usize) -> Result<(), StubError> {
    asm.push(rdx)?;
    asm.mov(rax, ARGUMENTS[count])?;
    asm.mul(r10)?;
    asm.mov(r10, rax)?;
    asm.pop(rdx)?;
    Ok(())
}

/// Loads an address within 2 GiB into r11.
fn load_address(asm: &mut CodeAssembler, address: u64) -> Result<(), StubError> {
    let memory = MemoryOperand::with_base_displ(Register::RIP, address.cast_signed());
    asm.add_instruction(Instruction::with2(Code::Lea_r64_m, Register::R11, memory)?)?;
    Ok(())
}

/// Executes the function from its entry.
fn continue_in(asm: &mut CodeAssembler, function: &StubFunction<'_>) -> Result<(), StubError> {
    let mut decoder = Decoder::with_ip(64, function.prefix, function.address, DecoderOptions::NONE);
    let mut next = function.address;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err(StubError::Prefix("an instruction before the probe is invalid"));
        }
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::ConditionalBranch => {}
            FlowControl::UnconditionalBranch => {
                asm.add_instruction(instruction)?;
                return Ok(());
            }
            _ => return Err(StubError::Prefix("it calls a function or returns before the probe")),
        }
        next = instruction.next_ip();
        asm.add_instruction(instruction)?;
    }
    asm.jmp(next)?;
    Ok(())
}

/// Samples the countdown at r11 from the exponential distribution for the next interval, and returns the code of the previous
/// interval in r10d. Changes rax.
///
/// The random number is `SplitMix64`; its logarithm is interpolated in a table, whose
/// error is below 3·10^-6 of the mean.
fn draw(asm: &mut CodeAssembler, table: u64) -> Result<(), StubError> {
    for register in [rcx, rdx, rdi, rsi] {
        asm.push(register)?;
    }
    asm.mov(r10d, dword_ptr(r11 + slot::CODE))?;
    asm.mov(ecx, dword_ptr(r11 + slot::NEXT_CODE))?;
    asm.mov(dword_ptr(r11 + slot::CODE), ecx)?;
    // The interval: a mantissa of 15 bits, shifted by the bits above.
    asm.mov(edx, ecx)?;
    asm.and(edx, 0x7fff)?;
    asm.shr(ecx, 15)?;
    asm.shl(rdx, iced_x86::code_asm::cl)?;
    asm.mov(qword_ptr(r11 + slot::INTERVAL), rdx)?;
    asm.mov(rsi, rdx)?;
    asm.mov(rax, RANDOM_INCREMENT)?;
    asm.add(rax, qword_ptr(r11 + slot::RANDOM))?;
    asm.mov(qword_ptr(r11 + slot::RANDOM), rax)?;
    for (shift, factor) in RANDOM_MIXES {
        asm.mov(rdx, rax)?;
        asm.shr(rdx, u32::from(shift))?;
        asm.xor(rax, rdx)?;
        if let Some(factor) = factor {
            asm.mov(rdx, factor)?;
            asm.imul_2(rax, rdx)?;
        }
    }
    asm.or(rax, 1)?;
    // rax = 2^(63 − zeros) · (1 + f): edi = zeros, rax = f.
    asm.bsr(rcx, rax)?;
    asm.xor(ecx, 63)?;
    asm.shl(rax, iced_x86::code_asm::cl)?;
    asm.mov(rdi, rcx)?;
    asm.add(rax, rax)?;
    // edx = step of the table, eax = 32 bits behind it.
    asm.mov(rdx, rax)?;
    asm.shr(rdx, 64 - TABLE_BITS)?;
    asm.shl(rax, TABLE_BITS)?;
    asm.shr(rax, 32)?;
    asm.push(r11)?;
    load_address(asm, table)?;
    asm.lea(r11, qword_ptr(r11 + rdx * 4))?;
    asm.mov(edx, dword_ptr(r11 + 4))?;
    asm.mov(ecx, dword_ptr(r11))?;
    asm.pop(r11)?;
    asm.sub(edx, ecx)?;
    asm.imul_2(rax, rdx)?;
    asm.shr(rax, 32)?;
    asm.add(rax, rcx)?;
    // rax = 2^32 · log2(1 + f); −2^32 · log2(u) = (zeros + 1) · 2^32 − rax.
    asm.add(edi, 1)?;
    asm.shl(rdi, 32)?;
    asm.sub(rdi, rax)?;
    // rdi · ln 2 · interval / 2^32, in two steps to stay within 128 bits.
    asm.mov(rax, rdi)?;
    asm.mov(edx, LN_2)?;
    asm.mul(rdx)?;
    asm.shrd(rax, rdx, 32)?;
    asm.mul(rsi)?;
    asm.shrd(rax, rdx, 32)?;
    asm.mov(qword_ptr(r11 + slot::COUNTDOWN), rax)?;
    for register in [rsi, rdi, rdx, rcx] {
        asm.pop(register)?;
    }
    asm.ret()?;
    Ok(())
}
