//! Says what is missing before anything is tried.

use std::io;

use anyhow::{Context, Result, bail};

use crate::linux::feature;
use crate::linux::proc::process;

/// Checks that this process may profile at all.
pub(super) fn check() -> Result<()> {
    let missing = feature::missing().context("cannot read this process's capabilities")?;
    if !missing.is_empty() {
        bail!("not allowed: missing {}; run `sudo {}`", missing.join(", "), command_line());
    }
    if !process::in_initial_pid_namespace().unwrap_or(true) {
        bail!(
            "heapbpf runs in a PID namespace of its own, so the kernel's process numbers mean nothing here; run it on the host, or in a container with `--pid=host`"
        );
    }
    Ok(())
}

/// What the user typed, to be repeated behind `sudo`.
fn command_line() -> String {
    let quote = |argument: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
        if !argument.is_empty() && argument.chars().all(plain) {
            argument
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    };
    std::env::args_os().map(|argument| quote(argument.to_string_lossy().into_owned())).collect::<Vec<_>>().join(" ")
}

/// Every module and every process takes a descriptor, and so does every link.
pub(super) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::debug!("cannot raise RLIMIT_NOFILE: {}", io::Error::from(error));
    }
}

/// Locked memory counted against a limit until Linux 5.11; raising it is harmless later.
pub(super) fn raise_memory_limit() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let unlimited = Rlimit { current: None, maximum: None };
    if let Err(error) = setrlimit(Resource::Memlock, unlimited) {
        tracing::debug!("cannot raise RLIMIT_MEMLOCK: {}", io::Error::from(error));
    }
}
