//! Memory that is too large for the 512-byte BPF stack.
//!
//! A uprobe program can be preempted by another one on the same CPU, so a per-CPU map value may be overwritten half-way.
//! Areas are therefore claimed, by an atomic exchange (Linux 5.12). Each CPU has one, which is in its cache; a program that
//! finds it taken, because the program that claimed it was preempted, takes one of a pool that all CPUs share. Threads
//! start at different places of the pool, by thread id.

use core::arch::asm;
use core::ptr;

use aya_ebpf::helpers::bpf_get_smp_processor_id;
use profiler_common::limits::{SCRATCH_SHARED, SCRATCH_STRIDE, SCRATCH_TRIES, STACK_FRAMES_MAX};
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
    /// Claims an area, or returns `None` when too many programs are preempted while they hold one.
    #[inline(always)]
    pub(crate) fn take(tid: u32) -> Option<Self> {
        let area = claim_area(tid);
        // Fails for `NO_AREA`, which is beyond the map.
        let scratch = SCRATCH.get_ptr_mut(area)?;
        Some(Self { scratch, area })
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

/// What [`claim_area`] returns when it has found no free area.
const NO_AREA: u32 = u32::MAX;

/// Claims an area and returns its index, or [`NO_AREA`]. A global function, so that the verifier checks what follows a
/// claim once and not once for each area that may be claimed.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn claim_area(tid: u32) -> u32 {
    // SAFETY: the helper takes no arguments.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let cpus = config::cpus();
    if cpu < cpus && claim(cpu) {
        return cpu;
    }
    for i in 0..SCRATCH_TRIES {
        let area = cpus.wrapping_add(tid.wrapping_add(i * SCRATCH_STRIDE) & (SCRATCH_SHARED - 1));
        if claim(area) {
            return area;
        }
    }
    NO_AREA
}

/// Claims this area, if it is free.
#[inline(always)]
fn claim(area: u32) -> bool {
    match SCRATCH.get_ptr_mut(area) {
        // SAFETY: the pointer comes from a successful lookup; array values live as long as the map.
        Some(scratch) => exchange(unsafe { &raw mut (*scratch).claimed }, 1) == 0,
        None => false,
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
