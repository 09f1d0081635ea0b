//! The live set from the agent's side: tells what is in it, forgets the blocks of processes that are no more, and enters
//! those that a fork inherits. Whatever else happens to it, the kernel side does.
//!
//! Blocks are counted by place, before they are entered and after they are taken out, as the kernel side does: what it
//! finds no count for, it does not look for.

use aya::maps::{Map, MapData, MapError};
use profiler_common::limits::LIVE_PLACES;
use profiler_common::live::{LiveBlock, LiveKey};

use super::load::{Kernel, LoadError};
use crate::address::TargetAddr;
use crate::ids::Pid;
use crate::linux::bpf_map::SharedCounts;
use crate::linux::bpf_map::{BATCH, read_hash, remove_hash, write_hash};

pub(super) const LIVE: &str = "LIVE";
const COUNTS: &str = "LIVE_COUNTS";

impl Kernel {
    /// Takes blocks of a process out of the live set: its program is gone. Returns how many were there.
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

    /// Takes all blocks of a process out of the live set, those too that the agent was never told of because their records
    /// found no room in the ring. Returns how many there were. Reads the whole live set, whoever's
    /// the blocks are: a million take up to a second, and taking them out a few.
    ///
    /// To be called when the process makes no more blocks that are entered: it has ended, or is no target any more.
    ///
    /// # Errors
    ///
    /// When the map cannot be read or written. Some may be taken out then.
    pub fn sweep(&mut self, pid: Pid) -> Result<usize, LoadError> {
        let addresses: Vec<TargetAddr> = self.live_blocks_of(pid)?.into_iter().map(|(address, _)| address).collect();
        self.forget_blocks(pid, addresses)
    }

    /// The live blocks of a process, in no order. Blocks that are made or freed meanwhile may be among them or not; no other
    /// is left out.
    pub fn live_blocks_of(&self, pid: Pid) -> Result<Vec<(TargetAddr, LiveBlock)>, LoadError> {
        let mut blocks = Vec::new();
        self.for_each_live_block(|owner, address, block| {
            if owner == pid {
                blocks.push((address, block));
            }
        })?;
        Ok(blocks)
    }

    /// Hands over all live blocks of all processes, in no order. One reading of the live set serves all processes, and takes
    /// as long as for one.
    pub fn for_each_live_block(&self, mut found: impl FnMut(Pid, TargetAddr, LiveBlock)) -> Result<(), LoadError> {
        let each = |keys: &[LiveKey], blocks: &[LiveBlock]| {
            keys.iter().zip(blocks).for_each(|(key, block)| found(Pid(key.tgid), TargetAddr(key.address), *block));
        };
        read_hash(self.live()?.fd(), each).map_err(failed)
    }

    /// Enters blocks that a forked process has from its parent, so that its frees of them are seen: all, or none when there
    /// is no room for all. Returns whether there was.
    ///
    /// To be called before the child's probes are attached: a block that the child has made at one of these addresses is
    /// overwritten, and one that it has freed by then stays for ever.
    ///
    /// # Errors
    ///
    /// When the map cannot be written. None is entered then, unless those that were cannot be taken out again.
    pub fn inherit_blocks(
        &mut self,
        child: Pid,
        blocks: impl IntoIterator<Item = (TargetAddr, LiveBlock)>,
    ) -> Result<bool, LoadError> {
        let (live, counts) = (self.live()?, self.live_counts()?);
        let mut blocks = blocks.into_iter().map(|(address, block)| (LiveKey::new(child.0, address.0), block));
        let mut counted: Vec<LiveKey> = Vec::new();
        let refused = loop {
            let (keys, values): (Vec<LiveKey>, Vec<LiveBlock>) = blocks.by_ref().take(BATCH).unzip();
            if keys.is_empty() {
                return Ok(true);
            }
            keys.iter().for_each(|key| counts.add(key.place(), 1));
            counted.extend_from_slice(&keys);
            match write_hash(live.fd(), &keys, &values) {
                Ok(written) if written == keys.len() => {}
                Ok(_) => break Ok(false),
                Err(error) => break Err(failed(error)),
            }
        };
        // Counts of what may still be there stay.
        remove_hash(live.fd(), &counted, |_| ()).map_err(failed)?;
        counted.iter().for_each(|key| counts.add(key.place(), -1));
        refused
    }

