//! Of [`helpers.rs`](../../src/helpers.rs): the current thread is that of the [`Process`](crate::Process) that walks a stack.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::{ptr, slice};

use profiler_common::limits::CODE_PERIOD_SHIFT;

use crate::maps::CURRENT;

pub(crate) const BPF_RB_FORCE_WAKEUP: u32 = 2;
pub(crate) const BPF_RB_NO_WAKEUP: u32 = 1;

const EFAULT: i64 = -14;

pub(crate) fn bpf_get_current_pid_tgid() -> u64 {
    CURRENT.with(|current| u64::from(current.thread.tgid) << 32 | u64::from(current.thread.tid))
}

/// Each call is in another period, so that no code is refused.
pub(crate) unsafe fn bpf_ktime_get_ns() -> u64 {
    CURRENT.with(|current| {
        current.periods += 1;
        current.periods << CODE_PERIOD_SHIFT
    })
}

pub(crate) unsafe fn bpf_get_current_task() -> u64 {
    0
}

/// Reads the thread pointer, whatever the address.
pub(crate) unsafe fn bpf_probe_read_kernel(_source: *const u64) -> Result<u64, i64> {
    Ok(CURRENT.with(|current| current.thread.pointer))
}

pub(crate) unsafe fn bpf_probe_read_user<T: Copy>(source: *const T) -> Result<T, i64> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: as long as the value.
    match unsafe { read_user(value.as_mut_ptr().cast(), size_of::<T>() as u32, source.cast()) } {
        // SAFETY: integers, of which all bytes are written.
        0 => Ok(unsafe { value.assume_init() }),
        error => Err(error),
    }
}

/// # Safety
///
/// `target` must have `bytes` bytes.
pub(crate) unsafe fn read_user(target: *mut c_void, bytes: u32, source: *const c_void) -> i64 {
    // SAFETY: as the caller guarantees.
    unsafe { ptr::write_bytes(target.cast::<u8>(), 0, bytes as usize) };
    // SAFETY: as above.
    let target = unsafe { slice::from_raw_parts_mut(target.cast::<u8>(), bytes as usize) };
    let is_read = CURRENT.with(|current| {
        current.reads += 1;
        current.memory.read(source as u64, target)
    });
    if is_read { 0 } else { EFAULT }
}
