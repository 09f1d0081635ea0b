//! How far a program has come when it is no longer stopped at system calls.

use serde::{Deserialize, Serialize};

/// How far a program has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartUp {
    /// Why it is no longer stopped at system calls.
    pub end: StartUpEnd,
    /// At how many it was stopped.
    pub syscalls: u32,
}

/// Why a program is no longer stopped at system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StartUpEnd {
    /// Code other than the dynamic linker's runs: what the program starts with is mapped.
    Loaded,
    /// There is no dynamic linker, or none that is understood (32-bit programs): no code of it has run.
    NoLoader,
    /// It made too many system calls: what is mapped later is not waited for.
    TooManySyscalls,
    /// It made none for too long: what is mapped later is not waited for.
    Quiet,
    /// It has ended.
    Ended,
}
