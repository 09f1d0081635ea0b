//! Resident pages, by the stack that touched them first.
//!
//! The program runs at the raw tracepoints `page_fault_user(address, regs, error_code)` and `page_fault_kernel` of x86-64
//! (arch/x86/mm/fault.c, `trace_page_fault_entries`), before the fault is handled, with interrupts disabled: nothing but a fault of a BPF
//! program's own read happens meanwhile, and that is none of the target.
//!
//! Only writes are recorded. A read of memory that was never written maps the zero page, which is not counted as resident, or a page of a
//! file. A write to a page that is present copies it, or shows that it is the process's own: its owner stays, if it has one. A write to
//! one that is absent gives it a new owner, unless the kernel may have taken away the access to it alone (NUMA balancing), or swapped it out.
//!
//! Pages are blocks of the live set at their address with [`PAGE_FLAG`]. The agent removes those that are not resident any more.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_task_pt_regs};
use profiler_common::interval::Interval;
use profiler_common::live::{LiveBlock, LiveKey};
use profiler_common::pages::{PAGE_FLAG, PAGES_HEAP, is_sampled, position, range_id};
use profiler_common::record::{RangeRecord, RecordHeader, RecordKind};
use profiler_common::sampling::{SamplingRate, back_pressure_exponent};
use profiler_common::target::BORROWS_MEMORY;

use crate::maps::{RATES, TARGETS};
use crate::process::{Arguments, Task};
use crate::seen::{forget, is_new};
use crate::{arch, config, emit, live, sample, stack};

/// Bits of the error code of a page fault (arch/x86/include/asm/trap_pf.h).
const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;

/// Addresses of the kernel have this bit.
const OF_KERNEL: u64 = 1 << 63;

/// A page fault of the current thread.
#[inline(always)]
pub(crate) fn faulted(arguments: &Arguments) {
    if !config::faults() {
        return;
    }
    let (address, error) = (arguments.first(), arguments.third());
    if error & WRITE == 0 || address & OF_KERNEL != 0 {
        return;
    }
    let thread = bpf_get_current_pid_tgid();
    let tgid = (thread >> 32) as u32;
    let Some(flags) = TARGETS.get_ptr(&tgid) else {
        return;
    };
    // SAFETY: the pointer comes from a successful lookup.
    if unsafe { *flags } & BORROWS_MEMORY != 0 {
        return;
    }
    let Some(rate) = RATES.get(u32::from(PAGES_HEAP)) else {
        return;
    };
    if rate.interval_bytes == 0 || error & USER == 0 && Task::current().has_faults_disabled() {
        return;
    }
    let page = address & !((1 << config::page_shift()) - 1);
    let key = LiveKey::new(tgid, page | PAGE_FLAG);
    if error & PRESENT == 0 && config::replaces_pages() {
        live::replace(thread, &key);
    } else if live::is_live(&key) {
        return;
    }
    let interval_code = sampled(page, rate);
    let range = if config::huge_pages() { first_in_range(tgid, page) } else { 0 };
    if interval_code == 0 && range & FIRST == 0 {
        return;
    }
    // A fault in the kernel is one of a system call, most often.
    let registers = if error & USER != 0 {
        arguments.second()
    } else {
        // SAFETY: the helpers take no arguments, and a pointer that one of them has returned.
        unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) as u64 }
    };
    let Some([ip, sp, bp]) = arch::user_registers(registers) else {
        return forget_range(range, tgid, page);
    };
    // The frame's code is at the address, which is that of a return behind the call in the kernel's case.
    let ip = ip.wrapping_add(u64::from(error & USER != 0));
    let Some(stack_id) = stack::take_at(thread as u32, ip, sp, bp) else {
        return forget_range(range, tgid, page);
    };
    if interval_code != 0 {
        let interval = Interval::from_code(interval_code);
        let block = LiveBlock::new(1 << config::page_shift(), emit::now_ns(), stack_id, interval, PAGES_HEAP);
        live::enter_page(thread, &key, block);
    }
    if range & FIRST != 0 {
        let is_written = emit::record(RangeRecord {
            header: RecordHeader::new(RecordKind::Range, tgid),
            page,
            time_ns: emit::now_ns(),
            stack_id,
            tid: thread as u32,
            memory: range as u32,
        });
        if !is_written {
            forget_range(range, tgid, page);
        }
    }
}

/// Code of the interval that a page is sampled at, or 0 if it is not. A ring buffer that is filling raises the interval, as for calls.
#[inline(always)]
fn sampled(page: u64, rate: &SamplingRate) -> u32 {
    let position = position(page, config::stack_seed());
    let page_bytes = 1 << config::page_shift();
    if !is_sampled(position, page_bytes, u64::from(rate.interval_bytes), rate.inverse, |x| sample::probability(x)) {
        return 0;
    }
    if !emit::is_filling() {
        return rate.interval_code;
    }
    let exponent = back_pressure_exponent(emit::unread_bytes(), config::ring_shift());
    let exponent_max = config::back_pressure_max();
    let exponent = if exponent > exponent_max { exponent_max } else { exponent };
    let larger_bytes = 1u64 << (exponent & 31);
    if larger_bytes <= u64::from(rate.interval_bytes) {
        return rate.interval_code;
    }
    let inverse = 1u64.wrapping_shl(u64::BITS - (exponent & 31));
    if is_sampled(position, page_bytes, larger_bytes, inverse, |x| sample::probability(x)) {
        Interval::power_of_two(exponent & 31).code()
    } else {
        0
    }
}

/// Set in the result of [`first_in_range`] if the process has not touched the range before.
const FIRST: u64 = 1 << 32;

/// Notes that the process touches the page's range. The lower half of the result distinguishes its program from others; [`FIRST`] is set if it
/// is the first touch. A word, because the compiler leaves the payload of an empty option undefined, which the verifier refuses.
#[inline(always)]
fn first_in_range(tgid: u32, page: u64) -> u64 {
    // Structures are aligned to the lines of a cache.
    let memory = (Task::current().memory().unwrap_or(0) >> 6) as u32;
    let is_first = is_new(range_id(config::stack_seed(), tgid, memory, page));
    memory as u64 | if is_first { FIRST } else { 0 }
}

/// Has the next touch of a range be its first again, if this one was, because it is not reported.
#[inline(always)]
fn forget_range(range: u64, tgid: u32, page: u64) {
    if range & FIRST != 0 {
        forget(range_id(config::stack_seed(), tgid, range as u32, page));
    }
}
