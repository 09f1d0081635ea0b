//! Files as memory.

#![expect(unsafe_code, reason = "the file can change while it is mapped")]

use std::fs::File;
use std::io;
use std::ops::Deref;

use memmap2::Mmap;

/// A file in memory, read where it is used. If the file shrinks meanwhile, reads of what it had kill the process: only for processes
/// that may crash, such as the symbolizer, and for files that are trusted.
#[derive(Debug)]
pub struct FileMap(Mmap);

impl FileMap {
    /// Maps a whole file, which must not be empty.
    pub fn of(file: &File) -> io::Result<Self> {
        // SAFETY: whoever reads the bytes takes them for what anybody may have written, and reads each range once. A file that
        // shrinks ends this process, as documented.
        Ok(Self(unsafe { Mmap::map(file) }?))
    }
}

impl Deref for FileMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
