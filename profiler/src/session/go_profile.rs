//! Heap profiles of Go programs, for the heap `go`: which sampled blocks the runtimes have allocated and freed since they were read last.
//!
//! A block that the runtime has sampled is a block of the ledger. The runtime does not keep its address, so it gets one that no process
//! has. Of the blocks of one stack and size, the oldest counts as freed first.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, HookId, Pid, StackId, Tid};
use heapbpf_base::units::{Amounts, MonotonicNanos};
use heapbpf_ledger::LiveAllocation;
use heapbpf_ledger::ingest::event::{Allocation, Event, Free, Stack};
use profiler_common::interval::Interval;
use profiler_common::limits::INTERVAL_BYTES_MAX;
use profiler_common::record::FreeRecord;
use profiler_common::stack::StackEnd;
use tracing::{debug, warn};

use super::process_table::ProcessTable;
use crate::go_heap::{BLOCK_FLAG, Change, GoHeap, GoHeapError, GoProfile};

/// Minimum time between two readings of a process.
const PERIOD: Duration = Duration::from_secs(1);
/// Time between two readings of a process, as a multiple of what one takes.
const SHARE: u32 = 100;
/// Maximum number of live sampled blocks of all processes: of 512 GiB, at the runtime's own rate.
const BLOCKS_MAX: usize = 1 << 20;

/// A Go program whose recording begins.
pub(super) struct Program {
    pub(super) heap: GoHeap,
    pub(super) id: HeapId,
    /// Whether the recording has the program from its start. Else the blocks that it has by then are from before.
    pub(super) is_whole: bool,
}

/// Profiles of Go programs that are recorded, by process.
#[derive(Debug, Default)]
pub(super) struct GoProfiles {
    profiles: BTreeMap<Pid, Profile>,
    blocks: Blocks,
}

/// Numbers of blocks of all processes.
#[derive(Debug, Default)]
struct Blocks {
    /// Those that have had an address.
    numbered: u64,
    live: usize,
}

#[derive(Debug)]
struct Profile {
    reader: GoProfile,
    /// Of the runtime's samples; `None` while the profile is off, as it is before a program's own code runs.
    interval: Option<Interval>,
    heap: HeapId,
    /// By the number of the bucket.
    live: Vec<LiveBlocks>,
    live_count: usize,
    /// Whether what is read was allocated before the recording began.
    is_first: bool,
    due: Instant,
}

/// The live sampled blocks of a bucket.
#[derive(Debug, Default)]
struct LiveBlocks {
    /// The oldest first, and when they were found.
    blocks: VecDeque<(TargetAddr, MonotonicNanos)>,
    /// Whether the ledger has the stack.
    is_named: bool,
    /// Share of a block with a larger interval that the last ones lack: see [`Large`].
    owed: f64,
}

impl GoProfiles {
    /// Reads the profile of a program whose recording begins.
    pub(super) fn begin(&mut self, pid: Pid, program: Program, processes: &mut ProcessTable, now: MonotonicNanos) {
        let profile = Profile {
            reader: GoProfile::new(&program.heap),
            interval: None,
            heap: program.id,
            live: Vec::new(),
            live_count: 0,
            is_first: !program.is_whole,
            due: Instant::now(),
        };
        self.profiles.insert(pid, profile);
        self.read(pid, processes, now);
    }

    pub(super) fn has(&self, pid: Pid) -> bool {
        self.profiles.contains_key(&pid)
    }

    /// Forgets a program that has ended, or was replaced.
    pub(super) fn forget(&mut self, pid: Pid) {
        let Some(profile) = self.profiles.remove(&pid) else { return };
        self.blocks.live -= profile.live_count;
        if profile.interval.is_none() {
            warn!("process {pid}: its Go heap was not recorded: {}", GoHeapError::Off);
        }
    }

    /// Reads the profiles that are due.
    pub(super) fn poll(&mut self, processes: &mut ProcessTable, now: MonotonicNanos) {
        let instant = Instant::now();
        let due = self.profiles.iter().filter(|(_, profile)| profile.due <= instant).map(|(pid, _)| *pid);
        for pid in due.collect::<Vec<_>>() {
            self.read(pid, processes, now);
        }
    }

    /// Reads all profiles, for a report.
    pub(super) fn read_all(&mut self, processes: &mut ProcessTable, now: MonotonicNanos) {
        for pid in self.profiles.keys().copied().collect::<Vec<_>>() {
            self.read(pid, processes, now);
        }
    }

    fn read(&mut self, pid: Pid, processes: &mut ProcessTable, now: MonotonicNanos) {
        let Some(profile) = self.profiles.get_mut(&pid) else { return };
        let begun = Instant::now();
        match profile.changes(pid) {
            Ok((interval, changes)) => {
                if let Some(target) = processes.get_mut(pid) {
                    target.go_interval = Some(interval);
                }
                for change in changes {
                    profile.enter(change, interval, pid, &mut self.blocks, processes, now);
                }
                profile.is_first = false;
                profile.due = Instant::now() + PERIOD.max(begun.elapsed() * SHARE);
            }
            // A process that exits has no memory.
            Err(error @ (GoHeapError::Memory(_) | GoHeapError::Off)) => {
                debug!("process {pid}: its Go heap cannot be read: {error}");
                profile.due = Instant::now() + PERIOD;
            }
            Err(error) => {
                warn!("process {pid}: its Go heap is not recorded any more: {error}");
                self.blocks.live -= profile.live_count;
                self.profiles.remove(&pid);
                // It must not begin again: what the ledger has would count twice.
                if let Some(target) = processes.get_mut(pid) {
                    target.go = None;
                }
            }
        }
    }
}

