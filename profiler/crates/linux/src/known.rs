//! Metadata that the kernel has in memory. A request to a file system that does not answer would stop the caller.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};

/// Returns the metadata behind a link of procfs, such as `/proc/PID/exe`. Following it makes no lookup in the file's own file system.
pub fn at(path: &Path) -> io::Result<Statx> {
    Ok(statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS)?)
}

/// Returns the metadata of an open file. Fails with `EACCES` for the files of a FUSE that another user serves, unless it is for
/// all users.
pub fn of(file: impl AsFd) -> io::Result<Statx> {
    Ok(statx(file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS)?)
}

/// Returns metadata of which only the device is valid. Works also for files for which [`of`] fails (`fuse_getattr` in
/// fs/fuse/dir.c).
pub fn device_of(file: impl AsFd) -> io::Result<Statx> {
    Ok(statx(file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?)
}
