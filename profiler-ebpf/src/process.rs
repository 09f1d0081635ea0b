//! What happens to processes: they fork, they run other programs, their threads end. Tells the agent of the first two, as
//! far as targets are concerned, forgets what a thread can no longer finish, and a process with its last thread.
//!
//! The programs are raw tracepoints (Linux 4.17), which need no tracefs. In all three the running task is the one that
//! forks, executes or ends.

use core::ffi::c_void;

use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel};
use profiler_common::counter::Counter;
use profiler_common::record::{ExecRecord, ForkRecord, RecordHeader, RecordKind};
use profiler_common::target::{BORROWS_MEMORY, FOLLOWS_FORKS};

use crate::maps::{INFLIGHT, PROCESSES, TARGETS};
use crate::{config, counter, emit, live};

/// The arguments of a raw tracepoint: words, in the order of its prototype.
pub(crate) struct Arguments(*const u64);

impl Arguments {
    #[inline(always)]
    pub(crate) fn new(ctx: *mut c_void) -> Self {
        Self(ctx.cast())
    }

    #[inline(always)]
    fn first(&self) -> u64 {
        // SAFETY: all three tracepoints have an argument; the verifier checks the access.
        unsafe { *self.0 }
    }

    #[inline(always)]
    fn second(&self) -> u64 {
        // SAFETY: as above: forks and execs have two.
        unsafe { *self.0.add(1) }
    }
}

/// A `struct task_struct` of the kernel, read at the offsets that its type information gives.
struct Task(u64);

impl Task {
    #[inline(always)]
    fn tgid(&self) -> Option<u32> {
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel((self.0 + config::task_tgid_offset()) as *const u32) }.ok()
    }

    /// The address of what describes its memory: equal when it is the same memory.
    #[inline(always)]
    fn memory(&self) -> Option<u64> {
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel((self.0 + config::task_mm_offset()) as *const u64) }.ok()
    }

    /// Whether a task that ends is the last of its process. The kernel counts it off before it tells that it ends (`do_exit`
    /// in `kernel/exit.c`; since 6.16 it tells earlier, and still after that). Of two that end at once, both may be.
    #[inline(always)]
    fn is_last(&self) -> bool {
        let signal_offset = config::task_signal_offset();
        if signal_offset == 0 {
            return false;
        }
        // SAFETY: the helper checks the address.
        let Ok(signal) = (unsafe { bpf_probe_read_kernel((self.0 + signal_offset) as *const u64) }) else {
            return false;
        };
        // SAFETY: as above.
        let live = unsafe { bpf_probe_read_kernel((signal + config::signal_live_offset()) as *const u32) };
        live == Ok(0)
    }
}

/// Whether the agent keeps books of the process, so that what it allocates can be entered in them.
#[inline(always)]
pub(crate) fn is_target(tgid: u32) -> bool {
    match TARGETS.get_ptr(&tgid) {
        // SAFETY: the pointer comes from a successful lookup.
        Some(flags) => (unsafe { *flags }) & BORROWS_MEMORY == 0,
        None => false,
    }
}

/// `sched_process_fork(parent, child)`: the child exists and has not run yet.
#[inline(always)]
pub(crate) fn forked(arguments: &Arguments) {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let Some(flags) = TARGETS.get_ptr(&tgid) else {
        return;
    };
    // SAFETY: the pointer comes from a successful lookup.
    let flags = unsafe { *flags };
    if flags & FOLLOWS_FORKS == 0 {
        return;
    }
    let (parent, child) = (Task(arguments.first()), Task(arguments.second()));
    let (Some(child_tgid), Some(parent_memory), Some(memory)) = (child.tgid(), parent.memory(), child.memory()) else {
        counter::raise(Counter::ForkMissed);
        return;
    };
    if child_tgid != tgid {
        follow(tgid, flags, child_tgid, memory == parent_memory);
    }
}

/// The child's entries are made before the record: what the agent writes when it has read that shall stay.
#[inline(always)]
fn follow(tgid: u32, flags: u32, child: u32, shares_memory: bool) {
    // So that the child's own forks are seen, which may come before the agent knows of it.
    let memory_flag = if shares_memory { BORROWS_MEMORY } else { 0 };
    if TARGETS.insert(&child, &(flags & !BORROWS_MEMORY | memory_flag), u64::from(BPF_ANY)).is_err() {
        counter::raise(Counter::TargetsFull);
    }
    // A child with a copy of the memory has its parent's code at the same addresses, so its stacks unwind from the first
    // call on. One that shares the memory executes soon. Without room its stacks end with `MissingModule`.
    if !shares_memory && let Some(mappings) = PROCESSES.get_ptr(&tgid) {
        // SAFETY: the pointer comes from a successful lookup.
        let _ = PROCESSES.insert(&child, unsafe { &*mappings }, u64::from(BPF_ANY));
    }
    let told = emit::urgent(ForkRecord {
        header: RecordHeader::new(RecordKind::Fork, tgid),
        time_ns: live::now(),
        child,
        shares_memory: u32::from(shares_memory),
    });
    if !told {
        counter::raise(Counter::ForkMissed);
        // The agent will never take out what it does not know of, and numbers of processes are used again.
        let _ = TARGETS.remove(&child);
        let _ = PROCESSES.remove(&child);
    }
}

/// `sched_process_exec(task, old_pid, bprm)`: the old program is gone, the new one has not run yet.
#[inline(always)]
pub(crate) fn executed(arguments: &Arguments) {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // A thread that is not the first takes over the first one's number by an exec.
    let tid = arguments.second() as u32;
    abandon_call(u64::from(tgid) << 32 | u64::from(tid));
    if TARGETS.get_ptr(&tgid).is_none() && !config::watch_execs() {
        return;
    }
    let _ = PROCESSES.remove(&tgid);
    let header = RecordHeader::new(RecordKind::Exec, tgid);
    let record = ExecRecord { header, time_ns: live::now(), tid, reserved: 0 };
    if !emit::urgent(record) {
        counter::raise(Counter::ExecMissed);
    }
}

/// `sched_process_exit(task)`: a thread ends, perhaps the process's last.
#[inline(always)]
pub(crate) fn ended(arguments: &Arguments) {
    let thread = bpf_get_current_pid_tgid();
    abandon_call(thread);
    let tgid = (thread >> 32) as u32;
    // The agent does not meet all that are entered here: a child of `vfork` may end without an exec. Who is no target costs
    // one more lookup without a lock.
    if TARGETS.get_ptr(&tgid).is_some() && Task(arguments.first()).is_last() {
        let _ = TARGETS.remove(&tgid);
        let _ = PROCESSES.remove(&tgid);
    }
}

/// Forgets the hooked call that a thread is in: it will not return, so it hands out no block and nothing is lost.
///
/// Every thread of the machine comes by here. Looking first costs those that are in no call, which is nearly all, one
/// lookup without a lock; deleting at once would take the bucket's lock for each, and asking for targets first would
/// cost the same lookup and another one after it for targets.
#[inline(always)]
fn abandon_call(thread: u64) {
    if INFLIGHT.get_ptr(&thread).is_some() {
        let _ = INFLIGHT.remove(&thread);
    }
}
