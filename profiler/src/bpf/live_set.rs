//! Reads the live set, removes the blocks of processes that are gone, and inserts blocks inherited by a fork. Blocks are added to
//! the filter before they are inserted, and removed from it after they are removed, as on the kernel side, which does not search
//! for blocks that the filter excludes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aya::maps::{HashMap, Map, MapData, MapError};
use aya_obj::generated::BPF_NOEXIST;
use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{Pid, StackId};
use heapbpf_linux::bpf_map::{BATCH, SharedWords, read_hash, remove_hash, write_hash};
use profiler_common::limits::{LIVE_FILTER_SLOTS, STACK_BUCKETS, STACK_WAYS};
use profiler_common::live::{FILTER_ONE, LiveBlock, LiveKey};
use profiler_common::stack::seen_bucket;

use super::load::{Kernel, LoadError};

const LIVE: &str = "LIVE";
const STACKS: &str = "STACKS";
const FILTER: &str = "LIVE_FILTER";

impl Kernel {
    /// Removes blocks of a process whose program is gone. Returns the number of removed blocks.
    pub fn forget_blocks(
        &mut self,
        pid: Pid,
        addresses: impl IntoIterator<Item = TargetAddr>,
    ) -> Result<usize, LoadError> {
        let (live, filter) = (self.live()?, &self.filter()?);
        let mut keys = addresses.into_iter().map(|address| LiveKey::new(pid.0, address.0));
        let mut removed = 0;
        loop {
            let chunk: Vec<LiveKey> = keys.by_ref().take(BATCH).collect();
            if chunk.is_empty() {
                return Ok(removed);
            }
            let taken = |keys: &[LiveKey]| {
                keys.iter().for_each(|key| remove(filter, key));
                removed += keys.len();
            };
            remove_hash(live.fd(), &chunk, taken).map_err(failed)?;
        }
    }

    /// Removes all blocks of a process, including those whose records were dropped. Reads the whole live set: a million
    /// blocks take up to a second, and removing them a few. If it fails, some may have been removed. The process must
    /// insert no more blocks: it has exited, or is no longer a target.
    pub fn sweep(&mut self, pid: Pid) -> Result<usize, LoadError> {
        self.live_reader()?.sift(|owner, _, _| owner != pid).map_err(failed)
    }

    /// Inserts the blocks that a fork inherits, so that their frees are tracked: all or, without space for all, none.
    /// Returns whether they were inserted. Must be called before the child's probes are attached: a block that it has
    /// allocated at one of these addresses is overwritten, and one that it has freed would never be removed.
    pub fn inherit_blocks(
        &mut self,
        child: Pid,
        blocks: impl IntoIterator<Item = (TargetAddr, LiveBlock)>,
    ) -> Result<bool, LoadError> {
        let (live, filter) = (self.live()?, &self.filter()?);
        let mut blocks = blocks.into_iter().map(|(address, block)| (LiveKey::new(child.0, address.0), block));
        let mut counted: Vec<LiveKey> = Vec::new();
        let refused = loop {
            let (keys, values): (Vec<LiveKey>, Vec<LiveBlock>) = blocks.by_ref().take(BATCH).unzip();
            if keys.is_empty() {
                return Ok(true);
            }
            keys.iter().for_each(|key| filter.add(key.filter_slot(), key.filter_word().cast_signed()));
            counted.extend_from_slice(&keys);
            match write_hash(live.fd(), &keys, &values) {
                Ok(written) if written == keys.len() => {}
                Ok(_) => break Ok(false),
                Err(error) => break Err(failed(error)),
            }
        };
        // Blocks that could not be removed stay in the filter.
        remove_hash(live.fd(), &counted, |_| ()).map_err(failed)?;
        counted.iter().for_each(|key| remove(filter, key));
        refused
    }

    /// Inserts blocks that a running process allocated before recording started, so that their frees are tracked: all or, without
    /// space for all, none. Leaves out blocks at addresses of live blocks: they were freed, and others allocated there. Returns
    /// the addresses of the blocks that were left out; `None` without space.
    pub fn insert_earlier_blocks(
        &mut self,
        pid: Pid,
        blocks: &[(TargetAddr, LiveBlock)],
    ) -> Result<Option<Vec<TargetAddr>>, LoadError> {
        let filter = self.filter()?;
        let mut live: HashMap<_, LiveKey, LiveBlock> =
            HashMap::try_from(self.map_mut(LIVE)?).map_err(|source| LoadError::Map { name: LIVE, source })?;
        let mut inserted: Vec<LiveKey> = Vec::with_capacity(blocks.len());
        let mut present: Vec<TargetAddr> = Vec::new();
        // Blocks are inserted one by one: batches cannot leave existing elements as they are.
        let refused = blocks.iter().find_map(|&(address, block)| {
            let key = LiveKey::new(pid.0, address.0);
            filter.add(key.filter_slot(), key.filter_word().cast_signed());
            let error = match live.insert(key, block, BPF_NOEXIST.into()) {
                Ok(()) => {
                    inserted.push(key);
                    return None;
                }
                Err(error) => error,
            };
            remove(&filter, &key);
            match errno(&error) {
                Some(libc::EEXIST) => {
                    present.push(address);
                    None
                }
                Some(libc::E2BIG | libc::ENOMEM) => Some(Ok(None)),
                _ => Some(Err(LoadError::Map { name: LIVE, source: error })),
            }
        });
        let Some(refused) = refused else { return Ok(Some(present)) };
        remove_hash(self.live()?.fd(), &inserted, |keys| keys.iter().for_each(|key| remove(&filter, key)))
            .map_err(failed)?;
        refused
    }

