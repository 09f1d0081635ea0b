//! Metadata that the kernel has in memory. Asking a file system that does not answer would stop the caller.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};

/// Returns the metadata behind a link of procfs, such as `/proc/PID/exe`. Following it makes no lookup in the file's own file system.
pub(crate) fn at(path: &Path) -> io::Result<Statx> {
    Ok(statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS)?)
}

pub(crate) fn of(file: impl AsFd) -> io::Result<Statx> {
    Ok(statx(file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS)?)
}
