//! Which processes can be stopped, and by which number their memory is read.

use crate::collect::CollectError;
use crate::ids::{Pid, Tid};
use crate::linux::proc::stat::Stat;
use crate::linux::proc::tasks;

/// A thread of a process by whose number its memory can be asked for: the process's own unless its first thread has ended.
///
/// # Errors
///
/// If the process is a part of the kernel, or heapbpf, or has ended.
pub(crate) fn living(pid: Pid) -> Result<Pid, CollectError> {
    if pid.0 == std::process::id() {
        return Err(CollectError::Itself(pid));
    }
    let own = std::fs::read_link("/proc/self").unwrap_or_default();
    if own.as_os_str() != std::process::id().to_string().as_str() {
        return Err(CollectError::Elsewhere(pid));
    }
    match Stat::read(pid)? {
        stat if stat.kernel_thread => Err(CollectError::Kernel(pid)),
        stat if !stat.has_ended() => Ok(pid),
        _ => {
            let lives = |tid: &Tid| tasks::status(pid, *tid).is_some_and(|status| !matches!(status.state, 'Z' | 'X'));
            let tid = tasks::threads(pid)?.into_iter().find(lives).ok_or(CollectError::Ended(pid))?;
            Ok(Pid(tid.0))
        }
    }
}