    pub fn live_reader(&self) -> Result<LiveReader, LoadError> {
        let live = self.live()?.fd().as_fd().try_clone_to_owned().map_err(failed)?;
        Ok(LiveReader { live, filter: self.filter()?, is_open: AtomicBool::new(false) })
    }

    /// Makes the kernel side send the frames of these stacks again with the next call that has them.
    pub fn forget_stacks(&self, stacks: &[StackId]) -> Result<(), LoadError> {
        let failed = |error| LoadError::Map { name: STACKS, source: MapError::IoError(error) };
        let Map::Array(data) = self.map(STACKS)? else { return Err(LoadError::Missing(STACKS)) };
        let ways = u32::try_from(STACK_WAYS).unwrap_or(u32::MAX);
        let sent = SharedWords::new(data.fd(), STACK_BUCKETS * ways).map_err(failed)?;
        for id in stacks.iter().map(|stack| stack.0) {
            let first = seen_bucket(id) * ways;
            (first..first + ways).for_each(|index| sent.clear(index, id));
        }
        Ok(())
    }

    /// Descriptor of the filter, which targets of the inline engine map.
    pub fn filter_map(&self) -> Result<BorrowedFd<'_>, LoadError> {
        match self.map(FILTER)? {
            Map::Array(data) => Ok(data.fd().as_fd()),
            _ => Err(LoadError::Missing(FILTER)),
        }
    }

    fn live(&self) -> Result<&MapData, LoadError> {
        match self.map(LIVE)? {
            Map::HashMap(data) => Ok(data),
            _ => Err(LoadError::Missing(LIVE)),
        }
    }

    fn filter(&self) -> Result<Arc<SharedWords>, LoadError> {
        if let Some(filter) = self.filter.get() {
            return Ok(Arc::clone(filter));
        }
        let Map::Array(data) = self.map(FILTER)? else {
            return Err(LoadError::Missing(FILTER));
        };
        let failed = |error| LoadError::Map { name: FILTER, source: MapError::IoError(error) };
        let filter = SharedWords::new(data.fd(), LIVE_FILTER_SLOTS).map_err(failed)?;
        Ok(Arc::clone(self.filter.get_or_init(|| Arc::new(filter))))
    }
}

/// Reader of the live set. A million blocks take up to a second to read, so a thread of its own reads them while the session
/// drains the ring.
pub struct LiveReader {
    live: OwnedFd,
    filter: Arc<SharedWords>,
    /// Whether the filter excludes no block.
    is_open: AtomicBool,
}

/// Number of blocks that are added to each slot of the filter to open it: a single one would exclude others.
const OPEN_BLOCKS: u64 = 2;

impl LiveReader {
    /// Approximate number of blocks: includes blocks that are being inserted or removed.
    pub fn count(&self) -> u64 {
        let counted = self.filter.sum_above(FILTER_ONE.ilog2());
        let opened = if self.is_open.load(Ordering::Relaxed) { OPEN_BLOCKS * u64::from(LIVE_FILTER_SLOTS) } else { 0 };
        counted.saturating_sub(opened)
    }

    /// Makes the filter exclude no block, so that each free searches the live set, or ends that. Takes two milliseconds.
    pub fn set_filter_open(&self, is_open: bool) {
        if self.is_open.swap(is_open, Ordering::Relaxed) != is_open {
            let change = (OPEN_BLOCKS * FILTER_ONE).cast_signed();
            let change = if is_open { change } else { -change };
            (0..LIVE_FILTER_SLOTS).for_each(|slot| self.filter.add(slot, change));
        }
    }

    /// Passes all live blocks of all processes to `keep`, in no order, and removes those for which it returns false. Blocks
    /// allocated or freed meanwhile may be missing; no other is. If it fails, some may have been removed. A block is removed
    /// milliseconds after it was read. If it was freed in between and another allocated there, that one is removed instead; the
    /// ring buffer's records reveal this.
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
                keys.iter().for_each(|key| remove(&self.filter, key));
                removed += keys.len();
            });
        })?;
        result.map(|()| removed)
    }
}

fn remove(filter: &SharedWords, key: &LiveKey) {
    filter.add(key.filter_slot(), key.filter_word().cast_signed().wrapping_neg());
}

fn errno(error: &MapError) -> Option<i32> {
    match error {
        MapError::SyscallError(error) => error.io_error.raw_os_error(),
        _ => None,
    }
}

