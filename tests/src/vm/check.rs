//! A check of what a virtual machine sends, and the feature that it is about.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What checks are about: a row of the table of tested kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    /// The machine runs to its end, without an error of the kernel.
    Boot,
    /// Programs are loaded with half of the verifier's limit.
    Verifier,
    /// The kind of links.
    Links,
    /// Totals at an interval of 1 byte.
    Totals,
    /// Nothing is dropped, so heapbpf exits with 0.
    Drops,
    /// Stacks by unwind tables.
    Tables,
    /// Stacks by frame pointers.
    FramePointers,
    /// Stacks of programs that framehop unwinds, too.
    Framehop,
    /// Frames of an interpreter.
    Interpreters,
    /// Stacks of Java and JavaScript, compared with those that their virtual machines describe.
    Languages,
    /// Forks and execs.
    Forks,
    /// Commands that heapbpf starts.
    Launch,
    /// Static programs, musl, and other allocators than the C library's.
    Allocators,
    /// The same program in the user spaces of Debian's releases.
    UserSpaces,
    /// Pointers with a tag in their upper byte.
    Tags,
    /// Resident pages.
    Pages,
    /// The inline engine.
    Inline,
    /// Targets and their code after the recording, also if heapbpf is killed.
    Detach,
    /// Exit codes of targets that exit.
    ExitCode,
    /// `heapbpf leaks`.
    Leaks,
}

impl Feature {
    /// All, in the order of the table.
    pub const ALL: [Self; 20] = [
        Self::Boot,
        Self::Links,
        Self::Verifier,
        Self::Totals,
        Self::Drops,
        Self::Tables,
        Self::FramePointers,
        Self::Framehop,
        Self::Interpreters,
        Self::Languages,
        Self::Forks,
        Self::Launch,
        Self::Allocators,
        Self::UserSpaces,
        Self::Tags,
        Self::Pages,
        Self::Inline,
        Self::Detach,
        Self::ExitCode,
        Self::Leaks,
    ];

    /// The first cell of its row.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Boot => "no error of the kernel",
            Self::Verifier => "programs below half of the verifier's limit",
            Self::Links => "`--backend auto` and `perf`",
            Self::Totals => "exact totals at T = 1",
            Self::Drops => "no dropped event",
            Self::Tables => "stacks by tables",
            Self::FramePointers => "stacks by frame pointers",
            Self::Framehop => "stacks equal to framehop's",
            Self::Interpreters => "frames of interpreters",
            Self::Languages => "stacks of Java and JavaScript",
            Self::Forks => "forks and execs",
            Self::Launch => "launched command",
            Self::Allocators => "static programs, musl, jemalloc, tcmalloc, mimalloc",
            Self::UserSpaces => "user spaces of Debian 11, 12 and 13",
            Self::Tags => "pointers with tags",
            Self::Pages => "resident pages",
            Self::Inline => "inline engine",
            Self::Detach => "target unharmed, its code restored",
            Self::ExitCode => "exit code of a target",
            Self::Leaks => "`heapbpf leaks`",
        }
    }
}

/// A check of the output.
#[derive(Debug)]
pub struct Check {
    /// What it is about.
    pub feature: Feature,
    /// What is checked.
    pub name: String,
    /// What was found.
    pub outcome: Outcome,
    /// What is expected instead of the feature, and what the kernel lacks for it.
    pub instead: Option<&'static str>,
}

impl Check {
    /// A check with its outcome.
    pub fn new(feature: Feature, name: impl Into<String>, outcome: Outcome) -> Self {
        Self { feature, name: name.into(), outcome, instead: None }
    }

    /// Sets what is expected instead of the feature.
    pub(super) fn instead(mut self, instead: Option<&'static str>) -> Self {
        self.instead = instead;
        self
    }
}

/// Details of a success, or the reason of a failure.
pub type Outcome = Result<String, String>;

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verdict, words) = match &self.outcome {
            Ok(words) => ("ok", words),
            Err(words) => ("FAILED", words),
        };
        write!(f, "  {verdict:<7} {:<52} {words}", self.name)
    }
}
