//! The limits that heapbpf raises for itself, to be handed on to a program that it starts as they were.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many descriptors a process may have, and how much memory it may lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InheritedLimits {
    locked_memory: Rlimit,
    descriptors: Rlimit,
}

impl InheritedLimits {
    /// Of now.
    pub(crate) fn now() -> Self {
        Self { locked_memory: getrlimit(Resource::Memlock), descriptors: getrlimit(Resource::Nofile) }
    }

    /// Makes this process the way it was. For a child between fork and exec: it makes system calls and nothing else. What is
    /// open stays open, but nothing more may be opened after it.
    pub(super) fn restore(&self) {
        // They fail where somebody else has set a lower limit meanwhile, which then holds.
        let _ = setrlimit(Resource::Memlock, self.locked_memory);
        let _ = setrlimit(Resource::Nofile, self.descriptors);
    }
}
