//! Modules: the files whose code a target executes. A target may have written every byte read here. So sizes are
//! checked before memory is allocated, and files are not mapped: truncating a mapped file kills its reader.

pub(crate) mod debug_files;
mod distant;
pub(crate) mod elf;
pub(crate) mod generated;
pub(crate) mod golang;
pub(crate) mod image;
pub(crate) mod imports;
pub(crate) mod interpreted;
pub(crate) mod module;
pub(crate) mod script;
mod symbol_sections;
pub(crate) mod symbols;

/// A module that cannot be inspected still has a path, and addresses in it can be shown as offsets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    #[error("permission denied; run as root or with CAP_SYS_PTRACE and CAP_CHECKPOINT_RESTORE")]
    Permission,
    #[error("the file was deleted or replaced after it was mapped; run as root to open the mapped one")]
    Gone,
    /// Code without a file, such as `[vsyscall]`.
    #[error("there is no file behind this code")]
    NoFile,
    #[error("something else was mapped there before it was opened")]
    Replaced,
    #[error("its file system does not answer")]
    Silent,
    /// The directory where that file system is mounted.
    #[error("`{0}` does not answer")]
    Unanswered(std::sync::Arc<str>),
    #[error("not a regular file")]
    NotRegular,
    #[error("a 32-bit program; heapbpf records 64-bit ones")]
    Is32Bit,
    #[error("not a 64-bit little-endian ELF file; check it with `file`")]
    NotElf,
    /// Truncated, or beyond the limits of real files.
    #[error("malformed ELF file: {0}")]
    Malformed(&'static str),
    #[error("cannot read the file: {0}")]
    Io(std::io::ErrorKind),
}

impl From<std::io::Error> for ObjectError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => Self::Permission,
            std::io::ErrorKind::NotFound => Self::Gone,
            kind => Self::Io(kind),
        }
    }
}
