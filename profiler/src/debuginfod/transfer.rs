//! Observers and errors of downloads.

use std::io;
use std::time::Duration;

use thiserror::Error;

/// Reason why a file was not downloaded.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("no server has it")]
    NotFound,
    #[error("{0}: HTTP status {1}")]
    Status(String, u16),
    #[error("{0}: redirects to `{1}`, which is not an HTTP address, or redirects too often")]
    Redirect(String, String),
    #[error("{0}: {1}")]
    Connection(String, String),
    #[error("{0}: less than 100 KiB within {1:?}")]
    Stalled(String, Duration),
    #[error("it exceeds the limit of {}; raise `DEBUGINFOD_MAXSIZE`", bytesize::ByteSize(*.0))]
    Large(u64),
    #[error("{0}: sent a file that is compressed in an unsupported way, or damaged")]
    Encoding(String),
    #[error("{0}: sent a file of another build")]
    Build(String),
    #[error("the time limit of {0:?} for all downloads was exceeded")]
    TotalTime(Duration),
    #[error("interrupted by the user")]
    Interrupted,
    #[error("cannot store it: {0}")]
    Io(#[from] io::Error),
}

/// Callbacks of a download.
pub(crate) struct Watch<'a> {
    /// Receives the number of bytes so far, and their total where the server sends it.
    pub(crate) progress: &'a mut dyn FnMut(u64, Option<u64>),
    /// Returns whether the download must stop.
    pub(crate) is_interrupted: &'a dyn Fn() -> bool,
}
