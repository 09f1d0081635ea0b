//! Fields of records.

use thiserror::Error;

/// Why a record was refused. All are defects of heapbpf: the records are written by its own programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("record is too short")]
    Short,
    #[error("unknown record kind `{0}`")]
    UnknownKind(u8),
    #[error("unknown stack end `{0}`")]
    UnknownEnd(u8),
    #[error("unknown format of line tables `{0}`")]
    UnknownLines(u8),
    #[error("unknown kind of code `{0}`")]
    UnknownCode(u32),
}

/// Uses the compiler's offsets, so that a changed record cannot be decoded with the old layout.
#[macro_export]
macro_rules! field {
    ($bytes:expr, $record:ty, $($field:ident).+, $type:ty) => {
        <$type>::from_ne_bytes($crate::ingest::field::word($bytes, ::std::mem::offset_of!($record, $($field).+))?)
    };
}

pub use field;

pub fn word<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], DecodeError> {
    bytes.get(offset..).and_then(<[u8]>::first_chunk).copied().ok_or(DecodeError::Short)
}
