//! The ring buffer, waited for and read.

use std::io;

use aya::maps::{Map, MapData, MapError, RingBuf};

use crate::linux::bpf_map::RingPositions;
use crate::linux::readiness::Readiness;

/// The reading end. Owned by the session's task alone.
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

    /// Bytes that wait to be read, of as many as the ring has.
    pub fn unread_bytes(&self) -> u64 {
        self.positions.unread_bytes()
    }

    /// Waits until the kernel side calls for a reading: the ring has filled past its mark. A reader also has to come by
    /// itself, as fewer records than that are not announced.
    ///
    /// # Errors
    ///
    /// When the runtime cannot wait.
    pub async fn filled(&self) -> io::Result<()> {
        self.readiness.readable().await
    }

    /// Hands every record that is there to `take`, oldest first, up to `limit`. Returns how many there were: `limit`
    /// means that there may be more.
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
