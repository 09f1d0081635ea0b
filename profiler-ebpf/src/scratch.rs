//! Memory that is too large for the 512-byte BPF stack.
//!
//! Since Linux 6.x a uprobe program can be preempted by another one on the same CPU, so a per-CPU map value may be
//! overwritten half-way (about 1 % of long runs on 6.12 with `preempt=full`). Areas are therefore claimed: each CPU has
//! a few, a program takes a free one by an atomic exchange (Linux 5.12) and gives it back when done.

use core::arch::asm;
use core::ptr;

use aya_ebpf::helpers::bpf_get_smp_processor_id;
use profiler_common::limits::{SCRATCH_PER_CPU, STACK_FRAMES_MAX};
use profiler_common::record::StackHeader;

use crate::config;
use crate::maps::SCRATCH;
use crate::stack::Walk;

/// A stack record under construction.
#[repr(C)]
pub(crate) struct StackRecord {
    pub(crate) header: StackHeader,
    pub(crate) frames: [u64; STACK_FRAMES_MAX],
}

/// Words of the target's stack that are held at once: two pages.
pub(crate) const WINDOW_WORDS: usize = 1024;

/// One area.
#[repr(C)]
pub(crate) struct Scratch {
    /// 0 when free.
    claimed: u64,
    pub(crate) walk: Walk,
    /// Address of the window's first word.
    pub(crate) window_start: u64,
    /// Words of the window that are valid.
    pub(crate) window_words: u64,
    pub(crate) window: [u64; WINDOW_WORDS],
    pub(crate) record: StackRecord,
}

/// An area that this program holds. Must be given back with [`release`](Self::release) on every path.
pub(crate) struct Claim {
    scratch: *mut Scratch,
    area: u32,
}

impl Claim {
    /// Takes a free area of this CPU, or `None` when all are taken.
    #[inline(always)]
    pub(crate) fn take() -> Option<Self> {
        // SAFETY: the helper takes no arguments.
        let cpu = unsafe { bpf_get_smp_processor_id() };
        let first = cpu * SCRATCH_PER_CPU;
        if first >= config::scratch_areas() {
            return None;
        }
        for i in 0..SCRATCH_PER_CPU {
            let area = SCRATCH.get_ptr_mut(first + i)?;
            // SAFETY: `area` comes from a successful lookup; array values live as long as the map.
            if exchange(unsafe { &raw mut (*area).claimed }, 1) == 0 {
                return Some(Self { scratch: area, area: first + i });
            }
        }
        None
    }

    /// The area's memory: valid as long as the map, and its claimer's alone.
    #[inline(always)]
    pub(crate) fn scratch(&self) -> *mut Scratch {
        self.scratch
    }

    /// The area's index, for functions that the verifier checks by themselves: they cannot be handed the pointer.
    #[inline(always)]
    pub(crate) fn area(&self) -> u32 {
        self.area
    }

    /// Gives the area back.
    #[inline(always)]
    pub(crate) fn release(self) {
        // SAFETY: as in `take`. A plain store is enough: an aligned 64-bit store is not torn, and the next claimer's
        // exchange orders what follows.
        unsafe { ptr::write_volatile(&raw mut (*self.scratch).claimed, 0) };
    }
}

/// Atomically replaces `*place` and returns what was there. Rust has no atomics with a result on this target.
#[inline(always)]
fn exchange(place: *mut u64, value: u64) -> u64 {
    let mut value = value;
    // SAFETY: `place` points to an aligned u64 in a map value.
    unsafe {
        asm!("{value} = xchg_64({place} + 0, {value})", value = inout(reg) value, place = in(reg) place);
    }
    value
}
