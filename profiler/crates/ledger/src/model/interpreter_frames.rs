//! Functions of interpreters in stacks, and what is missing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Functions that interpreters execute, in stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct InterpreterFrames {
    /// Number of processes whose stacks contain these functions.
    pub processes: u64,
    /// Number of processes whose stacks lack them, by reason.
    pub unsupported: BTreeMap<String, u64>,
    /// Number of stacks that lack them because the state of the thread was not found.
    pub no_thread: u64,
    /// Number of stacks that lack some of them because a frame could not be read.
    pub unreadable: u64,
    /// Number of functions without names.
    pub unnamed: u64,
    /// The same by reason.
    #[serde(default)]
    pub unnamed_reasons: BTreeMap<String, u64>,
    /// Number of times that a process had too many new functions at once, so that they have names only if later stacks have them too.
    #[serde(default)]
    pub deferred: u64,
    /// Functions by language; absent from recordings of earlier versions.
    #[serde(default)]
    pub languages: BTreeMap<String, LanguageFunctions>,
}

/// Functions of a language that stacks contain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct LanguageFunctions {
    /// Number of functions, with and without names.
    pub functions: u64,
    /// Number of functions without names.
    pub unnamed: u64,
    /// The same by reason.
    pub unnamed_reasons: BTreeMap<String, u64>,
}
