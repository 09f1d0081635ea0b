//! How to run something as root: directly, through sudo, or not at all. Never asks for a password itself; sudo does,
//! and only where somebody sits at a terminal.

use std::ffi::OsStr;
use std::io::IsTerminal as _;
use std::process::{Command, Stdio};

use crate::command;

/// What this user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// Is root.
    Root,
    /// May use sudo: without a password, or there is a terminal to type it at.
    Sudo,
    /// Neither.
    Missing,
}

impl Privilege {
    /// Tries sudo only for those who are not root.
    pub(crate) fn find() -> Self {
        if rustix::process::geteuid().is_root() {
            return Self::Root;
        }
        if command::find("sudo").is_none() {
            return Self::Missing;
        }
        let quiet = Command::new("sudo")
            .args(["-n", "true"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if quiet || std::io::stdin().is_terminal() { Self::Sudo } else { Self::Missing }
    }

    /// A command that runs `program` as root; `None` where that is not to be had.
    pub(crate) fn command(self, program: impl AsRef<OsStr>) -> Option<Command> {
        match self {
            Self::Root => Some(Command::new(program)),
            Self::Sudo => {
                let mut command = Command::new("sudo");
                command.arg("--").arg(program);
                Some(command)
            }
            Self::Missing => None,
        }
    }
}
