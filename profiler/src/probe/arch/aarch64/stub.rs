//! Stubs of the inline engine for aarch64.
//!
//! At a function's entry, x9 to x17 belong to the callee, as do the flags (AAPCS64, 6.1.1). Countdowns are changed by exclusive
//! accesses, because a thread may lose its CPU between a load and a store: its store would undo the work of others.

#![expect(clippy::useless_conversion, reason = "the assembler's macro converts numbers of registers")]

mod prefix;
mod routine;

use dynasmrt::{DynamicLabel, DynasmApi as _, DynasmLabelApi as _, dynasm};
use gimli::write::{CallFrameInstruction, CommonInformationEntry};
use gimli::{AArch64 as Dwarf, Encoding};
use object::elf;
use profiler_common::arch::aarch64::DATA_ADDRESS;
use profiler_common::hook::{CallShape, Site};
use profiler_common::limits::LIVE_FILTER_SLOTS;
use profiler_common::live::{FILTER_GRANULE_BITS, FILTER_ONE, FILTER_RATIO, FILTER_SPREAD, FILTER_SPREAD_SHIFT};

use self::prefix::continue_in;
use self::routine::{Stub, usize_of};
use super::Aarch64;
use crate::keeper::control;
use crate::probe::arch::stub::{
    Common, LN_2, Nothrow, RANDOM_INCREMENT, RANDOM_MIXES, Routine, SlotIndex, StubError, StubFunction, StubSet,
    TABLE_BITS, slot,
};

/// Number of the hint `bti c`.
const LANDING_PAD: u32 = 34;
/// The register `tpidr_el0`, as `mrs` encodes it.
const THREAD_POINTER: u32 = 0x5e82;
/// Distance of the caller's frame while a stub calls its function: x29 and x30 are saved below.
const FRAME_BYTES: i32 = 16;
/// Distance of the caller's frame while a stub saves arguments and its own registers.
const NOTHROW_BYTES: i32 = 48;

impl StubSet for Aarch64 {
    const MACHINE: u16 = elf::EM_AARCH64;
    /// The instruction `udf #0`.
    const PADDING: &'static [u8] = &[0; 4];
    const REACH_BYTES: u64 = 128 << 20;

    fn common_information(encoding: Encoding) -> CommonInformationEntry {
        let mut common = CommonInformationEntry::new(encoding, 4, -8, Dwarf::X30);
        common.add_instruction(CallFrameInstruction::Cfa(Dwarf::SP, 0));
        common
    }

    fn draw(address: u64, table: u64) -> Result<Routine, StubError> {
        let mut stub = Stub::new(address);
        stub.draw(table);
        stub.finish()
    }

    fn stub(address: u64, function: &StubFunction<'_>, common: &Common) -> Result<Routine, StubError> {
        let called = [Some(function.address), function.nothrow.map(|nothrow| nothrow.function)];
        let is_far = |called: u64| called.wrapping_sub(address).cast_signed().unsigned_abs() >= Self::REACH_BYTES;
        if called.into_iter().flatten().any(is_far) {
            return Err(StubError::Encode("the function is beyond the reach of jumps".to_owned()));
        }
        let mut stub = Stub::new(address);
        dynasm!(stub.asm ; .arch aarch64 ; hint LANDING_PAD);
        match function.shape {
            CallShape::Free => stub.free(function, common)?,
            CallShape::Alloc | CallShape::AllocOut | CallShape::Realloc => stub.alloc(function, common)?,
            _ => return Err(StubError::Prefix("no stub exists for functions of its kind")),
        }
        stub.finish()
    }
}

impl Stub {
    fn free(&mut self, function: &StubFunction<'_>, common: &Common) -> Result<(), StubError> {
        let [untracked, bypass] = std::array::from_fn(|_| self.asm.new_dynamic_label());
        self.load_address(9, common.control + control::BYPASSED as u64);
        dynasm!(self.asm ; .arch aarch64 ; ldr x9, [x9] ; cbnz x9, =>bypass);
        self.search_filter(argument(function.pointer.unwrap_or(0)), untracked, common);
        self.site(Site::StubEntry);
        dynasm!(self.asm ; .arch aarch64 ; =>untracked);
        continue_in(self, function)?;
        dynasm!(self.asm ; .arch aarch64 ; =>bypass ; b extern usize_of(function.address));
        Ok(())
    }

