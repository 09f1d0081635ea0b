//! `toolchain.txt`: what made the committed object. Two machines with the same record make the same bytes.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, Result};

use super::compile::CPU;
use super::toolchain::Toolchain;

/// One line per property, in this order.
const NAMES: [&str; 5] = ["rustc", "rustc's LLVM", "bpf-linker", "bpf-linker's LLVM", "target-cpu"];

/// What decides about the object besides its source.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Values of [`NAMES`].
    values: [String; NAMES.len()],
}

impl Record {
    /// The record of a toolchain on this machine.
    pub(super) fn of(toolchain: &Toolchain) -> Result<Self> {
        let Toolchain { rust, linker } = toolchain;
        let record = Self {
            values: [&rust.version, &rust.llvm, &linker.version, &linker.llvm, CPU].map(|value| value.to_owned()),
        };
        // What could not be read back would make every later check fail.
        let read = record.to_string().parse::<Self>().context("a version has a form that cannot be recorded")?;
        anyhow::ensure!(read == record, "a version has a form that cannot be recorded:\n{record}");
        Ok(record)
    }

    /// One line per property that differs.
    pub(super) fn differences(&self, here: &Self) -> Vec<String> {
        let pairs = self.values.iter().zip(&here.values);
        let differing = NAMES.iter().zip(pairs).filter(|(_, (recorded, here))| recorded != here);
        differing.map(|(name, (recorded, here))| format!("  {name}: `{recorded}` made it, here is `{here}`")).collect()
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in NAMES.iter().zip(&self.values) {
            writeln!(f, "{name}: {value}")?;
        }
        Ok(())
    }
}

impl FromStr for Record {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut values = NAMES.map(String::from);
        for value in &mut values {
            let prefix = format!("{value}: ");
            let found = text.lines().find_map(|line| line.strip_prefix(&prefix));
            *value = found.with_context(|| format!("no line `{prefix}…`"))?.to_owned();
        }
        Ok(Self { values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(rustc: &str, linker: &str) -> Record {
        Record { values: [rustc, "22.1.8", linker, "22.1.8", "v3"].map(String::from) }
    }

    #[test]
    fn survives_its_file() {
        let written = record("rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)", "0.13.0");
        assert_eq!(written.to_string().parse::<Record>().expect("just written"), written);
        assert_eq!(written.to_string().lines().count(), NAMES.len());
        assert!("rustc: rustc 1.96.0\n".parse::<Record>().is_err());
    }

    #[test]
    fn differences_name_both_sides() {
        let made = record("rustc 1.96.0", "0.13.0");
        assert_eq!(made.differences(&made), Vec::<String>::new());
        let differences = made.differences(&record("rustc 1.97.0", "0.13.0"));
        assert_eq!(differences, ["  rustc: `rustc 1.96.0` made it, here is `rustc 1.97.0`"]);
    }
}
