//! Signal dispositions and resource limits that a launched program must inherit unchanged.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::linux::signals::InheritedSignals;

/// State that heapbpf changes for itself and a child would inherit. Captured before the first change.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    pub(super) signals: InheritedSignals,
    locked_memory: Rlimit,
    descriptors: Rlimit,
}

impl Inherited {
    /// Captures the state of this process and thread.
    pub fn now() -> Self {
        Self {
            signals: InheritedSignals::now(),
            locked_memory: getrlimit(Resource::Memlock),
            descriptors: getrlimit(Resource::Nofile),
        }
    }

    pub fn signals(&self) -> &InheritedSignals {
        &self.signals
    }

    /// Async-signal-safe, for a child between fork and exec. Open descriptors stay open, but no others may be opened
    /// afterwards.
    pub(super) fn restore_limits(&self) {
        // They fail where a lower limit was set meanwhile, which then stays in force.
        let _ = setrlimit(Resource::Memlock, self.locked_memory);
        let _ = setrlimit(Resource::Nofile, self.descriptors);
    }
}