    /// Jumps to `excluded` if the block is certainly not live. Changes x9 to x12.
    fn search_filter(&mut self, pointer: u8, excluded: DynamicLabel, common: &Common) {
        let (granule, shift) = (FILTER_GRANULE_BITS, LIVE_FILTER_SLOTS.ilog2());
        let found = self.asm.new_dynamic_label();
        dynasm!(self.asm
            ; .arch aarch64
            // Remove the tag of the pointer.
            ; and x9, X(pointer), DATA_ADDRESS
            ; lsr x10, x9, granule
            ; lsr x11, x10, shift
        );
        self.load(12, FILTER_SPREAD);
        dynasm!(self.asm
            ; .arch aarch64
            ; mul x11, x11, x12
            ; eor x10, x10, x11, lsr FILTER_SPREAD_SHIFT
            ; and x10, x10, u64::from(LIVE_FILTER_SLOTS) - 1
        );
        self.load_address(11, common.filter);
        dynasm!(self.asm
            ; .arch aarch64
            ; ldr x10, [x11, x10, lsl 3]
            ; lsr x11, x10, FILTER_ONE.ilog2()
            ; cbz x11, =>excluded
            ; cmp x11, 1
            ; b.ne =>found
        );
        self.load(12, FILTER_RATIO);
        dynasm!(self.asm
            ; .arch aarch64
            ; mul x12, x12, x9
            ; and x10, x10, FILTER_ONE - 1
            ; cmp x10, x12, lsr 32
            ; b.ne =>excluded
            ; =>found
        );
    }

    fn alloc(&mut self, function: &StubFunction<'_>, common: &Common) -> Result<(), StubError> {
        let [sampled, probe, enter, unsampled, resized, followed, bypass] =
            std::array::from_fn(|_| self.asm.new_dynamic_label());
        let old = function.pointer.filter(|_| function.shape == CallShape::Realloc).map(argument);
        if self.redirect(function, old, enter) {
            return continue_in(self, function);
        }
        let missed = if old.is_some() { unsampled } else { enter };
        self.find_countdown(function, common);
        self.size_of_call(function, missed, common.page_bytes);
        self.count_down(sampled);
        if let Some(old) = old {
            dynasm!(self.asm ; .arch aarch64 ; =>unsampled);
            self.search_filter(old, enter, common);
            dynasm!(self.asm ; .arch aarch64 ; mov w16, wzr ; b =>resized);
        }
        dynasm!(self.asm ; .arch aarch64 ; =>enter);
        continue_in(self, function)?;

        dynasm!(self.asm
            ; .arch aarch64
            ; =>sampled
            ; ldr x12, [x11, slot::INTERVAL.unsigned_abs()]
            ; cbz x12, =>bypass
        );
        // The link register must have the return address at the probe.
        dynasm!(self.asm
            ; .arch aarch64
            ; adr x15, =>probe
            ; b extern usize_of(common.draw)
            ; =>probe
        );
        if let Some(nothrow) = function.nothrow {
            self.call_nothrow(nothrow, enter);
            dynasm!(self.asm ; .arch aarch64 ; =>bypass ; b extern usize_of(function.address));
            return Ok(());
        }
        self.site(Site::StubEntry);
        self.count(slot::SAMPLES);
        dynasm!(self.asm ; .arch aarch64 ; =>followed ; stp x29, x30, [sp, -FRAME_BYTES]!);
        self.frame([
            CallFrameInstruction::CfaOffset(FRAME_BYTES),
            CallFrameInstruction::Offset(Dwarf::X29, -FRAME_BYTES),
            CallFrameInstruction::Offset(Dwarf::X30, -FRAME_BYTES + 8),
        ]);
        dynasm!(self.asm
            ; .arch aarch64
            ; mov x29, sp
            ; bl =>enter
            ; ldp x29, x30, [sp], FRAME_BYTES
        );
        self.end_frame();
        self.site(Site::StubReturn);
        dynasm!(self.asm ; .arch aarch64 ; ret);
        if old.is_some() {
            dynasm!(self.asm ; .arch aarch64 ; =>resized);
            self.site(Site::StubEntry);
            dynasm!(self.asm ; .arch aarch64 ; b =>followed);
        }
        dynasm!(self.asm ; .arch aarch64 ; =>bypass ; b extern usize_of(function.address));
        Ok(())
    }

