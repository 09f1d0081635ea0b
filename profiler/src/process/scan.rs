//! Finds the processes that a selection means. Reads `/proc` and keeps nothing; any process may end while it is read.

use super::facts::ProcessFacts;
use super::filter::Selection;
use super::names::Names;
use super::process::{TargetError, running};
use crate::ids::{Identity, Pid};
use crate::linux::proc::stat::Stat;
use crate::linux::proc::{ProcError, cgroups, process};

/// The running processes that the selection matches, by rising number. Neither this process nor kernel threads, nor
/// what has ended and is not reaped. To be quick, it leaves out what it need not know to decide: the executable where
/// the arguments name the program, and control groups where none are selected.
///
/// Processes that are named by number and do not exist are left out: [`Process::open`](super::process::Process::open) says
/// of each what is wrong with it.
///
/// # Errors
///
/// If `/proc` cannot be listed.
pub(crate) fn scan(selection: &Selection) -> Result<Vec<ProcessFacts>, ProcError> {
    let mut pids = if selection.is_open() { process::all()? } else { selection.pids.clone() };
    pids.sort_unstable();
    pids.dedup();
    Ok(pids.into_iter().filter_map(|pid| examine(pid, selection)).collect())
}

/// Whether the selection means a process that has just begun, or the program that it has become.
///
/// # Errors
///
/// If there is no such process, it may not be read, has ended, is a kernel thread or this process.
pub(crate) fn means_beginner(pid: Pid, selection: &Selection) -> Result<bool, TargetError> {
    let facts = facts(pid, running(pid)?, selection)?;
    if is_still(&facts) { Ok(selection.matches_later(&facts)) } else { Err(TargetError::NotFound(pid)) }
}

/// The facts of a process if it matches. Reads what costs little first.
fn examine(pid: Pid, selection: &Selection) -> Option<ProcessFacts> {
    let stat = running(pid).ok()?;
    if !selection.is_large_enough(pid, stat.resident_bytes) {
        return None;
    }
    let facts = facts(pid, stat, selection).ok()?;
    (selection.matches(&facts) && is_still(&facts)).then_some(facts)
}

/// What the selection has to know of a process. It is the one that the first line is about if it [still](is_still) is then.
fn facts(pid: Pid, stat: Stat, selection: &Selection) -> Result<ProcessFacts, ProcError> {
    let arguments = process::arguments(pid)?;
    let executable = if Names::need_executable(&arguments) { process::executable(pid).ok() } else { None };
    let cgroups = if selection.cgroups.is_empty() { Vec::new() } else { cgroups::of(pid)? };
    Ok(ProcessFacts {
        identity: Identity { pid, start_ticks: stat.start_ticks },
        comm: stat.comm,
        arguments,
        executable,
        cgroups,
    })
}

