//! Forks, execs and thread exits. Reports forks and execs of targets to the agent, and removes the unfinished call of an
//! exiting thread and all state of a process with its last thread.
//!
//! The programs are raw tracepoints (Linux 4.17), which need no tracefs. In all three, the current task is the one that
//! forks, executes or exits.
//!
//! Tracepoints are preemptible on Linux 7.x (include/linux/tracepoint.h, `__DECLARE_TRACE`; 6.12 disables preemption there).
//! The kernel does not run a program while another task's run of it is preempted on the same CPU
//! (`bpf_prog_get_recursion_context`), and the wake-up of the agent by an urgent record preempts it: with eight processes that
//! fork at once, 6 % of forks were missed. So forks are observed where the kernel holds a run queue's lock, and the other two
//! tracepoints have several copies of their program, each with its own recursion guard. The first copy that runs does the
//! work.

use core::ffi::c_void;

use aya_ebpf::bindings::{BPF_ANY, BPF_EXIST};
use aya_ebpf::helpers::generated::bpf_get_current_task;
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel};
use profiler_common::counter::Counter;
use profiler_common::record::{ExecRecord, ForkRecord, RecordHeader, RecordKind};
use profiler_common::target::{BORROWS_MEMORY, FOLLOWS_FORKS, REPORTS_FREES};
use profiler_common::unwind::ProcessMappings;

use crate::maps::{EXECS, MAPPING_STATES, PROCESSES, TARGETS, count};
use crate::{config, emit, inflight, mapped};

/// The arguments of a raw tracepoint: words, in the order of its prototype.
pub(crate) struct Arguments(*const u64);

impl Arguments {
    #[inline(always)]
    pub(crate) fn new(ctx: *mut c_void) -> Self {
        Self(ctx.cast())
    }

    #[inline(always)]
    pub(crate) fn first(&self) -> u64 {
        // SAFETY: all of them have an argument; the verifier checks the access.
        unsafe { *self.0 }
    }

    #[inline(always)]
    pub(crate) fn third(&self) -> u64 {
        // SAFETY: as above; only called for tracepoints that have three.
        unsafe { *self.0.add(2) }
    }

    #[inline(always)]
    pub(crate) fn second(&self) -> u64 {
        // SAFETY: as above; only called for tracepoints that have two or more.
        unsafe { *self.0.add(1) }
    }
}

/// A `struct task_struct` of the kernel, read at the offsets from its BTF.
pub(crate) struct Task(u64);

impl Task {
    #[inline(always)]
    pub(crate) fn current() -> Self {
        // SAFETY: the helper takes no arguments.
        Self(unsafe { bpf_get_current_task() })
    }

    /// Whether page faults of the kernel on behalf of the task fail at once. So do those of BPF programs that read user memory.
    #[inline(always)]
    pub(crate) fn has_faults_disabled(&self) -> bool {
        // The read itself disables them once (`copy_from_kernel_nofault` in mm/maccess.c).
        const BY_READ: u32 = 1;
        let offset = config::task_faults_disabled_offset();
        // SAFETY: the helper checks the address.
        offset == 0 || unsafe { bpf_probe_read_kernel((self.0 + offset) as *const u32) } != Ok(BY_READ)
    }

    #[inline(always)]
    fn tgid(&self) -> Option<u32> {
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel((self.0 + config::task_tgid_offset()) as *const u32) }.ok()
    }

    /// Address of its `struct mm_struct`: equal if and only if the memory is shared.
    #[inline(always)]
    pub(crate) fn memory(&self) -> Option<u64> {
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel((self.0 + config::task_mm_offset()) as *const u64) }.ok()
    }

    /// Whether an exiting task is the last of its process. The kernel decrements the count before the tracepoint (`do_exit` in
    /// `kernel/exit.c`; since 6.16 the tracepoint is earlier, but still after that). If two exit at once, both may be last.
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
    let (parent, child) = (Task::current(), Task(arguments.first()));
    let (Some(child_tgid), Some(parent_memory), Some(memory)) = (child.tgid(), parent.memory(), child.memory()) else {
        count(Counter::ForkMissed);
        return;
    };
    if child_tgid != tgid {
        follow(tgid, flags, child_tgid, memory == parent_memory);
    }
}

