//! Why a program cannot be started or held, in words for whoever asked for it.

use std::io;

use thiserror::Error;

use crate::ids::Pid;

/// Why a program was not started, or is not held.
#[derive(Debug, Error)]
pub enum LaunchError {
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
    /// It does not stop to be let go.
    #[error("process `{0}` does not stop, so it cannot be let go yet; it runs on, and is free when heapbpf ends")]
    Unstoppable(Pid),
    /// A signal cannot be sent.
    #[error("cannot send signal {1} to process `{0}`: {2}")]
    Signal(Pid, i32, io::Error),
}

impl LaunchError {
    /// The exit code that a shell has for it: 127 where there is no program, 126 where it cannot be run; `None` for what
    /// is no fault of the command's.
    #[must_use]
    pub fn exit_code(&self) -> Option<u8> {
        match self {
            Self::NotFound(..) => Some(127),
            Self::NotExecutable(..) => Some(126),
            _ => None,
        }
    }
}
