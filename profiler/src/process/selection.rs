//! Selection of targets on the command line.

use std::path::PathBuf;
use std::time::Duration;

use heapbpf_base::ids::{Identity, Pid};
use heapbpf_base::shown;
use heapbpf_linux::clock;
use heapbpf_linux::proc::ProcError;
use heapbpf_linux::proc::hierarchy;
use heapbpf_linux::proc::process::{self, Membership};
use heapbpf_linux::proc::stat::Stat;

use crate::process::cgroup::Cgroup;
use crate::process::pattern::{Names, Pattern};
use crate::process::target::{TargetError, running};

/// The selection on the command line. The default matches nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Targets by PID, regardless of `exclude` and `min_rss_bytes`.
    pub pids: Vec<Pid>,
    pub patterns: Vec<Pattern>,
    pub cgroups: Vec<Cgroup>,
    pub all: bool,
    pub exclude: Vec<Pattern>,
    /// Minimum resident memory at the time of a scan: a new process becomes a target when it has grown.
    pub min_rss_bytes: u64,
    /// Minimum time since the start of the process, at the time of a scan.
    pub age_min: Duration,
}

impl std::fmt::Display for Selection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.all {
            return f.write_str("every process");
        }
        let pids = self.pids.iter().map(ToString::to_string);
        let patterns = self.patterns.iter().map(|pattern| format!("`{pattern}`"));
        let cgroups = self.cgroups.iter().map(|cgroup| format!("cgroup `{cgroup}`"));
        f.write_str(&pids.chain(patterns).chain(cgroups).collect::<Vec<_>>().join(", "))
    }
}

impl Selection {
    pub fn matches(&self, facts: &ProcessFacts) -> bool {
        self.names_pid(facts.pid()) || self.matches_later(facts)
    }

    /// Whether a process that starts later, or a program that one executes, matches. PIDs do not count: they may be reused.
    pub fn matches_later(&self, facts: &ProcessFacts) -> bool {
        let names = facts.names();
        let chosen = self.all
            || self.patterns.iter().any(|pattern| pattern.matches(&names))
            || self.cgroups.iter().any(|cgroup| cgroup.contains(&facts.cgroups));
        chosen && !self.exclude.iter().any(|pattern| pattern.matches(&names))
    }

    pub fn is_large_enough(&self, pid: Pid, resident_bytes: u64) -> bool {
        resident_bytes >= self.min_rss_bytes || self.names_pid(pid)
    }

    fn is_old_enough(&self, pid: Pid, stat: &Stat, boot_ns: u64) -> bool {
        self.age_min.is_zero() || stat.age(boot_ns) >= self.age_min || self.names_pid(pid)
    }

    pub fn is_open(&self) -> bool {
        self.all || !self.patterns.is_empty() || !self.cgroups.is_empty()
    }

    pub fn matches_new(&self) -> bool {
        self.is_open() && self.min_rss_bytes == 0 && self.age_min.is_zero()
    }

    /// The part of the selection that matches no process. It is not an error, because a match may start later, but worth a
    /// warning.
    pub fn unmatched(&self, found: &[ProcessFacts]) -> Self {
        let mut unmatched = Self { patterns: self.patterns.clone(), cgroups: self.cgroups.clone(), ..Self::default() };
        for facts in found {
            let names = facts.names();
            unmatched.patterns.retain(|pattern| !pattern.matches(&names));
            unmatched.cgroups.retain(|cgroup| !cgroup.contains(&facts.cgroups));
        }
        unmatched
    }

    fn names_pid(&self, pid: Pid) -> bool {
        self.pids.contains(&pid)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    pub identity: Identity,
    /// The kernel's name of the process, at most 15 bytes.
    pub comm: String,
    /// Arguments of the process, which may have overwritten them.
    pub arguments: Vec<String>,
    /// Path of the executable in the process's mount namespace. `None` if it is unreadable or was not needed.
    pub executable: Option<PathBuf>,
    /// Groups of the process; empty if they were not needed.
    pub cgroups: Vec<Membership>,
}

impl ProcessFacts {
    pub fn pid(&self) -> Pid {
        self.identity.pid
    }

    pub fn command(&self) -> String {
        self.arguments.first().unwrap_or(&self.comm).clone()
    }

