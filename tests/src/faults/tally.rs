//! Counts the results of a run, and formats them as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::aftermath::Harm;
use super::case::{Case, Role};
use super::injection::Outcome;

/// Kills of one kind.
#[derive(Clone, Debug, Default)]
struct Row {
    kills: u64,
    harmed: u64,
    by_harm: BTreeMap<Harm, u64>,
}

impl Row {
    fn add(&mut self, other: &Self) {
        self.kills += other.kills;
        self.harmed += other.harmed;
        other.by_harm.iter().for_each(|(&harm, count)| *self.by_harm.entry(harm).or_default() += count);
    }

    fn cells(&self) -> Vec<String> {
        let counts = [self.kills, self.harmed].into_iter();
        let harms = Harm::ALL.iter().map(|harm| self.by_harm.get(harm).copied().unwrap_or_default());
        counts.chain(harms).map(|count| count.to_string()).collect()
    }
}

/// Counts by mode, backend and role.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    rows: BTreeMap<Case, Row>,
    /// A paragraph for each kill that did harm.
    harms: Vec<String>,
    missed: u64,
    slowest: Duration,
}

impl Tally {
    pub(super) fn add(&mut self, case: Case, outcome: &Outcome) {
        let mut row = Row { kills: 1, harmed: u64::from(!outcome.harms.is_empty()), by_harm: BTreeMap::new() };
        // A kill counts once for each kind of harm.
        outcome.harms.iter().for_each(|(harm, _)| _ = row.by_harm.insert(*harm, 1));
        self.rows.entry(case).or_default().add(&row);
        if outcome.harms.is_empty() {
            self.slowest = self.slowest.max(outcome.settled);
            return;
        }
        let details = outcome.harms.iter().map(|(harm, detail)| format!("\n    {harm}: {detail}"));
        self.harms.push(format!("{case} {}:{}", outcome.time, details.collect::<String>()));
    }

    /// What the kills did: their kinds, points in time and harms.
    pub fn harms(&self) -> &[String] {
        &self.harms
    }

    /// Counts a kill that could not be performed, because heapbpf always exited before.
    pub(super) fn miss(&mut self) {
        self.missed += 1;
    }

    /// Numbers of performed kills, and of those that could not be performed.
    pub fn made_and_missed(&self) -> (u64, u64) {
        (self.rows.values().map(|row| row.kills).sum(), self.missed)
    }

    /// Number of kills that did harm.
    pub fn harmed(&self) -> u64 {
        self.rows.values().map(|row| row.harmed).sum()
    }

    /// The counts as a table in Markdown, a row for each mode, backend and role, and sums by role.
    pub fn table(&self) -> String {
        self.table_of(true)
    }

    /// The sums by role as a table in Markdown.
    pub fn summary(&self) -> String {
        self.table_of(false)
    }

    fn table_of(&self, each: bool) -> String {
        let names: &[&str] = if each { &["mode", "backend", "killed"] } else { &["killed"] };
        let mut head = [names, &["kills", "harmed"]].concat().join(" | ");
        Harm::ALL.iter().for_each(|harm| _ = write!(head, " | {harm}"));
        let mut table = format!("| {head} |\n|{}{}\n", "---|".repeat(names.len()), "---:|".repeat(2 + Harm::ALL.len()));
        let mut line = |names: &[&str], row: &Row| {
            let _ = writeln!(table, "| {} | {} |", names.join(" | "), row.cells().join(" | "));
        };
        for (case, row) in self.rows.iter().filter(|_| each) {
            line(&[case.mode.name(), case.backend.name(), case.role.name()], row);
        }
        for &role in Role::ALL {
            let mut sum = Row::default();
            self.rows.iter().filter(|(case, _)| case.role == role).for_each(|(_, row)| sum.add(row));
            let all = ["**all**", "", role.name()];
            if sum.kills > 0 {
                line(if each { &all } else { &all[2..] }, &sum);
            }
        }
        let _ = writeln!(table, "\nKills that could not be performed because heapbpf had exited: {}.", self.missed);
        let _ = writeln!(table, "\nSlowest examination after a kill without harm: {} ms.", self.slowest.as_millis());
        table
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::{Backend, KillTime, Mode};
    use super::*;

    #[test]
    fn kills_are_counted_once_for_each_kind_of_harm() {
        let case = Case { mode: Mode::Exact, backend: Backend::Perf, role: Role::Agent };
        let outcome = |harms| Outcome { time: KillTime::Start(Duration::ZERO), harms, settled: Duration::ZERO };
        let mut tally = Tally::default();
        tally.add(case, &outcome(Vec::new()));
        let code = || (Harm::Breakpoints, String::new());
        tally.add(case, &outcome(vec![code(), code(), (Harm::KernelLog, String::new())]));
        assert_eq!(tally.harmed(), 1);
        assert_eq!(tally.harms().len(), 1);
        assert!(tally.harms()[0].ends_with("start+0us:\n    breakpoints: \n    breakpoints: \n    kernel log: "));
        let table = tally.table();
        assert!(table.contains("| exact | perf | agent | 2 | 1 | 0 | 0 | 1 | 0 | 0 | 0 | 1 | 0 | 0 | 0 |"), "{table}");
        assert!(table.contains("| **all** |  | agent | 2 | 1 |"), "{table}");
    }
}
