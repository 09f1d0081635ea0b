//! The live set from the agent's side: forgets the blocks of processes that are no more, and enters those that a fork
//! inherits. Whatever else happens to it, the kernel side does.
//!
//! Blocks are counted by place, before they are entered and after they are taken out, as the kernel side does: what it
//! finds no count for, it does not look for.

use aya::maps::{Map, MapData, MapError};
use profiler_common::limits::LIVE_PLACES;
use profiler_common::live::{LiveBlock, LiveKey};

use super::load::{Kernel, LoadError};
use crate::address::TargetAddr;
use crate::ids::Pid;
use crate::sys::map_batch::{BATCH, remove_hash, write_hash};
use crate::sys::map_memory::SharedCounts;

const LIVE: &str = "LIVE";
const COUNTS: &str = "LIVE_COUNTS";

impl Kernel {
    /// Takes blocks of a process out of the live set: its program is gone. Returns how many were there.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn forget_blocks(
        &mut self,
        pid: Pid,
        addresses: impl IntoIterator<Item = TargetAddr>,
    ) -> Result<usize, LoadError> {
        let (live, counts) = (self.live()?, self.live_counts()?);
        let mut keys = addresses.into_iter().map(|address| LiveKey::new(pid.0, address.0));
        let mut removed = 0;
        loop {
            let chunk: Vec<LiveKey> = keys.by_ref().take(BATCH).collect();
            if chunk.is_empty() {
                return Ok(removed);
            }
            let taken = |keys: &[LiveKey]| {
                keys.iter().for_each(|key| counts.add(key.place(), -1));
                removed += keys.len();
            };
            remove_hash(live.fd(), &chunk, taken).map_err(failed)?;
        }
    }

    /// Enters blocks that a forked process has from its parent, so that its frees of them are seen. Returns how many found
    /// room: all, or the first so many.
    ///
    /// To be called before the child's probes are attached: a block that the child has made at one of these addresses is
    /// overwritten, and one that it has freed by then stays for ever.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn inherit_blocks(
        &mut self,
        child: Pid,
        blocks: impl IntoIterator<Item = (TargetAddr, LiveBlock)>,
    ) -> Result<usize, LoadError> {
        let (live, counts) = (self.live()?, self.live_counts()?);
        let mut blocks = blocks.into_iter().map(|(address, block)| (LiveKey::new(child.0, address.0), block));
        let mut entered = 0;
        loop {
            let (keys, values): (Vec<LiveKey>, Vec<LiveBlock>) = blocks.by_ref().take(BATCH).unzip();
            keys.iter().for_each(|key| counts.add(key.place(), 1));
            // After an error some may be there: their counts stay.
            let written = write_hash(live.fd(), &keys, &values).map_err(failed)?;
            keys[written..].iter().for_each(|key| counts.add(key.place(), -1));
            entered += written;
            if keys.is_empty() || written < keys.len() {
                return Ok(entered);
            }
        }
    }

    fn live(&self) -> Result<&MapData, LoadError> {
        match self.map(LIVE)? {
            Map::HashMap(data) => Ok(data),
            _ => Err(LoadError::Missing(LIVE)),
        }
    }

    fn live_counts(&self) -> Result<SharedCounts, LoadError> {
        let Map::Array(data) = self.map(COUNTS)? else {
            return Err(LoadError::Missing(COUNTS));
        };
        let failed = |error| LoadError::Map { name: COUNTS, source: MapError::IoError(error) };
        SharedCounts::new(data.fd(), LIVE_PLACES).map_err(failed)
    }
}

fn failed(error: std::io::Error) -> LoadError {
    LoadError::Map { name: LIVE, source: MapError::IoError(error) }
}

#[cfg(test)]
mod tests {
    use aya::maps::{Array, HashMap};
    use profiler_common::interval::Interval;

    use super::*;
    use crate::bpf::fixture;
    use crate::bpf::load::LinkKind;

    fn block(stack_id: u64) -> LiveBlock {
        LiveBlock::new(100, 1000, stack_id, Interval::EXACT, 0)
    }

    fn counts(kernel: &Kernel) -> Vec<u64> {
        let counts: Array<_, u64> = Array::try_from(kernel.map(COUNTS).expect("the map is there")).expect("an array");
        counts.iter().map(|count| count.expect("it is there")).collect()
    }

    #[test]
    fn inherited_blocks_are_the_childs_alone() {
        let mut kernel = fixture::kernel(LinkKind::Perf);
        let (parent, child) = (Pid(1), Pid(2));
        let blocks = || (1..=3).map(|number| (TargetAddr(number * 16), block(number)));
        assert_eq!(kernel.inherit_blocks(parent, blocks()).expect("there is room"), 3);
        assert_eq!(kernel.inherit_blocks(child, blocks()).expect("there is room"), 3);
        let gone = [16, 64, 48].map(TargetAddr);
        assert_eq!(kernel.forget_blocks(child, gone).expect("the map is there"), 2);
        let live: HashMap<_, LiveKey, LiveBlock> =
            HashMap::try_from(kernel.map(LIVE).expect("the map is there")).expect("a hash map");
        let mut found: Vec<_> =
            live.iter().flatten().map(|(key, block)| (key.tgid, key.address, block.stack_id())).collect();
        found.sort_unstable();
        assert_eq!(found, [(1, 16, 1), (1, 32, 2), (1, 48, 3), (2, 32, 2)]);
        let mut expected = vec![0; LIVE_PLACES as usize];
        for (tgid, address, _) in found {
            expected[LiveKey::new(tgid, address).place() as usize] += 1;
        }
        assert_eq!(counts(&kernel), expected);
    }

    #[test]
    fn what_finds_no_room_is_told() {
        let mut kernel = fixture::kernel(LinkKind::Perf);
        let blocks = (1..=fixture::LIVE_BLOCKS_MAX + 5).map(|number| (TargetAddr(u64::from(number)), block(1)));
        let entered = kernel.inherit_blocks(Pid(1), blocks).expect("a full map is no error");
        assert_eq!(entered, fixture::LIVE_BLOCKS_MAX as usize);
        assert_eq!(counts(&kernel).iter().sum::<u64>(), u64::from(fixture::LIVE_BLOCKS_MAX));
    }
}
