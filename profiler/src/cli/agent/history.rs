//! Decides how each process is recorded: by the rules of the configuration, and by the cost of earlier recordings.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heapbpf_base::ids::{Identity, Pid};
use heapbpf_linux::proc::hierarchy::{self, is_relative};
use heapbpf_linux::proc::process::Membership;

use super::config::{Config, Rule};
use crate::process::cgroup;
use crate::process::selection::ProcessFacts;
use crate::session::{Engine, Policy, Treatment};

/// Maximum number of remembered programs. Beyond it, programs whose time is over soonest are forgotten.
const PROGRAMS_MAX: usize = 4096;
/// Maximum factor of the time until a program is recorded as before.
const BACK_OFF_MAX: u32 = 32;
/// Reason for skipping a process that a rule for control groups might match.
const UNKNOWN_GROUP: &str =
    "its control group cannot be determined from this container, and a rule of the configuration skips groups";
/// Maximum number of processes remembered for a program.
const PROCESSES_MAX: usize = 16;

/// Results of the recordings so far, which outlive the recordings and the configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct History(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    programs: HashMap<Program, Hot>,
    /// Processes of the present recording.
    current: HashMap<Pid, (Identity, Program, Engine)>,
}

/// A program and its control group: the same in all processes of a service or a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Program {
    comm: String,
    cgroup: String,
}

/// A program one of whose processes has exceeded its budget.
#[derive(Clone, Debug)]
struct Hot {
    until: Instant,
    /// Number of recordings in succession in which the budget was exceeded.
    count: u32,
    /// Whether the budget was exceeded with the inline engine, too.
    is_inline: bool,
    processes: Vec<Identity>,
}

impl Hot {
    fn add(&mut self, identity: Identity, engine: Engine) {
        if !self.processes.contains(&identity) {
            self.processes.push(identity);
            // Processes that have exited must not accumulate.
            let excess = self.processes.len().saturating_sub(PROCESSES_MAX);
            self.processes.drain(..excess);
        }
        self.is_inline |= engine == Engine::Inline;
    }

    /// Whether a process counts as hot. One of several processes may be the only hot one; after two, all are taken to be.
    fn includes(&self, identity: Identity) -> bool {
        self.processes.len() > 1 || self.processes.contains(&identity)
    }
}

impl History {
    /// Returns the policy of one recording.
    pub(super) fn policy(&self, config: &Config) -> Rules {
        self.state().current.clear();
        Rules {
            history: self.clone(),
            rules: config.rule.clone(),
            engine: config.record.engine,
            hot: config.budget.hot,
        }
    }

    /// Notes the end of a recording in which these processes exceeded their budgets. Returns for each the time until it is
    /// recorded as before.
    pub(super) fn note(&self, exceeded: &[Pid], retry_after: Duration, now: Instant) -> Vec<(Pid, Duration)> {
        let mut state = self.state();
        // A program gets one pause, however many of its processes exceeded their budgets.
        let mut pauses = HashMap::new();
        let noted = exceeded.iter().filter_map(|pid| {
            let (identity, program, engine) = state.current.get(pid)?.clone();
            let pause = *pauses.entry(program.clone()).or_insert_with(|| state.exceeded(&program, retry_after, now));
            if let Some(hot) = state.programs.get_mut(&program) {
                hot.add(identity, engine);
            }
            Some((*pid, pause))
        });
        let noted = noted.collect();
        // Programs that were recorded again within their budgets start anew.
        let State { programs, current } = &mut *state;
        programs.retain(|program, hot| hot.until > now || !current.values().any(|(_, own, _)| own == program));
        noted
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Notes a recording in which processes of the program exceeded their budgets. Returns the time until it is recorded as
    /// before.
    fn exceeded(&mut self, program: &Program, retry_after: Duration, now: Instant) -> Duration {
        if self.programs.len() >= PROGRAMS_MAX && !self.programs.contains_key(program) {
            let soonest = self.programs.iter().min_by_key(|(_, hot)| hot.until).map(|(program, _)| program.clone());
            soonest.map(|program| self.programs.remove(&program));
        }
        let new = Hot { until: now, count: 0, is_inline: false, processes: Vec::new() };
        let hot = self.programs.entry(program.clone()).or_insert(new);
        let pause = retry_after.saturating_mul(2_u32.saturating_pow(hot.count).min(BACK_OFF_MAX));
        hot.count = hot.count.saturating_add(1);
        hot.until = hot.until.max(now + pause);
        pause
    }
}

/// The rules of a configuration, with the history.
#[derive(Debug)]
pub(super) struct Rules {
    history: History,
    rules: Vec<Rule>,
    engine: Engine,
    hot: Option<Engine>,
}

impl Rules {
    /// Whether any process may be recorded by the inline engine.
    pub(super) fn may_inline(&self) -> bool {
        let of_rules = self.rules.iter().map(|rule| rule.engine);
        of_rules.chain([Some(self.engine), self.hot]).any(|engine| engine == Some(Engine::Inline))
    }

