//! What is done: the script of a program, and how it is recorded.

use std::fmt;

use super::generate::{Feature, HAZARDS, OVERLOADS, known};

/// Sizes of blocks. Those of at least 128 KiB are mappings of their own in `targets/scripted.c`.
pub(super) const SIZES: [u64; 15] =
    [1, 8, 24, 40, 100, 333, 1000, 1024, 4000, 5000, 20_000, 70_000, 200_000, 1 << 20, 3_000_000];

/// How a recording begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// heapbpf starts the program.
    Launched,
    /// heapbpf attaches to the running program.
    Attached {
        /// Whether blocks from before the recording are in the report.
        has_inventory: bool,
    },
}

/// An operation of `targets/scripted.c`, where they are described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// One line.
    Line(String),
    /// A line with `fork`, and what the child does.
    Fork(String, Vec<Operation>),
}

/// A script, and how its program is recorded.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it was drawn from.
    pub seed: u64,
    /// How the recording begins.
    pub start: Start,
    /// Whether an attached program exits before the recording is stopped.
    pub exits_first: bool,
    /// Options of heapbpf, besides the output and the process.
    pub options: Vec<String>,
    /// Whether the recording must be complete.
    pub is_plain: bool,
    /// Whether its interval may change meanwhile.
    pub adapts: bool,
    /// Names of the features that it uses.
    pub uses: Vec<Feature>,
    /// What the program does.
    pub operations: Vec<Operation>,
}

impl Plan {
    /// Parses what `Display` writes: a failure that was printed.
    pub fn parse(text: &str) -> Self {
        let (head, script) = text.trim().split_once('\n').expect("a line with options, and a script");
        let (head, features) = head.split_once("; features ").expect("features");
        let (seed, rest) = head.split_once("seed ").and_then(|(_, rest)| rest.split_once(", ")).expect("a seed");
        let (start, options) = rest.split_at(rest.find("--").expect("options"));
        let attached = Start::Attached { has_inventory: start.contains("has_inventory: true") };
        let mut lines = script.lines().map(str::trim).filter(|line| !line.starts_with("sizes "));
        Self {
            seed: seed.parse().expect("a number"),
            start: if start.starts_with("Launched") { Start::Launched } else { attached },
            exits_first: start.contains("exits first"),
            options: options.split_ascii_whitespace().map(str::to_owned).collect(),
            is_plain: !features.split(',').any(|it| HAZARDS.iter().chain(&OVERLOADS).any(|other| it == *other)),
            adapts: options.contains("--on-overload adapt"),
            uses: features.split(',').map(known).collect(),
            operations: operations(&mut lines),
        }
    }

    /// The text that `targets/scripted.c` reads.
    pub fn script(&self) -> String {
        let sizes: Vec<String> = SIZES.iter().map(u64::to_string).collect();
        let mut text = format!("sizes {}\n", sizes.join(" "));
        self.operations.iter().for_each(|operation| operation.write(&mut text));
        text
    }

    /// The same with other operations.
    #[must_use]
    pub fn with(&self, operations: Vec<Operation>) -> Self {
        Self { operations, ..self.clone() }
    }

    /// Whether threads run side by side.
    pub fn is_concurrent(&self) -> bool {
        self.script().contains("\n&")
    }

    /// Whether blocks get other sizes, which changes neither their place nor their function.
    pub fn resizes(&self) -> bool {
        self.script().lines().any(|line| line.split_whitespace().nth(1) == Some("resize"))
    }
}

fn operations<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<Operation> {
    let mut all = Vec::new();
    while let Some(line) = lines.next().filter(|line| *line != "}") {
        let line = line.to_owned();
        all.push(if line.starts_with("fork ") {
            Operation::Fork(line, operations(lines))
        } else {
            Operation::Line(line)
        });
    }
    all
}

impl Operation {
    fn write(&self, text: &mut String) {
        match self {
            Self::Line(line) => text.extend([line, "\n"]),
            Self::Fork(line, body) => {
                text.extend([line, "\n"]);
                body.iter().for_each(|operation| operation.write(text));
                text.push_str("}\n");
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, start, options, uses, .. } = self;
        let first = if self.exits_first { ", exits first" } else { "" };
        writeln!(formatter, "seed {seed}, {start:?}{first}, {}; features {}", options.join(" "), uses.join(","))?;
        self.script().lines().try_for_each(|line| writeln!(formatter, "    {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::features;

    #[test]
    fn printed_plans_are_parsed() {
        for seed in 0..50 {
            let plan = Plan::draw(seed, &features("all"));
            assert_eq!(format!("{:?}", Plan::parse(&plan.to_string())), format!("{plan:?}"));
        }
    }
}
