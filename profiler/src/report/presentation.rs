//! How a profile is to be presented, whatever the format.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::View;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presentation {
    /// The quantity, of formats that show one only; that which the others show first.
    pub view: View,
    /// What stacks are grouped by, the outermost first: frames above the process's, or labels where the format has them.
    pub by: Vec<Group>,
}

impl From<View> for Presentation {
    fn from(view: View) -> Self {
        Self { view, by: Vec::new() }
    }
}

/// What stacks can be grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// The thread that allocated.
    Thread,
    /// The program: `argv[0]`.
    Command,
    /// The control group.
    Cgroup,
    /// The heap.
    Heap,
}

impl Group {
    /// All, in the order in which they are offered.
    pub const ALL: [Self; 4] = [Self::Thread, Self::Command, Self::Cgroup, Self::Heap];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Command => "command",
            Self::Cgroup => "cgroup",
            Self::Heap => "heap",
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Group {
    type Err = GroupError;

    fn from_str(name: &str) -> Result<Self, GroupError> {
        Self::ALL.into_iter().find(|group| group.name() == name).ok_or_else(|| GroupError { name: name.to_owned() })
    }
}

/// Nothing can be grouped by this.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("nothing is grouped by `{name}`; use `thread`, `command`, `cgroup` or `heap`")]
pub struct GroupError {
    name: String,
}