/// Blocks that are not smaller than the interval. The runtime samples these, too, with the probability 1 - exp(-size/interval), while a
/// ledger counts each of them as one. So a share of them counts as sampled at an interval that is larger than they are.
struct Large {
    interval: Interval,
    share: f64,
}

impl Large {
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    fn of(size_bytes: u64, interval: Interval) -> Option<Self> {
        let rate = interval.bytes();
        if interval == Interval::EXACT || size_bytes < u64::from(rate) {
            return None;
        }
        let above = u32::try_from(size_bytes + size_bytes / 1000 + 1)
            .ok()
            .filter(|above| u64::from(*above) <= INTERVAL_BYTES_MAX)?;
        let larger = Interval::nearest(above);
        let weight = -1.0 / (-(size_bytes as f64) / f64::from(rate)).exp_m1();
        let of_larger = Amounts::of(size_bytes, larger).count.to_f64();
        Some(Self { interval: larger, share: (weight - 1.0) / (of_larger - 1.0) })
    }
}

impl Profile {
    /// What has changed since the last reading, and the interval of the runtime's samples.
    fn changes(&mut self, pid: Pid) -> Result<(Interval, Vec<Change>), GoHeapError> {
        let interval = match self.interval {
            Some(interval) => interval,
            None => *self.interval.insert(self.reader.heap().interval(&pid)?),
        };
        Ok((interval, self.reader.read(&pid)?))
    }

    fn enter(
        &mut self,
        change: Change,
        of_runtime: Interval,
        pid: Pid,
        all: &mut Blocks,
        processes: &mut ProcessTable,
        now: MonotonicNanos,
    ) {
        let Change { bucket, allocs, frees } = change;
        if self.live.len() <= bucket {
            self.live.resize_with(bucket + 1, LiveBlocks::default);
        }
        let stack = StackId(BLOCK_FLAG | u64::from(pid.0) << 24 | bucket as u64);
        let live = &mut self.live[bucket];
        if !std::mem::replace(&mut live.is_named, true) {
            let frames = self.reader.stack(bucket);
            processes.enter(Event::Stack(pid, stack, Stack { frames, end: StackEnd::Complete }));
        }
        // Of what was allocated before the recording, only the live part is known.
        let (allocs, frees) = if self.is_first { (allocs.saturating_sub(frees), 0) } else { (allocs, frees) };
        let room = BLOCKS_MAX.saturating_sub(all.live);
        let allocs = usize::try_from(allocs).unwrap_or(usize::MAX);
        if allocs > room {
            warn!(
                "process {pid}: more than {BLOCKS_MAX} sampled blocks of heap go are live: {} are left out",
                allocs - room
            );
        }
        let (heap, size_bytes) = (self.heap, self.reader.size_bytes(bucket));
        let large = Large::of(size_bytes, of_runtime);
        for _ in 0..allocs.min(room) {
            all.numbered += 1;
            let address = TargetAddr(BLOCK_FLAG | all.numbered);
            let interval = match &large {
                Some(large) => {
                    live.owed += large.share;
                    let is_owed = live.owed >= 1.0;
                    live.owed -= f64::from(u8::from(is_owed));
                    if is_owed { large.interval } else { Interval::EXACT }
                }
                None => of_runtime,
            };
            let block = LiveAllocation { address, size_bytes, interval, stack, heap, time: now };
            if self.is_first {
                processes.enter_open(pid, &block);
            } else {
                processes.enter(Event::Alloc(allocation(&block, pid)));
            }
            live.blocks.push_back((address, now));
            self.live_count += 1;
            all.live += 1;
        }
        for _ in 0..frees {
            let Some((address, born)) = live.blocks.pop_front() else { break };
            self.live_count -= 1;
            all.live -= 1;
            let age_us = FreeRecord::age_us(born.0 / 1000, now.0 / 1000);
            processes.enter(Event::Free(Free { pid, tid: Tid(pid.0), address, time: now, age_us }));
        }
    }
}

/// The thread that allocated it is not known: any of the process.
fn allocation(block: &LiveAllocation, pid: Pid) -> Allocation {
    let LiveAllocation { address, size_bytes, interval, stack, heap, time } = *block;
    let (tid, hook) = (Tid(pid.0), HookId(u16::MAX));
    Allocation { pid, tid, address, size_bytes, time, stack, interval, hook, heap, has_replaced: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ledger's estimate of sampled blocks must be that of `runtime/pprof` (`scaleHeapSample`).
    #[test]
    fn blocks_of_any_size_are_estimated_as_pprof_does() {
        let interval = Interval::power_of_two(19);
        for size in [8_u64, 1024, 500_000, 524_288, 600_000, 1 << 20, 3 << 20, 64 << 20] {
            let pprof = 1.0 / (1.0 - (-(size as f64) / 524_288.0).exp());
            let mean = match Large::of(size, interval) {
                Some(large) => {
                    assert!((0.0..=1.0).contains(&large.share), "{size}");
                    1.0 + large.share * (Amounts::of(size, large.interval).count.to_f64() - 1.0)
                }
                None => Amounts::of(size, interval).count.to_f64(),
            };
            assert!((mean / pprof - 1.0).abs() < 1e-5, "{size}: {mean}, not {pprof}");
        }
        assert!(Large::of(1 << 20, Interval::EXACT).is_none());
    }
}
