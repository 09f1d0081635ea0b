//! Which memory of a process can hold what is in use.

use super::{Span, ThreadState};
use crate::memory::Memory;
use crate::proc::regions::Region;

/// All of it but the heap's areas.
#[must_use]
pub fn root_spans(
    _threads: &[ThreadState],
    _regions: &[Region],
    _memory: &dyn Memory,
    _heap_areas: &[Span],
) -> Vec<Span> {
    Vec::new()
}