    /// Calls the form of a function that returns null instead of throwing. If it returns null, or a new-handler is set, which may
    /// throw or jump, the call continues in the function itself, at `enter`, as one that is not sampled.
    fn call_nothrow(&mut self, nothrow: Nothrow, enter: DynamicLabel) {
        let left = self.asm.new_dynamic_label();
        dynasm!(self.asm ; .arch aarch64 ; stp x29, x30, [sp, -NOTHROW_BYTES]!);
        self.nothrow_frame();
        self.load(9, nothrow.get_handler);
        dynasm!(self.asm
            ; .arch aarch64
            ; mov x29, sp
            ; stp x0, x1, [sp, 16]
            ; stp x11, x16, [sp, 32]
            ; blr x9
            ; mov x9, x0
            ; ldp x11, x16, [sp, 32]
            ; ldp x0, x1, [sp, 16]
            ; ldp x29, x30, [sp], NOTHROW_BYTES
        );
        self.end_frame();
        dynasm!(self.asm ; .arch aarch64 ; cbnz x9, =>left);
        self.site(Site::StubEntry);
        self.count(slot::SAMPLES);
        dynasm!(self.asm ; .arch aarch64 ; stp x29, x30, [sp, -NOTHROW_BYTES]!);
        self.nothrow_frame();
        dynasm!(self.asm
            ; .arch aarch64
            ; mov x29, sp
            ; stp x0, x1, [sp, 16]
            ; str x11, [sp, 32]
            // Only the type of this argument is used, not its value.
            ; mov X(argument(nothrow.argument)), x11
            ; bl extern usize_of(nothrow.function)
            ; ldr x11, [sp, 32]
            ; ldp x10, x1, [sp, 16]
            ; ldp x29, x30, [sp], NOTHROW_BYTES
        );
        self.end_frame();
        self.site(Site::StubReturn);
        dynasm!(self.asm
            ; .arch aarch64
            ; cbz x0, >failed
            ; ret
            ; failed:
            ; mov x0, x10
            ; =>left
        );
        self.count(slot::LEFT);
        dynasm!(self.asm ; .arch aarch64 ; b =>enter);
    }

    fn nothrow_frame(&mut self) {
        self.frame([
            CallFrameInstruction::CfaOffset(NOTHROW_BYTES),
            CallFrameInstruction::Offset(Dwarf::X29, -NOTHROW_BYTES),
            CallFrameInstruction::Offset(Dwarf::X30, -NOTHROW_BYTES + 8),
        ]);
    }

    fn end_frame(&mut self) {
        self.frame([
            CallFrameInstruction::CfaOffset(0),
            CallFrameInstruction::Restore(Dwarf::X29),
            CallFrameInstruction::Restore(Dwarf::X30),
        ]);
    }

    /// Redirects calls that a simpler function can handle to its stub: `realloc` of null, and all of `reallocarray`, unless the
    /// size overflows. For `reallocarray`, returns true, and the call continues at `overflows`.
    fn redirect(&mut self, function: &StubFunction<'_>, old: Option<u8>, overflows: DynamicLabel) -> bool {
        let size = argument(function.size);
        match (old, function.simpler, function.count) {
            (Some(old), Some(malloc), None) => {
                dynasm!(self.asm
                    ; .arch aarch64
                    ; cbnz X(old), >has_old
                    ; mov x0, X(size)
                    ; b extern usize_of(malloc)
                    ; has_old:
                );
                false
            }
            (Some(_), Some(realloc), Some(count)) => {
                self.product(size, argument(count), overflows);
                dynasm!(self.asm
                    ; .arch aarch64
                    ; mov x1, x10
                    ; b extern usize_of(realloc)
                    ; =>overflows
                );
                true
            }
            _ => false,
        }
    }

    /// Counts a call in this field of the countdown at x11. Changes x9, x12 and x13.
    fn count(&mut self, field: i32) {
        dynasm!(self.asm
            ; .arch aarch64
            ; add x9, x11, field.unsigned_abs()
            ; again:
            ; ldxr x12, [x9]
            ; add x12, x12, 1
            ; stxr w13, x12, [x9]
            ; cbnz w13, <again
        );
    }

    /// Loads the address of the countdown into x11, and counts the call. Changes x9, x10, x12 and x13.
    fn find_countdown(&mut self, function: &StubFunction<'_>, common: &Common) {
        dynasm!(self.asm ; .arch aarch64 ; mrs x9, THREAD_POINTER);
        match common.index {
            SlotIndex::Rseq(offset) => {
                self.load(10, i64::from(offset).cast_unsigned());
                dynasm!(self.asm ; .arch aarch64 ; ldr w9, [x9, x10]);
            }
            SlotIndex::Thread(bits) => {
                dynasm!(self.asm ; .arch aarch64 ; lsr x9, x9, 8);
                self.load(10, FILTER_SPREAD);
                dynasm!(self.asm ; .arch aarch64 ; mul w9, w9, w10 ; lsr w9, w9, 32 - bits);
            }
        }
        self.load_address(11, common.control + control::BASE as u64);
        dynasm!(self.asm ; .arch aarch64 ; ldr x11, [x11] ; add x11, x11, x9, lsl slot::BYTES.ilog2());
        if function.heap_offset > 0 {
            self.load(12, function.heap_offset);
            dynasm!(self.asm ; .arch aarch64 ; add x11, x11, x12);
        }
        self.count(slot::CALLS);
    }

