//! Whoever runs a session, as it is told what happens.

use std::time::Duration;

use anyhow::Result;

use super::config::Progress;
use crate::check::heap_snapshot::HeapSnapshot;
use crate::snapshot::Snapshot;

/// Is told what happens. Nothing is drained meanwhile, so every answer must come at once.
pub trait Listener {
    /// Where the recording is, now and then.
    fn progress(&mut self, _progress: &Progress) {}

    /// A window is over: it is in the snapshot.
    fn dumped(&mut self, _snapshot: Snapshot) {}

    /// A target was looked at for leaks, or could not be.
    fn looked(&mut self, _look: Result<HeapSnapshot>) {}

    /// A mark was set, so long after the beginning: later windows begin there.
    fn marked(&mut self, _elapsed: Duration) {}

    /// Whether earlier dumps are still being written. Dumps that are not asked for by a signal wait then.
    fn is_busy(&self) -> bool {
        false
    }

    /// Whether a further dump may wait to be written. Control wait where not; several of a kind are one then.
    fn has_room(&self) -> bool {
        true
    }
}

/// Does not care.
impl Listener for () {}
