//! Counts of an attack, and their tables.

use std::collections::BTreeMap;
use std::fmt;

use super::attack::is_death;
use super::profiler::Ended;

/// Counts of one program.
#[derive(Default)]
pub(super) struct Row {
    name: &'static str,
    cycles: usize,
    recorded: usize,
    inline: usize,
    refused: BTreeMap<String, usize>,
    pub(super) launched: usize,
    pub(super) named: usize,
    differences: usize,
    deaths: usize,
    pub(super) compared: usize,
    pub(super) changed_bytes: usize,
    pub(super) slots: usize,
    messages: Vec<String>,
    pub(super) given_up: bool,
    /// Why the program could not be run.
    pub(super) not_run: Option<String>,
}

impl Row {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, ..Self::default() }
    }

    pub(super) fn count(&mut self, ended: Ended) {
        match ended {
            Ended::Recorded { inline } => {
                self.recorded += 1;
                self.inline += usize::from(inline);
            }
            Ended::Early => {}
            Ended::Refused(reason) => *self.refused.entry(reason).or_default() += 1,
        }
    }

    /// Counts a cycle.
    pub(super) fn note(&mut self, outcome: anyhow::Result<()>) {
        self.cycles += 1;
        self.note_end(outcome);
    }

    /// Counts the outcome of all cycles of a process.
    pub(super) fn note_end(&mut self, outcome: anyhow::Result<()>) {
        let Err(error) = outcome else { return };
        if is_death(&error) {
            self.deaths += 1;
        } else {
            self.differences += 1;
        }
        let message = format!("{error:#}");
        eprintln!("faults: {} cycle {}: {message}", self.name, self.cycles);
        self.messages.push(message);
    }

    pub(super) fn faults(&self) -> usize {
        self.differences + self.deaths
    }
}

impl fmt::Display for Row {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(reason) = &self.not_run {
            return write!(formatter, "| {} | not run: {} |", self.name, reason.replace('\n', " "));
        }
        write!(
            formatter,
            "| {}{} | {} | {} | {} | ",
            self.name,
            if self.given_up { " (given up)" } else { "" },
            self.cycles,
            self.recorded,
            self.inline
        )?;
        write!(formatter, "{} | {} | {} | {} | ", self.launched, self.named, self.differences, self.deaths)?;
        write!(formatter, "{} of {} | {} |", self.changed_bytes, self.compared, self.slots)
    }
}

/// Kills of one role.
#[derive(Default)]
pub(super) struct Killed {
    pub(super) kills: usize,
    pub(super) harmed: usize,
    /// Slots that led to stubs after the processes had ended: kills with any, and their number.
    pub(super) with_slots: usize,
    pub(super) slots: usize,
    /// The same after the next session.
    pub(super) after_next: usize,
}

/// All counts.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) rows: Vec<Row>,
    pub(super) killed: BTreeMap<&'static str, Killed>,
}

impl Tally {
    /// Number of faults of both kinds.
    pub(super) fn faults(&self) -> usize {
        let of_rows: usize = self.rows.iter().map(Row::faults).sum();
        of_rows + self.killed.values().map(|killed| killed.harmed + killed.after_next).sum::<usize>()
    }

    pub(super) fn not_run(&self) -> Vec<&'static str> {
        self.rows.iter().filter(|row| row.not_run.is_some()).map(|row| row.name).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "| program | cycles | recorded | by stubs | launched | by name | differences | deaths | bytes changed | slots left |"
        )?;
        writeln!(formatter, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")?;
        self.rows.iter().try_for_each(|row| writeln!(formatter, "{row}"))?;
        let sum = |count: fn(&Row) -> usize| self.rows.iter().map(count).sum::<usize>();
        writeln!(
            formatter,
            "\n{} cycles: {} differences, {} deaths, {} bytes changed in {} comparisons, {} slots left.",
            sum(|row| row.cycles),
            sum(|row| row.differences),
            sum(|row| row.deaths),
            sum(|row| row.changed_bytes),
            sum(|row| row.compared),
            sum(|row| row.slots)
        )?;
        for row in &self.rows {
            let refused = row.refused.iter().map(|(reason, count)| format!("refused {count} times: {reason}"));
            for text in refused.chain(row.messages.iter().cloned()) {
                writeln!(formatter, "- {}: {}", row.name, text.replace('\n', " "))?;
            }
        }
        if self.killed.is_empty() {
            return Ok(());
        }
        writeln!(
            formatter,
            "\n| killed | kills | programs harmed | kills that left slots | slots left | after the next session |"
        )?;
        writeln!(formatter, "|---|---:|---:|---:|---:|---:|")?;
        self.killed.iter().try_for_each(|(role, it)| {
            let counts = [it.kills, it.harmed, it.with_slots, it.slots, it.after_next].map(|count| count.to_string());
            writeln!(formatter, "| {role} | {} |", counts.join(" | "))
        })
    }
}
