//! What is known of a process when it is decided whether it is a target. A value: nothing here reads.

use std::path::PathBuf;

use super::names::Names;
use crate::ids::{Identity, Pid};
use crate::linux::proc::cgroups::Membership;

/// A process as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Which process.
    pub identity: Identity,
    /// The kernel's name for it, at most 15 bytes.
    pub comm: String,
    /// Its arguments, or what it made of them.
    pub arguments: Vec<String>,
    /// The program it runs, in its own mount namespace. `None` where this process may not know, or did not need to.
    pub executable: Option<PathBuf>,
    /// The control groups it is in; empty where they did not matter.
    pub cgroups: Vec<Membership>,
}

impl ProcessFacts {
    /// Its number.
    pub fn pid(&self) -> Pid {
        self.identity.pid
    }

    /// `argv[0]`; the kernel's name where there is none.
    pub fn command(&self) -> String {
        self.arguments.first().unwrap_or(&self.comm).clone()
    }

    /// What it may be called by.
    pub fn names(&self) -> Names {
        let executable = self.executable.as_ref().map(|path| path.to_string_lossy());
        Names::of(&self.arguments, executable.as_deref(), &self.comm)
    }
}