fn failed(error: io::Error) -> LoadError {
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

    /// All live blocks: process, address and stack. Checks the counts.
    #[track_caller]
    fn live(kernel: &Kernel) -> Vec<(u32, u64, u64)> {
        let mut found = Vec::new();
        let mut expected = vec![0; LIVE_FILTER_SLOTS as usize];
        let record = |pid: Pid, address: TargetAddr, block: LiveBlock| {
            found.push((pid.0, address.0, block.stack_id()));
            let key = LiveKey::new(pid.0, address.0);
            expected[key.filter_slot() as usize] += key.filter_word();
            true
        };
        kernel.live_reader().expect("the map is there").sift(record).expect("the map is there");
        let counts: Array<_, u64> = Array::try_from(kernel.map(FILTER).expect("the map is there")).expect("an array");
        let counts: Vec<u64> = counts.iter().map(|count| count.expect("it is there")).collect();
        assert!(
            counts == expected,
            "{} blocks are counted, of {}",
            counts.iter().map(|slot| slot >> 48).sum::<u64>(),
            found.len()
        );
        found.sort_unstable();
        found
    }

    #[test]
    fn inherited_blocks_belong_to_the_child() {
        let mut kernel = fixture::kernel(LinkKind::Perf);
        let (parent, child) = (Pid(1), Pid(2));
        let blocks = || (1..=3).map(|number| (TargetAddr(number * 16), block(number)));
        assert!(kernel.inherit_blocks(parent, blocks()).expect("the map is there"));
        assert!(kernel.inherit_blocks(child, blocks()).expect("the map is there"));
        assert!(kernel.inherit_blocks(child, []).expect("the map is there"), "no blocks need no space");
        let gone = [16, 64, 48].map(TargetAddr);
        assert_eq!(kernel.forget_blocks(child, gone).expect("the map is there"), 2);
        assert_eq!(live(&kernel), [(1, 16, 1), (1, 32, 2), (1, 48, 3), (2, 32, 2)]);
    }

    #[test]
    fn a_sweep_removes_all_blocks_of_one_process() {
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
    fn inherited_blocks_that_do_not_all_fit_are_not_inserted() {
        let mut kernel = fixture::kernel(LinkKind::Perf);
        let blocks = |count| (1..=count).map(|number| (TargetAddr(u64::from(number)), block(1)));
        assert!(kernel.inherit_blocks(Pid(1), blocks(5)).expect("the map is there"));
        assert!(!kernel.inherit_blocks(Pid(2), blocks(fixture::LIVE_BLOCKS_MAX)).expect("a full map is no error"));
        assert_eq!(live(&kernel), (1..=5).map(|address| (1, address, 1)).collect::<Vec<_>>());
        assert!(kernel.inherit_blocks(Pid(2), blocks(fixture::LIVE_BLOCKS_MAX - 5)).expect("the map is there"));
        assert_eq!(live(&kernel).len(), fixture::LIVE_BLOCKS_MAX as usize);
    }

    #[test]
    fn earlier_blocks_leave_later_ones_as_they_are() {
        let mut kernel = fixture::kernel(LinkKind::Perf);
        let blocks = |numbers: std::ops::Range<u64>, stack_id| -> Vec<(TargetAddr, LiveBlock)> {
            numbers.map(|number| (TargetAddr(number * 16), block(stack_id))).collect()
        };
        let mut insert = |pid, blocks: &[_]| kernel.insert_earlier_blocks(Pid(pid), blocks).expect("the map is there");
        assert_eq!(insert(1, &blocks(2..4, 7)), Some(Vec::new()));
        assert_eq!(insert(1, &blocks(1..5, 8)), Some(vec![TargetAddr(32), TargetAddr(48)]));
        assert_eq!(insert(2, &blocks(1..u64::from(fixture::LIVE_BLOCKS_MAX) + 2, 9)), None);
        assert_eq!(live(&kernel), [(1, 16, 8), (1, 32, 7), (1, 48, 7), (1, 64, 8)], "all or none");
    }

    #[test]
    fn an_open_filter_excludes_nothing_and_counts_the_same() {
        let mut kernel = fixture::kernel(LinkKind::Perf);
        let blocks = (1..=10).map(|number| (TargetAddr(number * 16), block(1)));
        assert!(kernel.inherit_blocks(Pid(1), blocks).expect("the map is there"));
        let reader = kernel.live_reader().expect("the map is there");
        for _ in 0..2 {
            reader.set_filter_open(true);
            assert_eq!(reader.count(), 10);
        }
        let counts: Array<_, u64> = Array::try_from(kernel.map(FILTER).expect("the map is there")).expect("an array");
        let key = LiveKey::new(1, 0x7f00_0000_1000);
        let excludes = |slot: Result<u64, MapError>| key.is_excluded_by(slot.expect("it is there"));
        assert!(!counts.iter().any(excludes));
        reader.set_filter_open(false);
        assert_eq!((live(&kernel).len(), reader.count()), (10, 10));
    }

    #[test]
    fn unwanted_blocks_are_removed_and_uncounted() {
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