/// Adds the child to the maps, then writes the record, so that the agent's own map updates, which follow the record, are kept.
#[inline(always)]
fn follow(tgid: u32, flags: u32, child: u32, shares_memory: bool) {
    // The child may fork before the agent knows it.
    let memory_flag = if shares_memory { BORROWS_MEMORY } else { 0 };
    if TARGETS.insert(&child, &(flags & !(BORROWS_MEMORY | REPORTS_FREES) | memory_flag), u64::from(BPF_ANY)).is_err() {
        count(Counter::TargetsFull);
    }
    // A child with a copy of the memory has its parent's code at the same addresses, so its stacks unwind from the first
    // call on. One that shares the memory calls exec soon. If the map is full, its stacks end with `MissingModule`.
    if !shares_memory && let Some(mappings) = PROCESSES.get_ptr(&tgid) {
        // SAFETY: the pointer comes from a successful lookup.
        let mappings = unsafe { &*mappings };
        mapped::share(tgid, child, mappings.serial);
        let _ = PROCESSES.insert(&child, mappings, u64::from(BPF_ANY));
    }
    let sent = emit::urgent(ForkRecord {
        header: RecordHeader::new(RecordKind::Fork, tgid),
        time_ns: emit::now_ns(),
        child,
        shares_memory: u32::from(shares_memory),
    });
    if !sent {
        count(Counter::ForkMissed);
        // The agent would never remove a process that it does not know, and process ids are reused.
        let _ = TARGETS.remove(&child);
        let _ = PROCESSES.remove(&child);
        let _ = MAPPING_STATES.remove(&child);
    }
}

/// `sched_process_exec(task, old_pid, bprm)`: the old program is gone, the new one has not run yet. One of several copies.
///
/// For each exec, the kernel runs or skips the first copy, and counts skips. So the number of missed execs is the skips plus
/// [`Counter::ExecRuns`] minus [`Counter::ExecsSeen`].
#[inline(always)]
pub(crate) fn executed(arguments: &Arguments, copy: u32) {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    if copy == 0 {
        count(Counter::ExecRuns);
    }
    if is_handled(tgid, arguments) {
        return;
    }
    count(Counter::ExecsSeen);
    // An exec by a thread other than the first gives that thread the first one's id.
    let tid = arguments.second() as u32;
    inflight::abandon(u64::from(tgid) << 32 | u64::from(tid));
    if TARGETS.get_ptr(&tgid).is_none() && !config::all_execs() {
        return;
    }
    // The agent may read the new program's mappings long after its first calls.
    let _ = PROCESSES.insert(&tgid, &ProcessMappings::UNREAD, u64::from(BPF_EXIST));
    let _ = MAPPING_STATES.remove(&tgid);
    let header = RecordHeader::new(RecordKind::Exec, tgid);
    let record = ExecRecord { header, time_ns: emit::now_ns(), tid, reserved: 0 };
    if !emit::urgent(record) {
        count(Counter::ExecMissed);
    }
}

/// Whether another copy has handled this exec; marks it as handled. An exec gives its process a new `mm`, which distinguishes
/// it from the process's previous exec.
#[inline(always)]
fn is_handled(tgid: u32, arguments: &Arguments) -> bool {
    // Without the kernel's BTF, the agent attaches one copy only.
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

/// `sched_process_exit(task)`: a thread exits, possibly the process's last. One of several copies: running twice is harmless.
#[inline(always)]
pub(crate) fn exited(arguments: &Arguments, _copy: u32) {
    let thread = bpf_get_current_pid_tgid();
    // It will not return, so it allocates no block and nothing is lost.
    inflight::abandon(thread);
    let tgid = (thread >> 32) as u32;
    // The agent does not learn of all processes in these maps: a child of `vfork` may exit without an exec. For threads of
    // other processes this costs two lock-free lookups.
    let is_known = TARGETS.get_ptr(&tgid).is_some() || EXECS.get_ptr(&tgid).is_some();
    if is_known && Task(arguments.first()).is_last() {
        let _ = TARGETS.remove(&tgid);
        let _ = PROCESSES.remove(&tgid);
        let _ = MAPPING_STATES.remove(&tgid);
        let _ = EXECS.remove(&tgid);
    }
}
