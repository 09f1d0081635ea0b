//! Whether the memory that a function requests may be refused now. An exception cannot be unwound past a return address that a
//! probe has replaced, so the return of a function that throws then is not probed.
//!
//! The kernel refuses memory by the number of a process's mappings, and by their size (`do_mmap` and `may_expand_vma` in mm/mmap.c,
//! `split_vma` in mm/vma.c, up to 7.3). All are compared with a margin, for what the allocator maps beyond the request, and
//! for other threads that map memory before this call does.

use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::bpf_get_current_task;

use crate::config;

/// Margins: a part of the limit, and at least this many bytes or mappings.
const PART_SHIFT: u64 = 4;
const MARGIN_BYTES: u64 = 64 << 20;
const MARGIN_MAPPINGS: u64 = 1024;
/// The process locks all that it maps (`mlockall`), for which there is another limit (`VM_LOCKED` in include/linux/mm.h).
const LOCKED: u64 = 0x2000;
/// Numbers of limits (include/uapi/asm-generic/resource.h), which have 16 bytes each.
const DATA: u64 = 2;
const ADDRESS_SPACE: u64 = 9;
const LIMIT_BYTES: u64 = 16;

/// Without a size, the call fails.
#[inline(always)]
pub(crate) fn may_refuse(size_bytes: Option<u64>) -> bool {
    let Some(size_bytes) = size_bytes else {
        return true;
    };
    // The verifier removes the rest from programs for links that do not probe such functions.
    if config::mm_map_count_offset() == 0 || size_bytes >= config::throw_safe_bytes() {
        return true;
    }
    is_near_limit(size_bytes).unwrap_or(true)
}

#[inline(always)]
fn is_near_limit(size_bytes: u64) -> Option<bool> {
    // SAFETY: the helper takes no arguments.
    let task = unsafe { bpf_get_current_task() };
    let memory = read(task + config::task_mm_offset())?;
    let signal = read(task + config::task_signal_offset())?;
    // SAFETY: the helper checks the address.
    let mappings: u32 =
        unsafe { bpf_probe_read_kernel((memory + config::mm_map_count_offset()) as *const u32) }.ok()?;
    let mappings_max = config::map_count_max();
    if mappings as u64 + MARGIN_MAPPINGS + (mappings_max >> PART_SHIFT) > mappings_max {
        return Some(true);
    }
    if read(memory + config::mm_def_flags_offset())? & LOCKED != 0 {
        return Some(true);
    }
    let total_bytes = read(memory + config::mm_total_vm_offset())? << config::page_shift();
    let data_bytes = read(memory + config::mm_data_vm_offset())? << config::page_shift();
    let limits = signal + config::signal_limits_offset();
    let is_near = |used_bytes: u64, limit_bytes: u64| {
        // Twice: some allocators map a larger range, to align it, and then unmap parts.
        let wanted_bytes = used_bytes + 2 * size_bytes + MARGIN_BYTES + (limit_bytes >> PART_SHIFT);
        wanted_bytes > limit_bytes
    };
    Some(
        is_near(total_bytes, read(limits + ADDRESS_SPACE * LIMIT_BYTES)?)
            || is_near(data_bytes, read(limits + DATA * LIMIT_BYTES)?)
            // Free addresses need not be adjacent.
            || is_near(total_bytes, read(memory + config::mm_task_size_offset())? / 2),
    )
}

#[inline(always)]
fn read(address: u64) -> Option<u64> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(address as *const u64) }.ok()
}
