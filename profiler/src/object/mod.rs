//! Modules: the files whose code a target executes, what their ELF headers say and which functions they define.
//!
//! Every byte read here may have been written by a target. So sizes are checked before memory is taken, sums before
//! they are used, and files are read rather than mapped: a mapped file that is truncated meanwhile kills its reader.

pub(crate) mod debug_link;
pub(crate) mod elf;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod image;
pub(crate) mod module;
pub(crate) mod open;
pub(crate) mod symbols;
pub(crate) mod vtables;

/// Why a module cannot be looked into. It still has a path, and addresses in it can be told as offsets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The kernel refuses to open it.
    #[error("permission denied; run as root or with CAP_SYS_PTRACE and CAP_CHECKPOINT_RESTORE")]
    Permission,
    /// The file was deleted, and the mapping does not lead to it.
    #[error("the file was deleted or replaced since it was mapped; run as root, so that the mapped one can be opened")]
    Gone,
    /// Code without a file, such as `[vsyscall]`.
    #[error("there is no file behind this code")]
    NoFile,
    /// A device, a pipe or the like is mapped.
    #[error("not a regular file")]
    NotRegular,
    /// Not an ELF file of 64 bits, little endian.
    #[error("not a 64-bit little-endian ELF file; `file` tells what it is")]
    NotElf,
    /// Part of the file is missing, or larger than anything that a real file has.
    #[error("malformed ELF file: {0}")]
    Malformed(&'static str),
    /// Anything else that the kernel said.
    #[error("cannot read it: {0}")]
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
