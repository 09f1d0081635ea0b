//! Jobs of shells: process groups that are alone in their session when their shell exits.

use heapbpf_base::ids::Pid;

use crate::proc::process;
use crate::proc::stat::Stat;

/// Whether the group of a process gets SIGHUP if a process of it is stopped while its last link exits, such as the shell of a
/// background job (`kill_orphaned_pgrp` in kernel/exit.c). A link is the parent of a process of the group, outside of the group
/// and in its session. The group in the foreground of a terminal is hung up with its shell in any case, so it does not count.
/// True if that is unknown.
pub fn may_be_hung_up(pid: Pid) -> bool {
    let (Ok(process), Ok(all)) = (Stat::read(pid), process::all()) else { return true };
    let mut members = all.into_iter().filter_map(|pid| Stat::read(pid).ok()).filter(|it| it.group == process.group);
    process.foreground != process.group && members.any(|member| member.has_link())
}

impl Stat {
    fn has_link(&self) -> bool {
        Self::read(self.parent).is_ok_and(|parent| parent.group != self.group && parent.session == self.session)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use rustix::process::{Signal, kill_process};

    use super::*;
    use crate::pidfd::raw_pid;

    /// Prints its PID, and waits.
    const SHELL: &str = "echo $$; exec sleep 1000";

    fn check(command: &mut Command, expected: bool) {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program exists");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("text");
        let pid = Pid(line.trim().parse().expect("a number"));
        let found = may_be_hung_up(pid);
        kill_process(raw_pid(pid).expect("a valid PID"), Signal::KILL).expect("it waits");
        let _ = child.kill();
        child.wait().expect("a child");
        assert_eq!(found, expected, "{command:?}");
    }

    #[test]
    fn the_group_of_a_background_job_may_be_hung_up() {
        check(Command::new("sh").args(["-c", SHELL]).process_group(0), true);
        assert!(may_be_hung_up(Pid(u32::MAX)));
    }

    #[test]
    fn the_only_group_of_a_session_may_not_be_hung_up() {
        check(Command::new("setsid").args(["sh", "-c", SHELL]), false);
        check(Command::new("setsid").args(["sh", "-c", "sh -c \"$0\"; true", SHELL]), false);
    }

    /// An interactive shell in a terminal of its own has jobs.
    #[test]
    fn the_group_in_the_foreground_of_a_terminal_does_not_count() {
        for (job, expected) in [("$JOB", false), ("$JOB & wait", true)] {
            let mut script = Command::new("script");
            // A job in the background that reads from the terminal is stopped, which ends the shell.
            let line = job.replace("$JOB", "sh -c 'echo $$; exec sleep 1000'");
            script.env("LINE", line).args(["--quiet", "--return", "--command"]);
            check(script.args(["bash --norc -ic 'eval \"$LINE\"; true' 2>/dev/null", "/dev/null"]), expected);
        }
    }
}