    /// Loads the bytes that a call requests into x10. Jumps to `fails` if it will fail. Changes x12.
    fn size_of_call(&mut self, function: &StubFunction<'_>, fails: DynamicLabel, page_bytes: u64) {
        let size = argument(function.size);
        match function.count {
            Some(count) => self.product(size, argument(count), fails),
            None => dynasm!(self.asm ; .arch aarch64 ; mov x10, X(size)),
        }
        if function.page_rounded {
            self.load(12, page_bytes - 1);
            dynasm!(self.asm ; .arch aarch64 ; add x10, x10, x12 ; bic x10, x10, x12);
        }
        // 0 bytes count as 1.
        dynasm!(self.asm ; .arch aarch64 ; cmp x10, 0 ; csinc x10, x10, xzr, ne);
    }

    /// Multiplies two arguments into x10. Jumps to `overflows` if the product overflows. Changes x12.
    fn product(&mut self, size: u8, count: u8, overflows: DynamicLabel) {
        dynasm!(self.asm
            ; .arch aarch64
            ; umulh x12, X(size), X(count)
            ; mul x10, X(size), X(count)
            ; cbnz x12, =>overflows
        );
    }

    /// Jumps to `sampled` if the bytes in x10 are to be sampled by the countdown at x11. Changes x12 and x13.
    fn count_down(&mut self, sampled: DynamicLabel) {
        const _: () = assert!(slot::COUNTDOWN == 0);
        dynasm!(self.asm
            ; .arch aarch64
            ; ldr x12, [x11, slot::INTERVAL.unsigned_abs()]
            ; cmp x10, x12
            ; b.hs =>sampled
            ; again:
            ; ldxr x12, [x11]
            ; sub x12, x12, x10
            ; stxr w13, x12, [x11]
            ; cbnz w13, <again
            ; tbnz x12, 63, =>sampled
        );
    }

    /// Samples the countdown at x11 from the exponential distribution for the next interval, returns the code of the previous
    /// interval in w16, and continues at x15. Changes x9, x10 and x12 to x14.
    ///
    /// The random number is `SplitMix64`; its logarithm is interpolated in a table, whose error is below 3·10^-6 of the mean.
    fn draw(&mut self, table: u64) {
        const _: () = assert!(slot::NEXT_CODE == slot::CODE + 4);
        let of = |field: i32| field.unsigned_abs();
        // The interval: a mantissa of 15 bits, shifted by the bits above.
        dynasm!(self.asm
            ; .arch aarch64
            ; ldp w16, w12, [x11, slot::CODE]
            ; str w12, [x11, of(slot::CODE)]
            ; and w13, w12, 0x7fff
            ; lsr w12, w12, 15
            ; lsl x13, x13, x12
            ; str x13, [x11, of(slot::INTERVAL)]
            ; ldr x9, [x11, of(slot::RANDOM)]
        );
        self.load(10, RANDOM_INCREMENT);
        dynasm!(self.asm ; .arch aarch64 ; add x9, x9, x10 ; str x9, [x11, of(slot::RANDOM)]);
        for (shift, factor) in RANDOM_MIXES {
            dynasm!(self.asm ; .arch aarch64 ; eor x9, x9, x9, lsr u32::from(shift));
            if let Some(factor) = factor {
                self.load(10, factor);
                dynasm!(self.asm ; .arch aarch64 ; mul x9, x9, x10);
            }
        }
        // x9 = 2^(63 − zeros) · (1 + f): x10 = zeros, x9 = f.
        dynasm!(self.asm
            ; .arch aarch64
            ; orr x9, x9, 1
            ; clz x10, x9
            ; lsl x9, x9, x10
            ; lsl x9, x9, 1
            // x12 = step of the table, x9 = 32 bits behind it.
            ; lsr x12, x9, 64 - TABLE_BITS
            ; lsl x9, x9, TABLE_BITS
            ; lsr x9, x9, 32
        );
        self.load_address(14, table);
        dynasm!(self.asm
            ; .arch aarch64
            ; add x14, x14, x12, lsl 2
            ; ldp w12, w14, [x14]
            ; sub w14, w14, w12
            ; mul x9, x9, x14
            ; add x9, x12, x9, lsr 32
            // x9 = 2^32 · log2(1 + f); −2^32 · log2(u) = (zeros + 1) · 2^32 − x9.
            ; add x10, x10, 1
            ; lsl x10, x10, 32
            ; sub x10, x10, x9
        );
        // x10 · ln 2 · interval / 2^32, in two steps to stay within 128 bits.
        self.load(9, LN_2.into());
        for factor in [9, 13] {
            dynasm!(self.asm
                ; .arch aarch64
                ; umulh x14, x10, X(factor)
                ; mul x10, x10, X(factor)
                ; extr x10, x14, x10, 32
            );
        }
        dynasm!(self.asm ; .arch aarch64 ; str x10, [x11] ; br x15);
    }
}

/// Register of an argument with this number.
fn argument(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests;
