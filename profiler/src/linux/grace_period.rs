//! Waits for BPF programs that run now.

use std::thread;
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};

/// What a preempted program may need to run to its end, where the kernel cannot be asked.
const PATIENCE: Duration = Duration::from_millis(50);

/// Returns when each program at a probe that was running has ended, also those that are preempted: they run as RCU readers
/// (`uprobe_prog_run` in kernel/trace/bpf_trace.c, `bpf_prog_run_array_uprobe` in include/linux/bpf.h), and
/// `MEMBARRIER_CMD_GLOBAL` waits for a grace period (kernel/sched/membarrier.c, Linux 4.3), which takes 10 to 30 ms. It does not on
/// machines with one CPU or with `nohz_full`; there this sleeps for a while.
pub(crate) fn wait_for_programs() {
    let is_alone = thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
    if is_alone || membarrier(MembarrierCommand::Global).is_err() {
        thread::sleep(PATIENCE);
    }
}
