//! Return addresses that probes have replaced.
//!
//! While a call is followed to its return, the return address on the stack is that of the kernel's trampoline, and the thread's list of
//! `struct return_instance` (include/linux/uprobes.h) has the original one. A walk that begins in such a call, as that of a page fault may,
//! passes the trampoline. The names of the members are the same from Linux 3.10 to 7.x.

use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::bpf_get_current_task;
use profiler_common::arch::CALL_BYTES;

use crate::maps::SCRATCH;
use crate::{config, frames};

/// Calls of a thread that are followed at once, as far as they are searched. The kernel follows 64 at most (`MAX_URETPROBE_DEPTH`).
const FOLLOWED_MAX: usize = 16;

/// If the frame that was added last to the stack of a claimed area is the trampoline, replaces it by the caller as the walk's next frame.
/// Returns 1 then, otherwise 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn restore_return(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return 0;
    };
    if config::task_returns_offset() == 0 {
        return 0;
    }
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let stack = unsafe { (*scratch).walk.sp }.wrapping_sub(CALL_BYTES);
    // SAFETY: the helper takes no arguments.
    let task = unsafe { bpf_get_current_task() };
    let Some(of_probes) = word(task + config::task_returns_offset()) else {
        return 0;
    };
    let mut next = word(of_probes.wrapping_add(config::returns_list_offset()));
    for _ in 0..FOLLOWED_MAX {
        let instance = match next {
            Some(instance) if instance != 0 => instance,
            _ => return 0,
        };
        if word(instance + config::return_stack_offset()) == Some(stack) {
            let Some(original) = word(instance + config::return_address_offset()) else {
                return 0;
            };
            frames::remove_last(scratch);
            // SAFETY: as above.
            unsafe { (*scratch).walk.ip = original };
            return 1;
        }
        next = word(instance + config::return_next_offset());
    }
    0
}

#[inline(always)]
fn word(address: u64) -> Option<u64> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(address as *const u64) }.ok()
}
