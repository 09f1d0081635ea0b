//! Results of launching a program.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::Pid;

#[derive(Debug, Error)]
pub(crate) enum LaunchError {
    #[error("no command to run; give one after `--`: `heapbpf -- COMMAND ARGUMENTS`")]
    Empty,
    #[error("cannot run `{0}`: {1}")]
    NotFound(String, &'static str),
    #[error("cannot run `{0}`: {1}; see `ls -l` and `file` of it")]
    NotExecutable(String, io::Error),
    #[error(
        "cannot hold `{0}` until its probes are attached: {1}; containers, kernel.yama.ptrace_scope = 3 and tracers such as strace \
         forbid ptrace: start the program yourself and give its PID with `--pid`"
    )]
    Trace(String, io::Error),
    #[error("cannot start a process for `{0}`: {1}")]
    Fork(String, io::Error),
    #[error("{0}")]
    Keeper(String),
    #[error(
        "process `{0}` does not stop, so it cannot be detached yet; it will be detached when it stops, or when heapbpf exits"
    )]
    Unstoppable(Pid),
}

impl LaunchError {
    /// Explains an exec error. `execvp` returns the same for a missing program and a missing interpreter.
    pub(crate) fn not_run(program: &Path, name: String, error: io::Error) -> Self {
        if error.kind() != io::ErrorKind::NotFound {
            return Self::NotExecutable(name, error);
        }
        let is_path = name.contains('/');
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let exists = match is_path {
            true => program.exists(),
            false => !name.is_empty() && std::env::split_paths(&folders).any(|folder| folder.join(program).is_file()),
        };
        let reason = match (exists, is_path) {
            (true, _) => "its interpreter or dynamic linker does not exist; `file` shows its name",
            (false, true) => "no such file; check its directory with `ls`",
            (false, false) => "not found in PATH; check with `command -v`",
        };
        Self::NotFound(name, reason)
    }

    /// The exit code of a shell: 127 if the program is missing, 126 if it cannot be executed; `None` if the command is
    /// not the cause.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        match self {
            Self::NotFound(..) => Some(127),
            Self::NotExecutable(..) => Some(126),
            _ => None,
        }
    }
}

/// How far a program came while it was stopped at system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartUp {
    /// Why stepping ended.
    pub end: StartUpEnd,
    pub syscalls: u32,
}

/// Why stepping ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StartUpEnd {
    /// Code other than the dynamic linker's runs: the start-up code is mapped.
    Loaded,
    /// No dynamic linker, or an unsupported one (32-bit programs): no code of it has run.
    NoLoader,
    /// Too many system calls: code that is mapped later is not awaited.
    TooManySyscalls,
    /// No system call for too long: code that is mapped later is not awaited.
    Quiet,
    Ended,
}
