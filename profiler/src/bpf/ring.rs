//! The ring buffer.

use std::io;

use aya::maps::{Map, MapData, MapError, RingBuf};
use heapbpf_linux::bpf_map::RingPositions;
use heapbpf_linux::pidfd::Readiness;

pub struct Ring {
    ring: RingBuf<MapData>,
    readiness: Readiness,
    positions: RingPositions,
}

impl Ring {
    pub(super) fn new(map: Map) -> Result<Self, MapError> {
        let ring = RingBuf::try_from(map)?;
        let readiness = Readiness::of(&ring).map_err(MapError::IoError)?;
        let positions = RingPositions::new(&ring).map_err(MapError::IoError)?;
        Ok(Self { ring, readiness, positions })
    }

    pub fn unread_bytes(&self) -> u64 {
        self.positions.unread_bytes()
    }

    /// Number of bytes that were written since the start.
    pub fn written_bytes(&self) -> u64 {
        self.positions.written_bytes()
    }

    /// Number of bytes that were read since the start.
    pub fn read_bytes(&self) -> u64 {
        self.positions.read_bytes()
    }

    /// Waits until the fill level exceeds its threshold. Fewer records are not signalled, so the ring must also be read
    /// periodically.
    pub async fn filled(&self) -> io::Result<()> {
        self.readiness.readable().await
    }

    /// Passes up to `limit` records to `take`, oldest first. Returns their number: `limit` means that there may be more.
    pub fn drain(&mut self, limit: usize, mut take: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < limit
            && let Some(record) = self.ring.next()
        {
            take(&record);
            count += 1;
        }
        count
    }
}
