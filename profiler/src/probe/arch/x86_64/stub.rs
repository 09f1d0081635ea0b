//! Code of the inline engine's stubs for x86-64.
//!
//! A stub runs in place of a function: it counts allocated bytes down, or searches the filter for the block that is freed, and
//! continues in the function *behind* the instruction that has a probe, which it executes itself. Only sampled calls, and
//! frees that the filter does not exclude, reach a `nop` in the stub, on which the kernel side has a probe.
//!
//! At a function's entry, `rax` (but for the number of vector arguments), `r10` and `r11` belong to the callee, as do the flags
//! and all memory below the stack pointer (System V psABI for x86-64, 3.2).

use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, dword_ptr, eax, ecx, edi, edx, qword_ptr, r8, r9, r10, r10d, r11, rax,
    rcx, rdi, rdx, rsi, rsp,
};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, IcedError, Instruction, MemoryOperand, Register};
use profiler_common::hook::{CallShape, Site};
use profiler_common::limits::{LIVE_FILTER_SLOTS, PAGE_BYTES};
use profiler_common::live::{FILTER_GRANULE_BITS, FILTER_ONE, FILTER_RATIO, FILTER_SPREAD, FILTER_SPREAD_SHIFT};

use super::stub_image;
pub(crate) use super::stub_image::{HEADER_BYTES, StubError, entries, list};

/// Whether the processor that this program runs on executes these stubs.
pub(crate) const IS_AVAILABLE: bool = cfg!(target_arch = "x86_64");

/// The address behind a stub's first instruction, `endbr64`, and a jump to its function, which makes the stub neutral.
pub(crate) fn bypass(stub: u64, function: u64) -> (u64, [u8; BYPASS_BYTES]) {
    let at = stub + 4;
    let distance = function.wrapping_sub(at + BYPASS_BYTES as u64).to_le_bytes();
    (at, [0xe9, distance[0], distance[1], distance[2], distance[3]])
}

pub(crate) const BYPASS_BYTES: usize = 5;

/// Countdowns that never reach 0.
pub(crate) fn neutral(size_bytes: usize) -> Vec<u8> {
    let mut countdowns = vec![0; size_bytes];
    for line in countdowns.chunks_exact_mut(slot::BYTES) {
        put(line, slot::COUNTDOWN, &i64::MAX.to_ne_bytes());
        put(line, slot::INTERVAL, &u64::MAX.to_ne_bytes());
    }
    countdowns
}

/// Writes a field of a countdown.
pub(crate) fn put(line: &mut [u8], at: i32, bytes: &[u8]) {
    let at = at.unsigned_abs() as usize;
    line[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Countdown of one CPU for one heap: a cache line. Agent and stubs write it.
pub(crate) mod slot {
    pub(crate) const BYTES: usize = 64;
    /// Bytes until the next sample; negative at a sample (i64).
    pub(crate) const COUNTDOWN: i32 = 0;
    /// Interval that the countdown was drawn for, in bytes (u64), and its code (u32).
    pub(crate) const INTERVAL: i32 = 8;
    pub(crate) const CODE: i32 = 16;
    /// Code of the interval for the next countdown (u32).
    pub(crate) const NEXT_CODE: i32 = 20;
    /// State of the random number generator (u64).
    pub(crate) const RANDOM: i32 = 24;
    /// Calls so far (u64).
    pub(crate) const CALLS: i32 = 32;
}

/// How a stub finds its countdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotIndex {
    /// By CPU: at this offset from the thread pointer, `struct rseq` has the CPU's number (Linux 4.18).
    Rseq(i32),
    /// By a hash of the thread pointer, with 2 to the power of this many slots.
    Thread(u32),
}

/// A function to be replaced by a stub.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StubFunction<'a> {
    pub shape: CallShape,
    /// Argument numbers.
    pub size: usize,
    pub count: Option<usize>,
    pub pointer: Option<usize>,
    pub page_rounded: bool,
    /// Requested bytes from which on it may throw.
    pub throw_safe_bytes: Option<u64>,
    pub address: u64,
    /// From the entry to the end of the probed instruction; empty without a probe.
    pub prefix: &'a [u8],
    /// Address of its heap's first countdown.
    pub slots: u64,
    /// For `realloc` of null, the stub of `malloc`; for `reallocarray`, the stub of `realloc`: they may be nested calls.
    pub simpler: Option<u64>,
}

