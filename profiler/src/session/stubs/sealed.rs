//! The file with the stubs' code, which is mapped into targets: nobody can change it, and it has a limited size.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::Result;
use heapbpf_linux::proc::maps::STUBS_NAME;
use rustix::fs::{
    CWD, FileType, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create, openat,
};

use crate::probe::stub;

/// Upper bounds of the size of the header, the table of logarithms and the sampling routine together, and of a stub
/// with its unwind rules.
const COMMON_BYTES: u64 = stub::HEADER_BYTES + 4096;
const STUB_BYTES: u64 = 1024;
/// Largest page size of arm64's kernels.
const PAGE_BYTES_MAX: u64 = 64 << 10;
/// Maximum size of the code.
const CODE_BYTES_MAX: u64 = code_bytes(stub::ENTRIES_MAX).next_multiple_of(PAGE_BYTES_MAX);

/// Upper bound of the code of so many stubs.
pub(super) const fn code_bytes(stubs: usize) -> u64 {
    COMMON_BYTES + STUB_BYTES * stubs as u64
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// Creates a file that nobody can change.
pub(super) fn sealed(code: &[u8], size_bytes: u64) -> Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create(STUBS_NAME, flags)?);
    file.write_all(code)?;
    file.set_len(size_bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// Opens a file of this size that [`sealed`] may have created. `None` if it cannot be such a file: any program can give
/// a file that name.
pub(super) fn open_sealed(path: &Path, size_bytes: u64) -> std::io::Result<Option<File>> {
    if size_bytes > CODE_BYTES_MAX {
        return Ok(None);
    }
    // Opening a device can change it.
    let found = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&found)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || u64::try_from(stat.st_size) != Ok(size_bytes) {
        return Ok(None);
    }
    let file = File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    // Files other than memory files have no seals (`EINVAL`).
    Ok(fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS)).then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sealed_files_of_the_size_of_stubs_are_opened() {
        let opened = |file: &File, size_bytes: u64| {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            open_sealed(Path::new(&path), size_bytes).expect("it is open").is_some()
        };
        let stubs = sealed(b"code", 4096).expect("there is memory");
        assert!(opened(&stubs, 4096));
        assert!(!opened(&stubs, 8192));
        let largest = sealed(b"code", CODE_BYTES_MAX).expect("there is memory");
        assert!(opened(&largest, CODE_BYTES_MAX));
        // Sparse, so that it costs only who reads it.
        let huge = sealed(b"code", 1 << 40).expect("it has one page");
        assert!(!opened(&huge, 1 << 40));
        let unsealed = File::from(memfd_create(STUBS_NAME, MemfdFlags::CLOEXEC).expect("there is memory"));
        unsealed.set_len(4096).expect("ours");
        assert!(!opened(&unsealed, 4096));
        let plain = tempfile::tempfile().expect("temporary folder");
        plain.set_len(4096).expect("ours");
        assert!(!opened(&plain, 4096));
        assert!(!opened(&File::open("/dev/null").expect("it is there"), 0));
    }
}
