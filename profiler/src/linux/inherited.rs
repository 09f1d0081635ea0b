//! What a program that heapbpf starts is to find as heapbpf itself found it.

use super::limits::InheritedLimits;
use super::signals::InheritedSignals;

/// What heapbpf changes of itself and a program inherits. To be asked for before it does.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    /// Signals that are ignored and blocked.
    pub(super) signals: InheritedSignals,
    /// Limits that heapbpf raises.
    pub(super) limits: InheritedLimits,
}

impl Inherited {
    /// Of now and this thread.
    pub fn now() -> Self {
        Self { signals: InheritedSignals::now(), limits: InheritedLimits::now() }
    }

    /// How signals were.
    pub fn signals(&self) -> &InheritedSignals {
        &self.signals
    }
}