/// Stubs of a process, assembled for one address.
#[derive(Debug)]
pub(crate) struct StubCode {
    address: u64,
    filter: u64,
    index: SlotIndex,
    bytes: Vec<u8>,
    /// Beginnings and ends.
    routines: Vec<(usize, usize)>,
    /// Address of the routine that draws countdowns.
    draw: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StubSite {
    /// From the beginning of the code.
    pub offset: u64,
    pub site: Site,
}

const ARGUMENTS: [AsmRegister64; 6] = [rdi, rsi, rdx, rcx, r8, r9];
const STUB_ALIGNMENT: usize = 64;
/// Of one byte. Linux 6.18 replaces one of five bytes by a call, which is a third cheaper, of a page that forked children lack:
/// they crash (`create_uprobe_trampoline` in arch/x86/kernel/uprobes.c maps it with `VM_DONTCOPY`).
const NOP: [u8; 1] = [0x90];
/// Entries of the table of logarithms: 2 to the power of this many, and one more.
const TABLE_BITS: u32 = 8;

impl StubCode {
    /// `filter` is the address of the live set's filter in the process.
    pub(crate) fn new(address: u64, filter: u64, index: SlotIndex) -> Result<Self, StubError> {
        let mut code = Self { address, filter, index, bytes: Vec::new(), routines: Vec::new(), draw: 0 };
        code.bytes.resize(usize::try_from(HEADER_BYTES).unwrap_or(0), 0);
        let table = code.end();
        for step in 0..=1_u32 << TABLE_BITS {
            code.bytes.extend_from_slice(&logarithm(step).to_le_bytes());
        }
        code.pad();
        code.draw = code.end();
        let mut asm = CodeAssembler::new(64)?;
        draw(&mut asm, table)?;
        code.add(asm, &mut [])?;
        Ok(code)
    }

    fn end(&self) -> u64 {
        self.address + self.bytes.len() as u64
    }

    /// `int3` between stubs.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(STUB_ALIGNMENT), 0xcc);
    }

