//! The number of kills of each kind, from environment variables.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::case::{Backend, Case, KillTime, Mode, Role};
use super::random::Random;

/// Number of kills of a run that is not configured, and its time limit, which reduces their number on a busy machine.
const KILLS: usize = 60;
const TIME_MAX: Duration = Duration::from_secs(90);
/// Kills of a long run, by role.
const LONG: [(Role, usize); 5] =
    [(Role::Agent, 1000), (Role::Keeper, 200), (Role::Symbolizer, 200), (Role::Target, 100), (Role::Both, 100)];

/// Configuration of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    seed: u64,
    mode: Option<Mode>,
    backend: Option<Backend>,
    counts: Vec<(Role, usize)>,
    at: Option<KillTime>,
    time_max: Option<Duration>,
}

impl Plan {
    /// Reads `HEAPBPF_FAULTS_KILLS`, `…_LONG`, `…_SEED`, `…_MODE`, `…_BACKEND`, `…_ROLE` and `…_AT`, which correspond to
    /// the options of `cargo xtask faults`.
    ///
    /// # Errors
    ///
    /// When one of them is invalid.
    pub fn from_environment() -> Result<Self, String> {
        let role: Option<Role> = variable("ROLE")?;
        let long = std::env::var_os("HEAPBPF_FAULTS_LONG").is_some();
        let kills = variable("KILLS")?;
        let time_max = (kills.is_none() && !long).then_some(TIME_MAX);
        let counts = match (kills, role) {
            (Some(kills), Some(role)) => vec![(role, kills)],
            (Some(kills), None) => shares(kills),
            (None, _) if long => LONG.iter().copied().filter(|(it, _)| role.is_none_or(|role| role == *it)).collect(),
            (None, Some(role)) => vec![(role, KILLS)],
            (None, None) => shares(KILLS),
        };
        // The run prints its seed.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_secs());
        Ok(Self {
            seed: variable("SEED")?.unwrap_or(now),
            mode: variable("MODE")?,
            backend: variable("BACKEND")?,
            counts,
            at: variable("AT")?,
            time_max,
        })
    }

    /// Number of kills.
    pub fn kills(&self) -> usize {
        self.counts.iter().map(|(_, kills)| kills).sum()
    }

    /// The seed that repeats the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn time_max(&self) -> Option<Duration> {
        self.time_max
    }

    /// The point in time of all kills, if it is configured.
    pub(super) fn at(&self) -> Option<KillTime> {
        self.at
    }

    /// All kills in random order. Combinations are equally frequent.
    pub(super) fn cases(&self) -> Vec<Case> {
        let mut random = Random::new(self.seed);
        let mut cases = Vec::new();
        for &(role, kills) in &self.counts {
            let mut of_role = Case::all(self.mode, self.backend, role);
            random.shuffle(&mut of_role);
            // No mode or backend of this run may have the role.
            cases.extend(of_role.into_iter().cycle().take(kills));
        }
        random.shuffle(&mut cases);
        cases
    }
}

/// Kills by role, from their total.
fn shares(kills: usize) -> Vec<(Role, usize)> {
    let (keeper, symbolizer, target, both) = (kills * 2 / 15, kills / 10, kills / 15, kills / 15);
    vec![
        (Role::Agent, kills - keeper - symbolizer - target - both),
        (Role::Keeper, keeper),
        (Role::Symbolizer, symbolizer),
        (Role::Target, target),
        (Role::Both, both),
    ]
}

fn variable<T: FromStr<Err: ToString>>(name: &str) -> Result<Option<T>, String> {
    let name = format!("HEAPBPF_FAULTS_{name}");
    let Ok(text) = std::env::var(&name) else { return Ok(None) };
    text.parse().map(Some).map_err(|error: T::Err| format!("{name}: {}", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_equally_frequent() {
        assert_eq!(shares(60).iter().map(|(_, kills)| kills).sum::<usize>(), 60);
        let plan = Plan { seed: 1, mode: None, backend: None, counts: shares(60), at: None, time_max: None };
        let cases = plan.cases();
        assert_eq!((cases.len(), plan.kills()), (60, 60));
        assert_eq!(cases, plan.cases());
        let of_agent = Case::all(None, None, Role::Agent);
        let fewest = cases.iter().filter(|case| case.role == Role::Agent).count() / of_agent.len();
        assert!(fewest > 0, "every combination is tested");
        for case in of_agent {
            let count = cases.iter().filter(|it| **it == case).count();
            assert!((fewest..=fewest + 1).contains(&count), "{count} times {case}");
        }
    }
}
