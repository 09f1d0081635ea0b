//! Of [`config.rs`](../../src/config.rs): globals as a session sets them.

pub(crate) fn unwind_by_tables() -> bool {
    true
}

/// Stacks of calls are walked.
pub(crate) fn faults() -> bool {
    false
}

/// Not 0: known. [`bpf_probe_read_kernel`](crate::helpers::bpf_probe_read_kernel) reads nothing else.
pub(crate) fn task_thread_pointer_offset() -> u64 {
    8
}
