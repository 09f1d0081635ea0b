//! How functions were named, and which names are missing.

use serde::{Deserialize, Serialize};

/// How functions were named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Symbolization {
    /// Parts of the symbolizer's isolation, and whether each was in force; empty where nothing was named.
    pub isolation: Vec<(String, bool)>,
    /// Modules whose names are missing, or some of them.
    pub failures: Vec<SymbolizationFailure>,
}

impl Symbolization {
    /// The parts of the isolation that were in force, or those that were not.
    pub fn isolated(&self, in_force: bool) -> impl Iterator<Item = &str> {
        self.isolation.iter().filter(move |(_, is_in_force)| *is_in_force == in_force).map(|(name, _)| name.as_str())
    }
}

/// A module whose names are missing, or some of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SymbolizationFailure {
    /// Its path.
    pub module: String,
    /// Why.
    pub reason: String,
    /// What its frames have instead.
    pub names: NamesFrom,
}

/// Where names come from that debug information does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamesFrom {
    /// The symbol table: functions without lines and without inlined calls.
    SymbolTable,
    /// Nothing: frames are printed as module and offset.
    Nothing,
}

impl NamesFrom {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::SymbolTable, Self::Nothing];

    /// Name in the JSON report.
    pub fn name(self) -> &'static str {
        match self {
            Self::SymbolTable => "symbol_table",
            Self::Nothing => "none",
        }
    }
}
