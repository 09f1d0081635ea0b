//! Which kills are made, and when: at named points, or as environment variables configure them at random times.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::case::{Backend, Case, KillTime, Mode, Role};
use super::random::Random;

/// Number of kills of a run with random times.
const KILLS: usize = 60;
/// Kills of a long run, by role.
const LONG: [(Role, usize); 5] =
    [(Role::Agent, 1000), (Role::Keeper, 200), (Role::Symbolizer, 200), (Role::Target, 100), (Role::Both, 100)];

/// The kills of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    seed: u64,
    /// Each with its point in time, unless it is random.
    kills: Vec<(Case, Option<KillTime>)>,
}

impl Plan {
    /// One kill of each mode and role, at the three events that can be observed from outside: the process to kill exists, probes
    /// are attached, recording ends. Backends and events alternate.
    pub fn of_named_points() -> Self {
        let points = [KillTime::Start, KillTime::Steady, KillTime::Detach].map(|point| point(Duration::ZERO));
        let mut kills = Vec::new();
        for (row, &mode) in Mode::ALL.iter().enumerate() {
            for (column, &role) in Role::ALL.iter().enumerate() {
                let backends = mode.backends();
                let backend = backends[(row + column) % backends.len()];
                let point = match role {
                    // It is started at the end.
                    Role::Symbolizer => points[2],
                    _ if mode.is_one_shot() => points[0],
                    _ => points[(row / points.len() + column) % points.len()],
                };
                let cases = Case::all(Some(mode), Some(backend), role);
                kills.extend(cases.into_iter().map(|case| (case, Some(point))));
            }
        }
        Self { seed: 1, kills }
    }

    /// Kills at random times, if `HEAPBPF_FAULTS_RANDOM` is set. `HEAPBPF_FAULTS_KILLS`, `…_LONG`, `…_SEED`, `…_MODE`,
    /// `…_BACKEND`, `…_ROLE` and `…_AT` correspond to the options of `cargo xtask faults`.
    ///
    /// # Errors
    ///
    /// When one of them is invalid.
    pub fn from_environment() -> Result<Option<Self>, String> {
        if std::env::var_os("HEAPBPF_FAULTS_RANDOM").is_none() {
            return Ok(None);
        }
        let role: Option<Role> = variable("ROLE")?;
        let long = std::env::var_os("HEAPBPF_FAULTS_LONG").is_some();
        let counts = match (variable("KILLS")?, role) {
            (Some(kills), Some(role)) => vec![(role, kills)],
            (Some(kills), None) => shares(kills),
            (None, _) if long => LONG.iter().copied().filter(|(it, _)| role.is_none_or(|role| role == *it)).collect(),
            (None, Some(role)) => vec![(role, KILLS)],
            (None, None) => shares(KILLS),
        };
        // The run prints its seed.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_secs());
        let seed = variable("SEED")?.unwrap_or(now);
        let at = variable("AT")?;
        let cases = random_cases(seed, &counts, variable("MODE")?, variable("BACKEND")?);
        Ok(Some(Self { seed, kills: cases.into_iter().map(|case| (case, at)).collect() }))
    }

    /// The seed that repeats the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn kills(&self) -> &[(Case, Option<KillTime>)] {
        &self.kills
    }
}

/// Numbers of kills by role, in random order. Combinations are equally frequent.
fn random_cases(seed: u64, counts: &[(Role, usize)], mode: Option<Mode>, backend: Option<Backend>) -> Vec<Case> {
    let mut random = Random::new(seed);
    let mut cases = Vec::new();
    for &(role, kills) in counts {
        let mut of_role = Case::all(mode, backend, role);
        random.shuffle(&mut of_role);
        // No mode or backend of this run may have the role.
        cases.extend(of_role.into_iter().cycle().take(kills));
    }
    random.shuffle(&mut cases);
    cases
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
        let cases = random_cases(1, &shares(60), None, None);
        assert_eq!(cases.len(), 60);
        assert_eq!(cases, random_cases(1, &shares(60), None, None));
        let of_agent = Case::all(None, None, Role::Agent);
        let fewest = cases.iter().filter(|case| case.role == Role::Agent).count() / of_agent.len();
        assert!(fewest > 0, "every combination is tested");
        for case in of_agent {
            let count = cases.iter().filter(|it| **it == case).count();
            assert!((fewest..=fewest + 1).contains(&count), "{count} times {case}");
        }
    }

    #[test]
    fn named_points_contain_every_mode_backend_role_and_point() {
        let plan = Plan::of_named_points();
        let cases: Vec<Case> = plan.kills.iter().map(|(case, _)| *case).collect();
        for &role in Role::ALL {
            for case in Case::all(None, None, role) {
                assert!(cases.iter().any(|it| (it.mode, it.role) == (case.mode, case.role)), "{case}");
                let is_tested = |it: &Case| (it.mode, it.backend) == (case.mode, case.backend);
                assert!(cases.iter().any(is_tested) || case.mode.is_inline(), "{case}");
            }
        }
        for point in ["start+0us", "steady+0us", "detach+0us"] {
            let point: KillTime = point.parse().expect("is valid");
            let with = |role| plan.kills.iter().any(|(case, at)| case.role == role && *at == Some(point));
            assert!([Role::Agent, Role::Keeper, Role::Target].into_iter().all(with), "{point}");
        }
    }
}