    fn add(&mut self, mut asm: CodeAssembler, labels: &mut [(CodeLabel, Site)]) -> Result<Vec<StubSite>, StubError> {
        let options = iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let assembled = asm.assemble_options(self.end(), options)?;
        let site = |&mut (label, site): &mut (CodeLabel, Site)| {
            Ok(StubSite { offset: assembled.label_ip(&label)?.wrapping_sub(self.address), site })
        };
        let sites = labels.iter_mut().map(site).collect::<Result<_, IcedError>>()?;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&assembled.inner.code_buffer);
        self.routines.push((start, self.bytes.len()));
        self.pad();
        Ok(sites)
    }

    /// Adds a stub. Returns its address and the places of its probes.
    pub(crate) fn add_stub(&mut self, function: &StubFunction<'_>) -> Result<(u64, Vec<StubSite>), StubError> {
        let (entry, mut sites) = (self.end(), Vec::new());
        let mut asm = CodeAssembler::new(64)?;
        asm.endbr64()?;
        match function.shape {
            CallShape::Free => self.free(&mut asm, function, &mut sites)?,
            CallShape::Alloc | CallShape::AllocOut | CallShape::Realloc => {
                self.alloc(&mut asm, function, &mut sites)?
            }
            _ => return Err(StubError::Prefix("no stub exists for functions of its kind")),
        }
        Ok((entry, self.add(asm, &mut sites)?))
    }

    /// The image in whole pages. `entries` are stubs and their functions.
    pub(crate) fn finish(self, entries: &[[u64; 2]]) -> Result<Vec<u8>, StubError> {
        stub_image::complete(self.bytes, &self.routines, entries)
    }

    fn free(
        &self,
        asm: &mut CodeAssembler,
        function: &StubFunction<'_>,
        sites: &mut Vec<(CodeLabel, Site)>,
    ) -> Result<(), StubError> {
        let pointer = ARGUMENTS[function.pointer.unwrap_or(0)];
        let (mut untracked, mut probe) = (asm.create_label(), asm.create_label());
        self.search_filter(asm, pointer, untracked)?;
        asm.set_label(&mut probe)?;
        asm.db(&NOP)?;
        sites.push((probe, Site::StubEntry));
        asm.set_label(&mut untracked)?;
        continue_in(asm, function)
    }

    /// Jumps to `excluded` if the block is certainly not live. Changes rax, r10 and r11.
    fn search_filter(
        &self,
        asm: &mut CodeAssembler,
        pointer: AsmRegister64,
        excluded: CodeLabel,
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
        load_address(asm, self.filter)?;
        asm.mov(rax, qword_ptr(r11 + rax * 8))?;
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
        &self,
        asm: &mut CodeAssembler,
        function: &StubFunction<'_>,
        sites: &mut Vec<(CodeLabel, Site)>,
    ) -> Result<(), StubError> {
        let size = ARGUMENTS[function.size];
        let (mut sampled, mut probe, mut returned) = (asm.create_label(), asm.create_label(), asm.create_label());
        let mut enter = asm.create_label();
        let old = function.pointer.filter(|_| function.shape == CallShape::Realloc).map(|number| ARGUMENTS[number]);
        let mut unsampled = if old.is_some() { asm.create_label() } else { enter };
        match (old, function.simpler, function.count) {
            (Some(old), Some(malloc), None) => {
                let mut has_old = asm.create_label();
                asm.test(old, old)?;
                asm.jnz(has_old)?;
                asm.mov(rdi, size)?;
                asm.jmp(malloc)?;
                asm.set_label(&mut has_old)?;
            }
            (Some(_), Some(realloc), Some(count)) => {
                asm.mov(r10, size)?;
                product(asm, count)?;
                asm.jo(enter)?;
                asm.mov(rsi, r10)?;
                asm.jmp(realloc)?;
                asm.set_label(&mut enter)?;
                return continue_in(asm, function);
            }
            _ => {}
        }
        self.find_countdown(asm, function)?;
        size_of_call(asm, function, unsampled)?;
        asm.cmp(r10, qword_ptr(r11 + slot::INTERVAL))?;
        asm.jae(sampled)?;
        asm.sub(qword_ptr(r11 + slot::COUNTDOWN), r10)?;
        asm.js(sampled)?;
        if let Some(old) = old {
            asm.set_label(&mut unsampled)?;
            self.search_filter(asm, old, enter)?;
            asm.xor(r10d, r10d)?;
            asm.jmp(probe)?;
        }
        asm.set_label(&mut enter)?;
        continue_in(asm, function)?;

        asm.set_label(&mut sampled)?;
        if let Some(bytes) = function.throw_safe_bytes {
            asm.mov(rax, bytes)?;
            asm.cmp(r10, rax)?;
            asm.jae(enter)?;
        }
        asm.call(self.draw)?;
        asm.set_label(&mut probe)?;
        asm.db(&NOP)?;
        sites.push((probe, Site::StubEntry));
        // Keeps the stack aligned.
        asm.sub(rsp, 8)?;
        asm.call(enter)?;
        asm.add(rsp, 8)?;
        asm.set_label(&mut returned)?;
        asm.db(&NOP)?;
        sites.push((returned, Site::StubReturn));
        asm.ret()?;
        Ok(())
    }

    /// Loads the address of the countdown into r11, and counts the call. Changes rax.
    fn find_countdown(&self, asm: &mut CodeAssembler, function: &StubFunction<'_>) -> Result<(), StubError> {
        match self.index {
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
        load_address(asm, function.slots)?;
        asm.add(r11, rax)?;
        asm.inc(qword_ptr(r11 + slot::CALLS))?;
        Ok(())
    }
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

/// 2^32 · log2(1 + step / 2^TABLE_BITS).
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0..=2^32, which saturates")]
fn logarithm(step: u32) -> u32 {
    let part = f64::from(step) / f64::from(1_u32 << TABLE_BITS);
    ((1.0 + part).log2() * 2_f64.powi(32)).round() as u32
}

/// The natural logarithm of 2, times 2^32.
const LN_2: u32 = 2_977_044_472;

/// Draws the countdown at r11 from the exponential distribution for the next interval, and returns the code of the previous
/// interval in r10d. Changes rax.
///
/// The random number is `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014); its logarithm is interpolated in a table, whose
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
    asm.mov(rax, 0x9e37_79b9_7f4a_7c15_u64)?;
    asm.add(rax, qword_ptr(r11 + slot::RANDOM))?;
    asm.mov(qword_ptr(r11 + slot::RANDOM), rax)?;
    for (shift, factor) in [(30, Some(0xbf58_476d_1ce4_e5b9_u64)), (27, Some(0x94d0_49bb_1331_11eb)), (31, None)] {
        asm.mov(rdx, rax)?;
        asm.shr(rdx, shift)?;
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
