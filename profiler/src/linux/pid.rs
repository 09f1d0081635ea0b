//! Numbers of processes as system calls take them.

use crate::ids::Pid;

/// The number for the kernel; `None` for 0, which means others than a process there, and for what no process has.
pub(crate) fn raw(pid: Pid) -> Option<rustix::process::Pid> {
    i32::try_from(pid.0).ok().and_then(rustix::process::Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_processes_are_taken() {
        for (number, taken) in [(0, None), (1, Some(1)), (1 << 22, Some(1 << 22)), (1 << 31, None), (u32::MAX, None)] {
            assert_eq!(raw(Pid(number)).map(rustix::process::Pid::as_raw_pid), taken, "{number}");
        }
    }
}
