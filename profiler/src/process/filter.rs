//! Which processes are targets. Pure: it judges [`ProcessFacts`], and [`scan`](super::scan) finds them.

use super::cgroup::Cgroup;
use super::facts::ProcessFacts;
use super::pattern::Pattern;
use crate::ids::Pid;

/// The choice that a user made on the command line. Without any it matches nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Processes by number. What is named so is a target whatever else is asked for: neither `exclude` nor
    /// `min_rss_bytes` takes it out.
    pub pids: Vec<Pid>,
    /// Programs: a process that one of these matches.
    pub patterns: Vec<Pattern>,
    /// Control groups: a process in one of these.
    pub cgroups: Vec<Cgroup>,
    /// Every process.
    pub all: bool,
    /// But none that one of these matches.
    pub exclude: Vec<Pattern>,
    /// But none that has less memory in use when it is looked at. A process that begins has next to none: it becomes a
    /// target when it has grown.
    pub min_rss_bytes: u64,
}

impl std::fmt::Display for Selection {
    /// As it was asked for: `redis*, nginx`, `every process`.
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
    /// Whether the process is a target, however much memory it has.
    pub fn matches(&self, facts: &ProcessFacts) -> bool {
        self.names_pid(facts.pid()) || self.matches_later(facts)
    }

    /// Whether a process that starts later is a target, or a program that a process becomes. Numbers are those of processes
    /// that run already: who has one of them later is somebody else.
    pub fn matches_later(&self, facts: &ProcessFacts) -> bool {
        let names = facts.names();
        let chosen = self.all
            || self.patterns.iter().any(|pattern| pattern.matches(&names))
            || self.cgroups.iter().any(|cgroup| cgroup.contains(&facts.cgroups));
        chosen && !self.exclude.iter().any(|pattern| pattern.matches(&names))
    }

    /// Whether a process that was found running has enough memory in use to be a target.
    pub fn is_large_enough(&self, pid: Pid, resident_bytes: u64) -> bool {
        resident_bytes >= self.min_rss_bytes || self.names_pid(pid)
    }

    /// Whether processes that start later can match.
    pub fn is_open(&self) -> bool {
        self.all || !self.patterns.is_empty() || !self.cgroups.is_empty()
    }

    /// Whether a process may be meant that has just called exec.
    pub fn means_beginners(&self) -> bool {
        self.is_open() && self.min_rss_bytes == 0
    }

    /// The patterns and control groups that matched none of these processes. No error, as a match may start later, but worth
    /// a word.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Identity, StartTime};
    use crate::linux::proc::cgroups::Membership;

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
    fn parts_of_a_selection_add_up_and_exclusions_take_away() {
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
    fn what_is_named_by_number_is_always_a_target() {
        let exclude = ["redis*", "post*"].map(|text| text.parse().expect("a pattern")).to_vec();
        let selection = Selection { pids: vec![Pid(11)], exclude, min_rss_bytes: 1 << 30, ..Selection::default() };
        check(&selection, &[11]);
        assert!(selection.is_large_enough(Pid(11), 5));
        assert!(!selection.is_large_enough(Pid(12), (1 << 30) - 1));
        assert!(selection.is_large_enough(Pid(12), 1 << 30));
    }

    #[test]
    fn a_choice_of_numbers_is_closed() {
        let closed = Selection { pids: vec![Pid(11)], exclude: pattern("x"), ..Selection::default() };
        assert!(!closed.is_open() && !Selection::default().is_open());
        for open in [
            Selection { all: true, ..closed.clone() },
            Selection { patterns: pattern("x"), ..closed.clone() },
            Selection { cgroups: vec!["/".parse().expect("a path")], ..closed },
        ] {
            assert!(open.is_open() && open.means_beginners(), "{open:?}");
            assert!(!Selection { min_rss_bytes: 1, ..open }.means_beginners());
        }
    }

    #[test]
    fn what_matches_nothing_is_told() {
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