    pub(super) fn live(&self) -> Result<&MapData, LoadError> {
        match self.map(LIVE)? {
            Map::HashMap(data) => Ok(data),
            _ => Err(LoadError::Missing(LIVE)),
        }
    }

    pub(super) fn live_counts(&self) -> Result<SharedCounts, LoadError> {
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
    use aya::maps::Array;
    use profiler_common::interval::Interval;

    use super::*;
    use crate::bpf::fixture;
    use crate::bpf::load::LinkKind;

    fn block(stack_id: u64) -> LiveBlock {
        LiveBlock::new(100, 1000, stack_id, Interval::EXACT, 0)
    }

    /// All live blocks: process, address and stack. Checks that they are counted, and nothing else.
    #[track_caller]
    fn live(kernel: &Kernel) -> Vec<(u32, u64, u64)> {
        let mut found = Vec::new();
        let mut expected = vec![0; LIVE_PLACES as usize];
        kernel
            .for_each_live_block(|pid, address, block| {
                found.push((pid.0, address.0, block.stack_id()));
                expected[LiveKey::new(pid.0, address.0).place() as usize] += 1;
            })
            .expect("the map is there");
        let counts: Array<_, u64> = Array::try_from(kernel.map(COUNTS).expect("the map is there")).expect("an array");
        let counts: Vec<u64> = counts.iter().map(|count| count.expect("it is there")).collect();
        assert!(counts == expected, "{} blocks are counted, of {}", counts.iter().sum::<u64>(), found.len());
        found.sort_unstable();
        found
    }

    #[test]
    fn inherited_blocks_are_the_childs_alone() {
        let mut kernel = fixture::kernel(LinkKind::Perf);
        let (parent, child) = (Pid(1), Pid(2));
        let blocks = || (1..=3).map(|number| (TargetAddr(number * 16), block(number)));
        assert!(kernel.inherit_blocks(parent, blocks()).expect("the map is there"));
        assert!(kernel.inherit_blocks(child, blocks()).expect("the map is there"));
        assert!(kernel.inherit_blocks(child, []).expect("the map is there"), "none needs no room");
        let gone = [16, 64, 48].map(TargetAddr);
        assert_eq!(kernel.forget_blocks(child, gone).expect("the map is there"), 2);
        assert_eq!(live(&kernel), [(1, 16, 1), (1, 32, 2), (1, 48, 3), (2, 32, 2)]);
        assert_eq!(kernel.live_blocks_of(child).expect("the map is there"), [(TargetAddr(32), block(2))]);
    }

    #[test]
    fn a_sweep_takes_out_all_blocks_of_one_process() {
        let mut kernel = fixture::kernel(LinkKind::Perf);
        let (ended, other) = (Pid(1), Pid(2));
        let blocks = |count| (1..=count).map(|number| (TargetAddr(number * 16), block(number)));
        assert!(kernel.inherit_blocks(ended, blocks(500)).expect("the map is there"));
        assert!(kernel.inherit_blocks(other, blocks(2)).expect("the map is there"));
        assert_eq!(kernel.sweep(ended).expect("the map is there"), 500);
        assert_eq!(kernel.sweep(ended).expect("the map is there"), 0);
        assert_eq!(live(&kernel), [(2, 16, 1), (2, 32, 2)]);
    }

    #[test]
    fn inherited_blocks_that_do_not_all_find_room_are_not_entered() {
        let mut kernel = fixture::kernel(LinkKind::Perf);
        let blocks = |count| (1..=count).map(|number| (TargetAddr(u64::from(number)), block(1)));
        assert!(kernel.inherit_blocks(Pid(1), blocks(5)).expect("the map is there"));
        assert!(!kernel.inherit_blocks(Pid(2), blocks(fixture::LIVE_BLOCKS_MAX)).expect("a full map is no error"));
        assert_eq!(live(&kernel), (1..=5).map(|address| (1, address, 1)).collect::<Vec<_>>());
        assert!(kernel.inherit_blocks(Pid(2), blocks(fixture::LIVE_BLOCKS_MAX - 5)).expect("the map is there"));
        assert_eq!(live(&kernel).len(), fixture::LIVE_BLOCKS_MAX as usize);
    }
}
