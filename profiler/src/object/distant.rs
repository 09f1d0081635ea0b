//! Parts of a large file whose file system may not answer. The reader reads them.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use heapbpf_linux::rights::Rights;

use super::ObjectError;
use crate::reader::{self, Mapped, Original};

/// Bytes that are read at once: tables of a file are read one after the other, in small pieces.
const PART_BYTES: usize = 1 << 18;

#[derive(Debug)]
pub(super) struct Distant {
    /// Not opened for reading (`O_PATH`).
    pub(super) file: File,
    original: Original,
    /// `None`: those of heapbpf.
    rights: Option<Rights>,
    /// The last part, and where it begins.
    last: Arc<Mutex<(u64, Vec<u8>)>>,
}

impl Distant {
    pub(super) fn new(file: File, original: Original, rights: Option<Rights>) -> Self {
        Self { file, original, rights, last: Arc::default() }
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let Self { file, original, rights, last } = self;
        Ok(Self { file: file.try_clone()?, original: *original, rights: rights.clone(), last: Arc::clone(last) })
    }

    /// The range must be in the file.
    pub(super) fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, ObjectError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = range(&last, offset, length) {
            return Ok(bytes.to_vec());
        }
        let wanted = length.max(PART_BYTES) as u64;
        let mut bytes = reader::read(self.rights.as_ref(), &self.file, &self.original, offset, wanted)?;
        if bytes.len() < length {
            return Err(ObjectError::Malformed("the file was truncated"));
        }
        if length < PART_BYTES {
            *last = (offset, bytes.clone());
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// A sealed copy.
    pub(super) fn copy(&self) -> Result<File, ObjectError> {
        match reader::open_mapped(self.rights.as_ref(), Mapped::File(&self.file), u64::MAX)? {
            reader::Module::Distant { copy: Some(copy), original, .. } if original == self.original => Ok(copy),
            reader::Module::Distant { copy: None, .. } => {
                Err(ObjectError::Malformed("the file exceeds the size limit"))
            }
            _ => Err(ObjectError::Malformed("the file was changed after it was opened")),
        }
    }
}

fn range((start, bytes): &(u64, Vec<u8>), offset: u64, length: usize) -> Option<&[u8]> {
    let at = usize::try_from(offset.checked_sub(*start)?).ok()?;
    bytes.get(at..at.checked_add(length)?)
}
