//! Why a heap profile cannot be read.

use std::io;

use thiserror::Error;

/// Why the heap profile of a Go program cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum GoHeapError {
    #[error("its Go version is not in its build information")]
    NoVersion,
    #[error("heapbpf knows the heap profiles of Go 1.18 to 1.27, and it was built by {0}")]
    Version(String),
    #[error("the runtime's variables were not found: {0}")]
    NotFound(&'static str),
    #[error("its heap profile is not built as that of {0}")]
    Structure(String),
    #[error(
        "its heap profile is off (`runtime.MemProfileRate` is 0): the linker turns it off in programs that never read it; importing `net/http/pprof` or `runtime/pprof` turns it on"
    )]
    Off,
    #[error("its heap profile samples one of each {0} bytes, which heapbpf cannot represent")]
    Rate(u64),
    #[error("its memory cannot be read: {0}")]
    Memory(String),
}

impl From<io::Error> for GoHeapError {
    fn from(error: io::Error) -> Self {
        Self::Memory(error.to_string())
    }
}