    pub fn names(&self) -> Names {
        let executable = self.executable.as_ref().map(|path| shown::os_text(path));
        Names::of(&self.arguments, executable.as_deref(), &self.comm)
    }
}

/// Facts of all matching processes by rising PID, without this process, kernel threads and zombies. Skips selected PIDs that do
/// not exist.
pub(crate) fn scan(selection: &Selection) -> Result<Vec<ProcessFacts>, ProcError> {
    let mut pids = if selection.is_open() { process::all()? } else { selection.pids.clone() };
    pids.sort_unstable();
    pids.dedup();
    let boot_ns = clock::boot_ns();
    Ok(pids.into_iter().filter_map(|pid| examine(pid, selection, boot_ns)).collect())
}

pub(crate) fn matches_new(pid: Pid, selection: &Selection) -> Result<bool, TargetError> {
    let facts = facts(pid, running(pid)?, selection)?;
    if is_same(&facts) { Ok(selection.matches_later(&facts)) } else { Err(TargetError::NotFound(pid)) }
}

/// Returns the facts of a process if it matches. Reads cheap properties first.
fn examine(pid: Pid, selection: &Selection, boot_ns: u64) -> Option<ProcessFacts> {
    let stat = running(pid).ok()?;
    if !selection.is_large_enough(pid, stat.resident_bytes) || !selection.is_old_enough(pid, &stat, boot_ns) {
        return None;
    }
    let facts = facts(pid, stat, selection).ok()?;
    (selection.matches(&facts) && is_same(&facts)).then_some(facts)
}

/// Reads the facts of a process. They belong to the process of `stat` if [`is_same`] holds afterwards.
fn facts(pid: Pid, stat: Stat, selection: &Selection) -> Result<ProcessFacts, ProcError> {
    let arguments = process::arguments(pid)?;
    let executable = if Names::need_executable(&arguments) { process::executable(pid).ok() } else { None };
    let cgroups = if selection.cgroups.is_empty() { Vec::new() } else { hierarchy::cgroups(pid)? };
    Ok(ProcessFacts {
        identity: Identity { pid, start_ticks: stat.start_ticks },
        comm: stat.comm,
        arguments,
        executable,
        cgroups,
    })
}

fn is_same(facts: &ProcessFacts) -> bool {
    Stat::read(facts.pid()).is_ok_and(|stat| stat.is_of(facts.identity))
}

#[cfg(test)]
mod tests {
    use heapbpf_base::ids::{Identity, StartTime};
    use heapbpf_linux::proc::process::Membership;

    use super::*;

    fn process(pid: u32, command: &str, cgroup: &str) -> ProcessFacts {
        ProcessFacts {
            identity: Identity { pid: Pid(pid), start_ticks: StartTime(100) },
            comm: "comm".to_owned(),
            arguments: vec![command.to_owned(), "-v".to_owned()],
            executable: Some("/bin/tool".into()),
            cgroups: vec![Membership { controllers: String::new(), path: cgroup.to_owned() }],
        }
    }

    fn check(selection: &Selection, expected: &[u32]) {
        let processes = [
            process(10, "/usr/bin/redis-server", "/system.slice/redis.service"),
            process(11, "redis-cli", "/user.slice"),
            process(12, "postgres", "/system.slice/postgresql.service"),
        ];
        let matched: Vec<u32> =
            processes.iter().filter(|facts| selection.matches(facts)).map(|facts| facts.pid().0).collect();
        assert_eq!(matched, expected, "{selection:?}");
    }

    fn pattern(text: &str) -> Vec<Pattern> {
        vec![text.parse().expect("a pattern")]
    }

    #[test]
    fn parts_of_a_selection_are_united_and_exclusions_subtracted() {
        check(&Selection::default(), &[]);
        let all = Selection { all: true, ..Selection::default() };
        check(&all, &[10, 11, 12]);
        check(&Selection { exclude: pattern("redis*"), ..all }, &[12]);
        let redis = Selection { patterns: pattern("redis*"), ..Selection::default() };
        check(&redis, &[10, 11]);
        check(&Selection { exclude: pattern("redis-cli"), ..redis.clone() }, &[10]);
        let slice = vec!["/system.slice".parse().expect("a path")];
        check(&Selection { cgroups: slice, ..redis }, &[10, 11, 12]);
    }