    fn decide(&self, facts: &ProcessFacts, cgroups: &[Membership], now: Instant) -> Treatment {
        let names = facts.names();
        let is_unknown = cgroups.is_empty() || cgroups.iter().any(|group| is_relative(&group.path));
        // A process that a rule may skip must not be recorded because the rule cannot be evaluated.
        let may_skip = |rule: &Rule| is_unknown && rule.engine.is_none() && !rule.cgroups.is_empty();
        let matches = |rule: &&Rule| {
            rule.commands.iter().any(|pattern| pattern.matches(&names))
                || rule.cgroups.iter().any(|group| group.contains(cgroups))
                || may_skip(rule)
        };
        let engine = match self.rules.iter().find(matches) {
            Some(rule) if may_skip(rule) => return Treatment::Skip(UNKNOWN_GROUP.to_owned()),
            Some(Rule { engine: None, .. }) => {
                return Treatment::Skip("a rule of the configuration skips it".to_owned());
            }
            Some(Rule { engine: Some(engine), .. }) => *engine,
            None => self.engine,
        };
        let cgroup = cgroup::of_memory(cgroups).unwrap_or_default().to_owned();
        let program = Program { comm: facts.comm.clone(), cgroup };
        let mut state = self.history.state();
        let known = state.programs.get(&program).filter(|hot| hot.until > now && hot.includes(facts.identity));
        let engine = match (known, self.hot) {
            (None, _) => engine,
            (Some(hot), Some(Engine::Inline)) if engine == Engine::Trap && !hot.is_inline => Engine::Inline,
            (Some(hot), _) => {
                let left = hot.until.saturating_duration_since(now);
                return Treatment::Skip(format!(
                    "its probes exceeded the budget earlier; it is recorded again in {left:.0?}"
                ));
            }
        };
        state.current.insert(facts.pid(), (facts.identity, program, engine));
        Treatment::Record(engine)
    }
}

impl Policy for Rules {
    fn treatment(&self, facts: &ProcessFacts) -> Treatment {
        let cgroups = hierarchy::cgroups(facts.pid()).unwrap_or_default();
        self.decide(facts, &cgroups, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use heapbpf_base::ids::StartTime;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn facts(pid: u32, comm: &str) -> ProcessFacts {
        ProcessFacts {
            identity: Identity { pid: Pid(pid), start_ticks: StartTime(7) },
            comm: comm.to_owned(),
            arguments: vec![comm.to_owned()],
            executable: None,
            cgroups: Vec::new(),
        }
    }

    fn rules(history: &History, text: &str) -> Rules {
        let text = format!("[record]\nengine = \"trap\"\n{text}");
        history.policy(&Config::parse("test.toml", &text).expect("valid"))
    }

    fn is_skipped(treatment: &Treatment) -> bool {
        matches!(treatment, Treatment::Skip(_))
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let text =
            "[[rule]]\ncommands = [\"redis*\"]\nengine = \"inline\"\n[[rule]]\ncgroups = [\"/a\"]\nengine = \"skip\"\n";
        let rules = rules(&History::default(), text);
        let group = [Membership { controllers: String::new(), path: "/a/b".to_owned() }];
        let decide = |comm, cgroups: &[Membership]| rules.decide(&facts(1, comm), cgroups, Instant::now());
        assert_eq!(decide("redis-server", &group), Treatment::Record(Engine::Inline));
        assert!(is_skipped(&decide("nginx", &group)));
        let other = [Membership { controllers: String::new(), path: "/b".to_owned() }];
        assert_eq!(decide("nginx", &other), Treatment::Record(Engine::Trap));
        assert!(rules.may_inline());
        // Which group it is cannot be determined.
        for unknown in [Vec::new(), vec![Membership { controllers: String::new(), path: "/../x".to_owned() }]] {
            assert_eq!(decide("nginx", &unknown), Treatment::Skip(UNKNOWN_GROUP.to_owned()));
            assert_eq!(decide("redis-server", &unknown), Treatment::Record(Engine::Inline));
        }
    }

    #[test]
    fn a_process_beyond_its_budget_is_left_alone_for_a_while_that_doubles() {
        let (history, start) = (History::default(), Instant::now());
        let mut now = start;
        for expected in [1, 2, 4, 8, 16, 32, 32] {
            let rules = rules(&history, "");
            assert_eq!(rules.decide(&facts(1, "a"), &[], now), Treatment::Record(Engine::Trap));
            assert_eq!(history.note(&[Pid(1)], HOUR, now), [(Pid(1), expected * HOUR)]);
            let decide = |after: Duration, pid| rules.decide(&facts(pid, "a"), &[], now + after);
            assert!(is_skipped(&decide(Duration::from_secs(60), 1)));
            // Another process of the program may be cheap.
            assert_eq!(decide(Duration::from_secs(60), 2), Treatment::Record(Engine::Trap));
            now += expected * HOUR;
        }
    }

    #[test]
    fn two_expensive_processes_stand_for_their_program() {
        let (history, now) = (History::default(), Instant::now());
        let rules = rules(&history, "");
        for pid in [1, 2] {
            assert_eq!(rules.decide(&facts(pid, "a"), &[], now), Treatment::Record(Engine::Trap));
        }
        assert_eq!(history.note(&[Pid(1), Pid(2)], HOUR, now), [(Pid(1), HOUR), (Pid(2), HOUR)]);
        assert!(is_skipped(&rules.decide(&facts(3, "a"), &[], now)));
        assert_eq!(rules.decide(&facts(4, "b"), &[], now), Treatment::Record(Engine::Trap));
    }

    #[test]
    fn expensive_processes_are_recorded_inline_where_that_is_allowed() {
        let (history, now) = (History::default(), Instant::now());
        let rules = rules(&history, "[budget]\nhot = \"inline\"\n");
        let decide = || rules.decide(&facts(1, "a"), &[], now);
        assert_eq!(decide(), Treatment::Record(Engine::Trap));
        let _ = history.note(&[Pid(1)], HOUR, now);
        assert_eq!(decide(), Treatment::Record(Engine::Inline));
        let _ = history.note(&[Pid(1)], HOUR, now);
        assert!(is_skipped(&decide()));
    }

    #[test]
    fn a_program_that_keeps_its_budget_starts_anew() {
        let (history, now) = (History::default(), Instant::now());
        for (time, exceeded, expected) in [(0, true, Some(1)), (1, true, Some(2)), (3, false, None), (4, true, Some(1))]
        {
            let (rules, now) = (rules(&history, ""), now + time * HOUR);
            assert_eq!(rules.decide(&facts(1, "a"), &[], now), Treatment::Record(Engine::Trap));
            let noted = history.note(if exceeded { &[Pid(1)] } else { &[] }, HOUR, now);
            assert_eq!(noted.first().map(|(_, pause)| *pause), expected.map(|hours: u32| hours * HOUR));
        }
    }

    #[test]
    fn the_number_of_programs_is_bounded() {
        let (history, now) = (History::default(), Instant::now());
        let rules = rules(&history, "");
        for pid in 0..u32::try_from(PROGRAMS_MAX).expect("small") + 10 {
            rules.decide(&facts(pid, &pid.to_string()), &[], now);
            let _ = history.note(&[Pid(pid)], HOUR, now);
        }
        assert_eq!(history.state().programs.len(), PROGRAMS_MAX);
    }
}
