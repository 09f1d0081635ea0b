//! Claims scratch areas.
//!
//! A uprobe program can be preempted by another one on the same CPU, which would overwrite a per-CPU map value in use. Areas
//! are therefore claimed, by an atomic exchange (Linux 5.12). Each CPU has one, which is in its cache. A program that finds
//! it claimed by a preempted program takes one of a pool that all CPUs share. Threads start at different positions of the
//! pool, by thread id.
//!
//! Kernels without that exchange run these programs with preemption disabled (`trace_call_bpf` in kernel/trace/bpf_trace.c; sleepable
//! ones are of Linux 6.0), and no interrupt hits a probe of user memory. There, the CPU's own area is free at each entry.

use core::ptr;

use aya_ebpf::helpers::bpf_get_smp_processor_id;
use profiler_common::limits::{SCRATCH_SHARED, SCRATCH_STRIDE, SCRATCH_TRIES};

use crate::layout::Scratch;
use crate::maps::SCRATCH;
use crate::{asm, config};

/// A claimed area. [`release`](Self::release) must be called on every path.
pub(crate) struct Claim {
    /// Valid as long as the map, and not shared with other claims.
    pub(crate) scratch: *mut Scratch,
    /// Index of the area, for functions that the verifier checks separately: they cannot take the pointer as an argument.
    pub(crate) area: u32,
}

impl Claim {
    /// Claims an area, or returns `None` if too many preempted programs hold one.
    #[inline(always)]
    pub(crate) fn take(tid: u32) -> Option<Self> {
        let area = claim_area(tid);
        // Fails for `NO_AREA`, which is beyond the map.
        let scratch = SCRATCH.get_ptr_mut(area)?;
        Some(Self { scratch, area })
    }

    #[inline(always)]
    pub(crate) fn release(self) {
        // SAFETY: as in `take`. A plain store is enough: an aligned 64-bit store is not torn, and the next claim's exchange
        // orders what follows.
        unsafe { ptr::write_volatile(&raw mut (*self.scratch).claimed, 0) };
    }
}

/// Returned by [`claim_area`] if no area is free.
const NO_AREA: u32 = u32::MAX;

/// Claims an area and returns its index, or [`NO_AREA`]. A global function, so that the verifier checks the code after a
/// claim once and not once for each possible area.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn claim_area(tid: u32) -> u32 {
    // SAFETY: the helper takes no arguments.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let cpus = config::cpus();
    if cpu < cpus && claim(cpu) {
        return cpu;
    }
    if !config::atomics() {
        return NO_AREA;
    }
    for i in 0..SCRATCH_TRIES {
        let area = cpus.wrapping_add(tid.wrapping_add(i * SCRATCH_STRIDE) & (SCRATCH_SHARED - 1));
        if claim(area) {
            return area;
        }
    }
    NO_AREA
}

#[inline(always)]
fn claim(area: u32) -> bool {
    match SCRATCH.get_ptr_mut(area) {
        Some(scratch) => {
            // SAFETY: the pointer comes from a successful lookup; array values live as long as the map.
            let claimed = unsafe { &raw mut (*scratch).claimed };
            if config::atomics() {
                return asm::exchange(claimed, 1) == 0;
            }
            // SAFETY: as above.
            let is_free = unsafe { claimed.read_volatile() } == 0;
            asm::store(claimed, 1);
            is_free
        }
        None => false,
    }
}