/// Whether the number is still that of the process that the first line was about.
fn is_still(facts: &ProcessFacts) -> bool {
    Stat::read(facts.pid()).is_ok_and(|stat| stat.is_of(facts.identity))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::object::fixture::{Running, Workshop};

    fn selection(pattern: &str) -> Selection {
        Selection { patterns: vec![pattern.parse().expect("a pattern")], ..Selection::default() }
    }

    /// What is known of a process where control groups matter.
    fn known(pid: Pid) -> Result<ProcessFacts, TargetError> {
        let cgroups = vec!["/any".parse().expect("a path")];
        Ok(facts(pid, running(pid)?, &Selection { cgroups, ..Selection::default() })?)
    }

    fn found(selection: &Selection) -> Vec<Pid> {
        scan(selection).expect("/proc is mounted").iter().map(ProcessFacts::pid).collect()
    }

    /// A copy of `sleep` under a name that nothing else on the machine has.
    fn named_sleep(name: &str) -> (Workshop, Running) {
        let workshop = Workshop::new();
        let program = workshop.path(name);
        std::fs::copy("/bin/sleep", &program).expect("writable");
        let child = Running::sleep(&program);
        (workshop, child)
    }

    #[test]
    fn a_child_is_found_by_its_name_and_by_its_path() {
        let name = format!("heapbpf-scan-{}", std::process::id());
        let (workshop, child) = named_sleep(&format!("{name}@1.2"));
        let (path, glob) = (workshop.path("heapbpf-scan-*"), format!("{name}*"));
        for pattern in [name.as_str(), &glob, path.to_str().expect("plain")] {
            assert_eq!(found(&selection(pattern)), [child.pid()], "{pattern}");
        }
        assert_eq!(found(&selection("heapbpf-scan")), []);
        let excluded = Selection { exclude: selection("*-scan-*").patterns, ..selection(&glob) };
        assert_eq!(found(&excluded), []);
        let large = Selection { min_rss_bytes: 1 << 40, ..selection(&glob) };
        assert_eq!(found(&large), []);
        let by_number = Selection { pids: vec![child.pid()], ..large };
        assert_eq!(found(&by_number), [child.pid()]);
    }

    #[test]
    fn facts_of_a_child_are_whole() {
        let (workshop, mut child) = named_sleep("heapbpf-facts");
        let pid = child.pid();
        let facts = known(pid).expect("it runs");
        assert!(is_still(&facts));
        assert_eq!(facts.identity.start_ticks, process::start_time(pid).expect("it runs"));
        assert_eq!(facts.comm, "heapbpf-facts");
        let program = workshop.path("heapbpf-facts");
        assert_eq!(facts.arguments, [program.to_str().expect("plain"), "1000"]);
        // Its arguments name it.
        assert_eq!((facts.executable.as_ref(), process::executable(pid).expect("it runs")), (None, program));
        assert!(running(pid).expect("it runs").resident_bytes > 0 && !facts.cgroups.is_empty(), "{facts:?}");
        child.end();
        assert!(!is_still(&facts));
        let error = known(pid).expect_err("it has ended");
        assert!(error.to_string().starts_with(&format!("no process `{}`", child.pid())), "{error}");
    }

    #[test]
    fn the_program_of_a_deleted_file_has_its_path() {
        let (workshop, child) = named_sleep("heapbpf-deleted");
        let program = workshop.path("heapbpf-deleted");
        std::fs::remove_file(&program).expect("ours");
        assert_eq!(process::executable(child.pid()).expect("it runs"), program);
    }

    #[test]
    fn beginners_are_meant_by_their_names() {
        let name = format!("heapbpf-beginner-{}", std::process::id());
        let (_workshop, mut child) = named_sleep(&name);
        let means = |pattern: &str| means_beginner(child.pid(), &selection(pattern)).expect("it runs");
        assert!(means(&name) && !means("heapbpf-other"));
        // Its number says nothing of a program that it becomes.
        let by_number = Selection { pids: vec![child.pid()], ..Selection::default() };
        assert!(!means_beginner(child.pid(), &by_number).expect("it runs"));
        child.end();
        assert!(means_beginner(child.pid(), &selection(&name)).is_err());
    }

    #[test]
    fn a_child_is_found_by_its_control_group() {
        let child = Running::sleep(Path::new("/bin/sleep"));
        let place = known(child.pid()).expect("it runs").cgroups;
        let path = &place.first().expect("it is in one").path;
        let cgroups = vec![path.parse().expect("a path")];
        assert!(found(&Selection { cgroups, ..Selection::default() }).contains(&child.pid()));
        let cgroups = vec!["/there/is/no/such/group".parse().expect("a path")];
        assert_eq!(found(&Selection { cgroups, ..Selection::default() }), []);
    }

    #[test]
    fn all_are_those_that_can_be_targets() {
        let sleeping = Running::sleep(Path::new("/bin/sleep"));
        let mut ended = Command::new("true").spawn().expect("true starts");
        let zombie = Pid(ended.id());
        while !Stat::read(zombie).expect("it is not reaped").has_ended() {
            std::thread::yield_now();
        }
        let all = found(&Selection { all: true, ..Selection::default() });
        assert!(matches!(known(zombie), Err(TargetError::Ended(_))));
        ended.wait().expect("it ended");
        assert!(all.is_sorted_by(|first, second| first < second), "{all:?}");
        assert!(all.contains(&Pid(1)) && all.contains(&sleeping.pid()), "{all:?}");
        assert!(!all.contains(&Pid(std::process::id())) && !all.contains(&zombie), "{all:?}");
    }

    #[test]
    fn kernel_threads_are_no_targets() {
        // `kthreadd`, where the PID namespace is the initial one.
        if process::in_initial_pid_namespace().expect("/proc is mounted") {
            assert!(matches!(known(Pid(2)), Err(TargetError::KernelThread(_))));
            let all = found(&Selection { all: true, ..Selection::default() });
            assert!(!all.contains(&Pid(2)));
        }
        assert!(matches!(known(Pid(std::process::id())), Err(TargetError::Myself(_))));
    }

    #[test]
    fn a_rewritten_title_is_found_in_a_living_process() {
        let name = format!("heapbpf-titled-{}", std::process::id());
        // Without arguments behind it, as titles are.
        let mut child = Command::new("bash")
            .args(["-c", &format!("exec -a '{name}: 15/main: worker' cat")])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("bash starts");
        let pid = Pid(child.id());
        while !process::executable(pid).expect("it runs").ends_with("cat")
            || process::arguments(pid).expect("it runs").is_empty()
        {
            std::thread::yield_now();
        }
        let patterns = [name.clone(), format!("{name}: *worker"), format!("{name}: 15/main*")];
        let matched = patterns.map(|pattern| found(&selection(&pattern)));
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert_eq!(matched, [[pid], [pid], [pid]].map(Vec::from));
    }
}
