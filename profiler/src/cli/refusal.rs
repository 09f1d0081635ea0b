//! Explains errors of the kernel: `doctor` knows the reason and the next command.

use std::ffi::OsString;

use heapbpf_base::shown;

use crate::bpf::load::LoadError;
use crate::collect::process::CollectError;
use crate::doctor::{self, Refused};
use crate::keeper::KeeperError;
use crate::probe::attach::AttachError;
use crate::process::launch::LaunchError;

/// Kind of the operation that the kernel refused; `None` for other errors.
fn refused(error: &anyhow::Error) -> Option<Refused> {
    let is = |kind: fn(&(dyn std::error::Error + 'static)) -> bool| error.chain().any(kind);
    // The keeper's reasons are texts. They remain where tracing is allowed, so that `doctor` finds no reason.
    let tracing = |cause: &(dyn std::error::Error + 'static)| {
        matches!(cause.downcast_ref(), Some(CollectError::NotPermitted(_) | CollectError::Keeper(_)))
            || matches!(cause.downcast_ref(), Some(LaunchError::Trace(..) | LaunchError::Keeper(_)))
            || cause.is::<KeeperError>()
    };
    match () {
        () if is(|cause| cause.is::<LoadError>() || cause.is::<AttachError>()) => Some(Refused::Probes),
        () if is(tracing) => Some(Refused::Tracing),
        () => None,
    }
}

/// Replaces the kernel's error by the reason, if `doctor` knows it.
pub(super) fn explained(error: anyhow::Error) -> anyhow::Error {
    let reason = refused(&error).and_then(|refused| doctor::explain(&command_line(), Some(refused)));
    let Some(reason) = reason else { return error };
    tracing::info!("{error:#}");
    anyhow::anyhow!(reason)
}

/// Command line of this process, quoted for a shell.
pub(super) fn command_line() -> String {
    let quote = |argument: OsString| {
        let argument = shown::os_text(&argument).into_owned();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
        if !argument.is_empty() && argument.chars().all(is_plain) {
            argument
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    };
    std::env::args_os().map(quote).collect::<Vec<_>>().join(" ")
}
