//! Memory of a target, and what it lacks.

use profiler_common::hotspot::CODE_HEAPS_MAX;
use thiserror::Error;

use crate::ids::Pid;
use crate::linux::process_memory;

/// Why frames of a machine are not unwound.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unsupported {
    #[error("its memory cannot be read")]
    Unreadable,
    #[error("its own description of its structures (`gHotSpotVMStructs`) lacks `{0}`; JDK 11 to 25 have it")]
    Missing(&'static str),
    #[error("it has {0} heaps of code; up to {CODE_HEAPS_MAX} are supported")]
    Heaps(u32),
}

/// Memory of a target.
pub(super) trait Memory {
    /// Fills the buffer, or returns `None`.
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()>;

    fn bytes<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(address, &mut bytes)?;
        Some(bytes)
    }

    fn word(&self, address: u64) -> Option<u64> {
        self.bytes(address).map(u64::from_le_bytes)
    }

    fn integer(&self, address: u64) -> Option<u32> {
        self.bytes(address).map(u32::from_le_bytes)
    }

    /// `None` above the limit, too.
    fn range(&self, start: u64, end: u64, bytes_max: usize) -> Option<Vec<u8>> {
        let length = usize::try_from(end.checked_sub(start)?).ok().filter(|&length| length <= bytes_max)?;
        let mut bytes = vec![0; length];
        self.fill(start, &mut bytes)?;
        Some(bytes)
    }
}

impl Memory for Pid {
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        let length = buffer.len();
        let read = process_memory::read(*self, &[(address, length)], buffer).ok()?;
        (read == length).then_some(())
    }
}
