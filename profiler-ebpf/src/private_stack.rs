//! Keeps the kernel from giving a program a private stack.
//!
//! Since Linux 6.13 the verifier may give a program of type kprobe or raw tracepoint a *private stack*: one stack per CPU
//! instead of the kernel stack of the running task (`bpf_enable_priv_stack` in `kernel/bpf/verifier.c`). It does so when a
//! subprogram uses 64 bytes of stack or more. Uprobe programs are preemptible and have no recursion guard
//! (`uprobe_prog_run` in `kernel/trace/bpf_trace.c`, `bpf_prog_run_array_uprobe` in `include/linux/bpf.h`), so a second
//! thread that hits a probe on the same CPU overwrites the stack of the first, and the kernel dereferences a wrong pointer.
//!
//! `check_max_stack_depth` in `kernel/bpf/verifier.c` denies private stacks to a program that contains a tail call, also
//! in code that is never reached. Older kernels have no private stacks and accept the tail call. The agent verifies on
//! the loaded program that it has no private stack (`profiler/src/bpf/program.rs`).

use core::ffi::c_void;

use aya_ebpf::helpers::bpf_tail_call;
use aya_ebpf::maps::ProgramArray;

use crate::config;

/// A tail call that is never reached. Must be part of the entry point itself: in a subprogram, a tail call limits the
/// stack of its callers to 256 bytes.
///
/// All programs that share `array` must have one program type and one attach type (`bpf_prog_map_compatible` in
/// `kernel/bpf/core.c`).
#[inline(always)]
pub(crate) fn deny(ctx: *mut c_void, array: &'static ProgramArray) {
    if config::tail_call() {
        // SAFETY: `ctx` is the program's own context. The array is empty, so the call would return here.
        unsafe { bpf_tail_call(ctx, (&raw const *array).cast_mut().cast(), 0) };
    }
}
