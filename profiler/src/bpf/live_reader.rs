//! Reads the live set from another thread than the session's, and takes blocks out of it there: to read a million takes up to a
//! second, for which the ring cannot go without being read.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use aya::maps::Map;
use profiler_common::live::{LiveBlock, LiveKey};

use super::blocks::LIVE;
use super::load::{Kernel, LoadError};
use crate::address::TargetAddr;
use crate::ids::{Pid, StackId};
use crate::linux::bpf_map::SharedCounts;
use crate::linux::bpf_map::{read_hash, remove_hash};

const STACKS: &str = "STACKS";

/// The live set, with descriptors of its own.
pub struct LiveReader {
    live: OwnedFd,
    counts: SharedCounts,
}

impl Kernel {
    /// A reader of the live set.
    ///
    /// # Errors
    ///
    /// When the maps are not there, or there are no more descriptors to be had.
    pub fn live_reader(&self) -> Result<LiveReader, LoadError> {
        let failed = |error| LoadError::Map { name: LIVE, source: aya::maps::MapError::IoError(error) };
        let live = self.live()?.fd().as_fd().try_clone_to_owned().map_err(failed)?;
        Ok(LiveReader { live, counts: self.live_counts()? })
    }

    /// Has the frames of these stacks sent again with the next call that has them.
    pub fn forget_stacks(&self, stacks: &[StackId]) -> Result<(), LoadError> {
        let failed = |error| LoadError::Map { name: STACKS, source: aya::maps::MapError::IoError(error) };
        let Map::LruHashMap(data) = self.map(STACKS)? else { return Err(LoadError::Missing(STACKS)) };
        let ids: Vec<u64> = stacks.iter().map(|stack| stack.0).collect();
        remove_hash(data.fd(), &ids, |_| ()).map_err(failed)
    }
}

impl LiveReader {
    /// How many blocks there are, about: blocks on their way in or out are counted too.
    pub fn count(&self) -> u64 {
        self.counts.sum()
    }

    /// Hands over all live blocks of all processes, in no order, and takes out those that `keep` does not want. Blocks that are made
    /// or freed meanwhile may be among them or not; no other is left out. Returns how many were taken out.
    ///
    /// A block is taken out within a few milliseconds after it was read. One that was freed in between, and another made at its
    /// address, is taken out in its place; what is known of that from the ring tells which.
    ///
    /// # Errors
    ///
    /// When the map cannot be read or written. Some may be taken out then.
    pub fn sift(&self, mut keep: impl FnMut(Pid, TargetAddr, LiveBlock) -> bool) -> io::Result<usize> {
        let mut removed = 0;
        let mut result = Ok(());
        read_hash(&self.live, |keys: &[LiveKey], blocks: &[LiveBlock]| {
            let pairs = keys.iter().zip(blocks);
            let gone: Vec<LiveKey> = pairs
                .filter(|(key, block)| !keep(Pid(key.tgid), TargetAddr(key.address), **block))
                .map(|(key, _)| *key)
                .collect();
            if gone.is_empty() || result.is_err() {
                return;
            }
            result = remove_hash(&self.live, &gone, |keys| {
                keys.iter().for_each(|key| self.counts.add(key.place(), -1));
                removed += keys.len();
            });
        })?;
        result.map(|()| removed)
    }
}

#[cfg(test)]
mod tests {
    use profiler_common::interval::Interval;

    use super::*;
    use crate::bpf::fixture;
    use crate::bpf::load::LinkKind;

    #[test]
    fn what_is_not_wanted_is_taken_out_and_no_longer_counted() {
        let mut kernel = fixture::kernel(LinkKind::Perf);
        let block = LiveBlock::new(100, 1000, 7, Interval::EXACT, 0);
        let blocks = (1..=1000).map(|number| (TargetAddr(number * 16), block));
        assert!(kernel.inherit_blocks(Pid(1), blocks).expect("the map is there"));
        let reader = kernel.live_reader().expect("the map is there");
        assert_eq!(reader.count(), 1000);
        let mut seen = 0;
        let keep_even = |pid: Pid, address: TargetAddr, found: LiveBlock| {
            seen += 1;
            assert_eq!((pid, found), (Pid(1), block));
            address.0.is_multiple_of(32)
        };
        assert_eq!(reader.sift(keep_even).expect("the map is there"), 500);
        assert_eq!((seen, reader.count()), (1000, 500));
        assert_eq!(reader.sift(|_, address, _| address.0.is_multiple_of(32)).expect("the map is there"), 0);
        kernel.forget_stacks(&[StackId(7), StackId(8)]).expect("the map is there, they are not in it");
    }
}
