//! What happens to processes: they fork, they run other programs, their threads end. Tells the agent of the first two, as
//! far as targets are concerned, forgets what a thread can no longer finish, and a process with its last thread.
//!
//! The programs are raw tracepoints (Linux 4.17), which need no tracefs. In all three the running task is the one that
//! forks, executes or ends.
//!
//! Tracepoints are preemptible on Linux 7.x (include/linux/tracepoint.h, `__DECLARE_TRACE`; 6.12 disables preemption there).
//! The kernel does not run a program while another task's run of it is preempted on the same CPU
//! (`bpf_prog_get_recursion_context`), and the wake-up of the agent that an urgent record causes is what preempts it: with
//! eight processes that fork at once, 6 % of forks were missed. So forks are seen where the kernel holds a run queue's lock,
//! and the other two tracepoints have several copies of their program, each with a recursion guard of its own. The first
//! copy that runs does the work.

use core::ffi::c_void;

use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::helpers::generated::bpf_get_current_task;
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel};
use profiler_common::counter::Counter;
use profiler_common::record::{ExecRecord, ForkRecord, RecordHeader, RecordKind};
use profiler_common::target::{BORROWS_MEMORY, FOLLOWS_FORKS};

use crate::maps::{EXECS, INFLIGHT, PROCESSES, TARGETS};
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
        // SAFETY: as above: execs have three.
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

/// `sched_wakeup_new(child)`: the child exists and has not run yet. The parent calls it (`wake_up_new_task` in
/// kernel/sched/core.c) under the lock of a run queue, so it is never preempted, unlike `sched_process_fork`.
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
    // SAFETY: the helper takes no arguments.
    let (parent, child) = (Task(unsafe { bpf_get_current_task() }), Task(arguments.first()));
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

/// `sched_process_exec(task, old_pid, bprm)`: the old program is gone, the new one has not run yet. One of several copies.
///
/// The kernel runs or skips the first copy for each exec, and counts what it skips. So the execs that no copy has seen are
/// what it skipped and [`Counter::ExecRuns`] together, less [`Counter::ExecsSeen`].
#[inline(always)]
pub(crate) fn executed(arguments: &Arguments, copy: u32) {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    if copy == 0 {
        counter::raise(Counter::ExecRuns);
    }
    if is_handled(tgid, arguments) {
        return;
    }
    counter::raise(Counter::ExecsSeen);
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

/// Whether another copy has handled this exec; from now on one has. An exec gives its process new memory, which
/// distinguishes it from the process's last one.
#[inline(always)]
fn is_handled(tgid: u32, arguments: &Arguments) -> bool {
    // Without the kernel's type information, the agent attaches one copy alone.
    if config::task_mm_offset() == 0 {
        return false;
    }
    let memory = Task(arguments.first()).memory().unwrap_or(0);
    if let Some(handled) = EXECS.get_ptr(&tgid)
        // SAFETY: the pointer comes from a successful lookup.
        && unsafe { *handled } == memory
    {
        return true;
    }
    let _ = EXECS.insert(&tgid, &memory, u64::from(BPF_ANY));
    false
}

/// `sched_process_exit(task)`: a thread ends, perhaps the process's last. One of several copies: doing it twice does no harm.
#[inline(always)]
pub(crate) fn ended(arguments: &Arguments, _copy: u32) {
    let thread = bpf_get_current_pid_tgid();
    abandon_call(thread);
    let tgid = (thread >> 32) as u32;
    // The agent does not meet all that are entered here: a child of `vfork` may end without an exec. For threads of other
    // processes this costs two lookups without a lock.
    let is_entered = TARGETS.get_ptr(&tgid).is_some() || EXECS.get_ptr(&tgid).is_some();
    if is_entered && Task(arguments.first()).is_last() {
        let _ = TARGETS.remove(&tgid);
        let _ = PROCESSES.remove(&tgid);
        let _ = EXECS.remove(&tgid);
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