    #[test]
    fn a_selected_pid_is_always_a_target() {
        let exclude = ["redis*", "post*"].map(|text| text.parse().expect("a pattern")).to_vec();
        let selection = Selection { pids: vec![Pid(11)], exclude, min_rss_bytes: 1 << 30, ..Selection::default() };
        check(&selection, &[11]);
        assert!(selection.is_large_enough(Pid(11), 5));
        assert!(!selection.is_large_enough(Pid(12), (1 << 30) - 1));
        assert!(selection.is_large_enough(Pid(12), 1 << 30));
    }

    #[test]
    fn a_selection_of_pids_is_closed() {
        let closed = Selection { pids: vec![Pid(11)], exclude: pattern("x"), ..Selection::default() };
        assert!(!closed.is_open() && !Selection::default().is_open());
        for open in [
            Selection { all: true, ..closed.clone() },
            Selection { patterns: pattern("x"), ..closed.clone() },
            Selection { cgroups: vec!["/".parse().expect("a path")], ..closed },
        ] {
            assert!(open.is_open() && open.matches_new(), "{open:?}");
            assert!(!Selection { min_rss_bytes: 1, ..open }.matches_new());
        }
    }

    #[test]
    fn unmatched_parts_are_reported() {
        let selection = Selection {
            patterns: ["redis*", "nginx"].map(|text| text.parse().expect("a pattern")).to_vec(),
            cgroups: ["/user.slice", "/gone"].map(|text| text.parse().expect("a path")).to_vec(),
            ..Selection::default()
        };
        let unmatched = selection.unmatched(&[process(11, "redis-cli", "/user.slice")]);
        assert_eq!(unmatched.patterns.iter().map(ToString::to_string).collect::<Vec<_>>(), ["nginx"]);
        assert_eq!(unmatched.cgroups.iter().map(ToString::to_string).collect::<Vec<_>>(), ["/gone"]);
        assert_eq!(unmatched.to_string(), "`nginx`, cgroup `/gone`");
    }
}

#[cfg(test)]
mod scan_tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use heapbpf_base::testing::{Running, Workshop};

    fn selection(pattern: &str) -> Selection {
        Selection { patterns: vec![pattern.parse().expect("a pattern")], ..Selection::default() }
    }

    /// Properties of a process, including control groups.
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
    fn a_child_is_found_by_name_and_path() {
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
    fn facts_of_a_child_are_complete() {
        let (workshop, mut child) = named_sleep("heapbpf-facts");
        let pid = child.pid();
        let facts = known(pid).expect("it runs");
        assert!(is_same(&facts));
        assert_eq!(facts.identity.start_ticks, Stat::read(pid).expect("it runs").start_ticks);
        assert_eq!(facts.comm, "heapbpf-facts");
        let program = workshop.path("heapbpf-facts");
        assert_eq!(facts.arguments, [program.to_str().expect("plain"), "1000"]);
        // Its arguments name the program.
        assert_eq!((facts.executable.as_ref(), process::executable(pid).expect("it runs")), (None, program));
        assert!(running(pid).expect("it runs").resident_bytes > 0 && !facts.cgroups.is_empty(), "{facts:?}");
        child.end();
        assert!(!is_same(&facts));
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
    fn new_processes_match_by_name() {
        let name = format!("heapbpf-beginner-{}", std::process::id());
        let (_workshop, mut child) = named_sleep(&name);
        let matches = |pattern: &str| matches_new(child.pid(), &selection(pattern)).expect("it runs");
        assert!(matches(&name) && !matches("heapbpf-other"));
        // A PID does not select a program that the process executes later.
        let by_number = Selection { pids: vec![child.pid()], ..Selection::default() };
        assert!(!matches_new(child.pid(), &by_number).expect("it runs"));
        child.end();
        assert!(matches_new(child.pid(), &selection(&name)).is_err());
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
    fn every_process_means_all_that_can_be_profiled() {
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
    fn kernel_threads_are_not_targets() {
        // `kthreadd`, where the PID namespace is the initial one.
        if process::in_initial_pid_namespace().expect("/proc is mounted") {
            assert!(matches!(known(Pid(2)), Err(TargetError::KernelThread(_))));
            let all = found(&Selection { all: true, ..Selection::default() });
            assert!(!all.contains(&Pid(2)));
        }
        assert!(matches!(known(Pid(std::process::id())), Err(TargetError::Myself(_))));
    }

    #[test]
    fn an_overwritten_title_is_found() {
        let name = format!("heapbpf-titled-{}", std::process::id());
        // Without further arguments, like a title.
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
