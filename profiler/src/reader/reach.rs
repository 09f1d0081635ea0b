//! Checks whether files that the user's own configuration names can be opened at all: caches, and folders of debug files.

use std::io;
use std::path::{Path, PathBuf};

use heapbpf_base::shown::Shown;
use heapbpf_linux::proc::mounts::{self, Distant};
use heapbpf_linux::rights::Rights;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{Place, ReadError, Request, answer, bytes_of};

/// A file system of this machine that did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` does not answer", Shown::of(.point))]
pub(crate) struct Unanswered {
    /// Mount point of the file system.
    pub(crate) point: PathBuf,
}

/// Checks that the file systems on the way to a file or folder of this machine answer, with these rights, or with heapbpf's if
/// `None`. Asks only file systems that are not local.
pub(crate) fn reach(rights: Option<&Rights>, path: &Path) -> Result<(), Unanswered> {
    let Some(Distant { device, point }) = mounts::first_distant(path) else { return Ok(()) };
    let root = || openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(io::Error::from);
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let ask = || answer(rights, &Place::Device(device), &Request::Reach { path: bytes_of(&path) }, &root()?.into());
    match ask() {
        Err(ReadError::Silent) => Err(Unanswered { point }),
        // Other errors are left to the caller, who opens the path.
        _ => Ok(()),
    }
}
