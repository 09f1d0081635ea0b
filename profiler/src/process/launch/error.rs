//! Why a program cannot be started or held, in words for whoever asked for it.

use std::io;
use std::path::Path;

use thiserror::Error;

use crate::ids::Pid;

/// Why a program was not started, or is not held.
#[derive(Debug, Error)]
pub(crate) enum LaunchError {
    /// There is no command.
    #[error("no command to run; give one behind `--`: `heapbpf -- COMMAND ARGUMENTS`")]
    Empty,
    /// There is no such file.
    #[error("cannot run `{0}`: {1}")]
    NotFound(String, &'static str),
    /// There is one, and the kernel does not run it.
    #[error("cannot run `{0}`: {1}; see `ls -l` and `file` of it")]
    NotExecutable(String, io::Error),
    /// The kernel does not let heapbpf hold it.
    #[error(
        "cannot hold `{0}` until it is watched: {1}; containers, kernel.yama.ptrace_scope = 3 and tracers such as strace \
         forbid ptrace: start the program yourself and give its number with `--pid`"
    )]
    Trace(String, io::Error),
    /// There is no process to run it in.
    #[error("cannot start a process for `{0}`: {1}")]
    Fork(String, io::Error),
    /// The keeper's reason.
    #[error("{0}")]
    Keeper(String),
    /// It does not stop to be let go.
    #[error(
        "process `{0}` does not stop, so it cannot be let go yet; it is free as soon as it does, or when heapbpf ends"
    )]
    Unstoppable(Pid),
}

impl LaunchError {
    /// What a shell would say. `execvp` has the same error for a missing program and a missing interpreter of it.
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
            (true, _) => "its interpreter or dynamic linker is not there; `file` names it",
            (false, true) => "no such file; see `ls` of its folder",
            (false, false) => "not found in PATH; `command -v` looks for it",
        };
        Self::NotFound(name, reason)
    }

    /// The exit code that a shell has for it: 127 where there is no program, 126 where it cannot be run; `None` for what
    /// is no fault of the command's.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        match self {
            Self::NotFound(..) => Some(127),
            Self::NotExecutable(..) => Some(126),
            _ => None,
        }
    }
}
