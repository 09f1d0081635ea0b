//! The entries of a block as bytes. Values that repeat in a block are written once: callers, threads, and high digits of
//! addresses and times. Blocks are independent of each other. Unpacking any bytes gives entries or an error. Pure.

use std::hash::Hash;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, HookId, Pid, StackId, Tid};
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::ingest::event::{Allocation, Event, Free, Remap, Stack};
use profiler_common::interval::Interval;
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::stack::StackEnd;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::entry::{Fact, Step};
use super::replay::Entry;

/// An entry as written, with postcard. Addresses, frames and times are distances from the previous one in the block;
/// callers and threads are numbered in the order of their entries. New variants go to the end, and change the major
/// version; entries of kind `Other`, which readers may skip, do not.
#[derive(Deserialize, Serialize)]
enum Packed {
    Caller(Caller),
    Thread(Thread),
    Alloc(PackedAllocation),
    Restore(PackedAllocation),
    Free { thread: u32, address: i64, time: i64, age_us: u32 },
    Stack { pid: Pid, id: StackId, end: u8, frames: Vec<i64> },
    Remap(PackedRemap),
    Other { kind: u16, payload: Vec<u8> },
}

#[derive(Deserialize, Serialize)]
struct PackedAllocation {
    caller: u32,
    address: i64,
    size_bytes: u64,
    time: i64,
}

#[derive(Deserialize, Serialize)]
struct PackedRemap {
    caller: u32,
    old: (i64, u64),
    new: (i64, u64),
    /// Time of the end of the call, and its duration.
    time: i64,
    took: i64,
}

const STEP: u16 = 1;
const FACT: u16 = 2;

#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
struct Caller {
    thread: Thread,
    stack: StackId,
    interval: u32,
    hook: HookId,
    heap: HeapId,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
struct Thread {
    pid: Pid,
    tid: Tid,
}

/// The latest number of a sequence in which each one is written as its distance from the previous one.
#[derive(Clone, Copy, Debug, Default)]
struct Latest(u64);

impl Latest {
    fn distance_to(&mut self, next: u64) -> i64 {
        next.wrapping_sub(std::mem::replace(&mut self.0, next)).cast_signed()
    }

    fn advance(&mut self, distance: i64) -> u64 {
        self.0 = self.0.wrapping_add(distance.cast_unsigned());
        self.0
    }
}

#[derive(Debug, Default)]
pub(crate) struct Packer {
    bytes: Vec<u8>,
    callers: FxHashMap<Caller, u32>,
    threads: FxHashMap<Thread, u32>,
    address: Latest,
    time: Latest,
}

impl Packer {
    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(self).bytes
    }

    /// Adds an event, step or fact.
    pub(crate) fn add(&mut self, entry: &Entry) {
        let packed = match entry {
            Entry::Event(Event::Alloc(allocation)) => Packed::Alloc(self.allocation(allocation)),
            Entry::Event(Event::Restore(allocation)) => Packed::Restore(self.allocation(allocation)),
            Entry::Event(Event::Free(free)) => Packed::Free {
                thread: self.thread(Thread { pid: free.pid, tid: free.tid }),
                address: self.address.distance_to(free.address.0),
                time: self.time.distance_to(free.time.0),
                age_us: free.age_us,
            },
            Entry::Event(Event::Stack(pid, id, stack)) => {
                let mut latest = Latest::default();
                let frames = stack.frames.iter().map(|frame| latest.distance_to(frame.0)).collect();
                Packed::Stack { pid: *pid, id: *id, end: stack.end as u8, frames }
            }
            Entry::Event(Event::Remap(remap)) => Packed::Remap(self.remap(remap)),
            Entry::Step(step) => {
                let payload = postcard::to_allocvec(step).expect("steps can be written");
                Packed::Other { kind: STEP, payload }
            }
            Entry::Fact(fact) => {
                let payload = serde_json::to_vec(fact).expect("facts can be written");
                Packed::Other { kind: FACT, payload }
            }
            // These entries have blocks of their own.
            Entry::Fold(_) | Entry::Names(_) | Entry::Symbolization(_) | Entry::End(_) => return,
        };
        self.write(&packed);
    }

    fn allocation(&mut self, allocation: &Allocation) -> PackedAllocation {
        let &Allocation { pid, tid, stack, hook, heap, size_bytes, .. } = allocation;
        let interval = allocation.interval.code();
        PackedAllocation {
            caller: self.caller(Caller { thread: Thread { pid, tid }, stack, interval, hook, heap }),
            address: self.address.distance_to(allocation.address.0),
            size_bytes,
            time: self.time.distance_to(allocation.time.0),
        }
    }

    fn remap(&mut self, remap: &Remap) -> PackedRemap {
        let &Remap { pid, tid, stack, hook, heap, .. } = remap;
        let interval = Interval::EXACT.code();
        PackedRemap {
            caller: self.caller(Caller { thread: Thread { pid, tid }, stack, interval, hook, heap }),
            old: (self.address.distance_to(remap.old_address.0), remap.old_bytes),
            new: (self.address.distance_to(remap.new_address.0), remap.new_bytes),
            time: self.time.distance_to(remap.ended.0),
            took: remap.ended.0.wrapping_sub(remap.began.0).cast_signed(),
        }
    }

    fn caller(&mut self, caller: Caller) -> u32 {
        let (number, is_new) = number(&mut self.callers, caller);
        if is_new {
            self.write(&Packed::Caller(caller));
        }
        number
    }

    fn thread(&mut self, thread: Thread) -> u32 {
        let (number, is_new) = number(&mut self.threads, thread);
        if is_new {
            self.write(&Packed::Thread(thread));
        }
        number
    }

    fn write(&mut self, packed: &Packed) {
        let bytes = std::mem::take(&mut self.bytes);
        self.bytes = postcard::to_extend(packed, bytes).expect("writing to memory cannot fail");
    }
}

/// Returns the number of an item, and whether it is new. Items are numbered in the order in which they first occur.
fn number<T: Eq + Hash>(known: &mut FxHashMap<T, u32>, item: T) -> (u32, bool) {
    let next = u32::try_from(known.len()).expect("blocks are far below a gigabyte");
    let number = *known.entry(item).or_insert(next);
    (number, number == next)
}

#[derive(Debug, Error)]
pub enum PackError {
    #[error("malformed entries: {0}")]
    Malformed(#[from] postcard::Error),
    #[error("malformed entries: invalid reference")]
    Dangling,
    #[error("malformed entries: a stack has more than {STACK_FRAMES_MAX} frames")]
    Deep,
}

#[derive(Debug, Default)]
pub(crate) struct Unpacker {
    bytes: Vec<u8>,
    at: usize,
    callers: Vec<Caller>,
    threads: Vec<Thread>,
    address: Latest,
    time: Latest,
    skipped: u64,
}

impl Unpacker {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }

    pub(crate) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the next entry; `None` at the end of the block. Must not be called again after an error.
    pub(crate) fn take(&mut self) -> Result<Option<Entry>, PackError> {
        while self.at < self.bytes.len() {
            let (packed, rest) = postcard::take_from_bytes::<Packed>(&self.bytes[self.at..])?;
            self.at = self.bytes.len() - rest.len();
            if let Some(entry) = self.entry(packed)? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    fn entry(&mut self, packed: Packed) -> Result<Option<Entry>, PackError> {
        let event = match packed {
            Packed::Caller(caller) => {
                self.callers.push(caller);
                return Ok(None);
            }
            Packed::Thread(thread) => {
                self.threads.push(thread);
                return Ok(None);
            }
            Packed::Alloc(allocation) => Event::Alloc(self.allocation(&allocation)?),
            Packed::Restore(allocation) => Event::Restore(self.allocation(&allocation)?),
            Packed::Free { thread, address, time, age_us } => {
                let &Thread { pid, tid } = self.threads.get(thread as usize).ok_or(PackError::Dangling)?;
                let address = TargetAddr(self.address.advance(address));
                Event::Free(Free { pid, tid, address, time: MonotonicNanos(self.time.advance(time)), age_us })
            }
            Packed::Stack { pid, id, end, frames } => {
                if frames.len() > STACK_FRAMES_MAX {
                    return Err(PackError::Deep);
                }
                let mut latest = Latest::default();
                let frames = frames.into_iter().map(|distance| TargetAddr(latest.advance(distance))).collect();
                let end = StackEnd::from_wire(end).ok_or(PackError::Dangling)?;
                Event::Stack(pid, id, Stack { frames, end })
            }
            Packed::Remap(remap) => Event::Remap(self.remap(&remap)?),
            Packed::Other { kind, payload } => return Ok(self.other(kind, &payload)),
        };
        Ok(Some(Entry::Event(event)))
    }

    fn caller(&self, number: u32) -> Result<Caller, PackError> {
        self.callers.get(number as usize).copied().ok_or(PackError::Dangling)
    }

    fn allocation(&mut self, packed: &PackedAllocation) -> Result<Allocation, PackError> {
        let Caller { thread: Thread { pid, tid }, stack, interval, hook, heap } = self.caller(packed.caller)?;
        let address = TargetAddr(self.address.advance(packed.address));
        let time = MonotonicNanos(self.time.advance(packed.time));
        let (size_bytes, interval) = (packed.size_bytes, Interval::from_code(interval));
        Ok(Allocation { pid, tid, address, size_bytes, time, stack, interval, hook, heap, has_replaced: false })
    }

    fn remap(&mut self, packed: &PackedRemap) -> Result<Remap, PackError> {
        let Caller { thread: Thread { pid, tid }, stack, hook, heap, .. } = self.caller(packed.caller)?;
        let (old_address, old_bytes) = (TargetAddr(self.address.advance(packed.old.0)), packed.old.1);
        let (new_address, new_bytes) = (TargetAddr(self.address.advance(packed.new.0)), packed.new.1);
        let ended = MonotonicNanos(self.time.advance(packed.time));
        let began = MonotonicNanos(ended.0.wrapping_sub(packed.took.cast_unsigned()));
        Ok(Remap { pid, tid, old_address, old_bytes, new_address, new_bytes, began, ended, stack, hook, heap })
    }

    /// Decodes an entry of kind `Other`. Entries that cannot be decoded were added by a later version.
    fn other(&mut self, kind: u16, payload: &[u8]) -> Option<Entry> {
        let entry = match kind {
            STEP => postcard::from_bytes::<Step>(payload).ok().map(Entry::Step),
            FACT => serde_json::from_slice::<Fact>(payload).ok().map(Box::new).map(Entry::Fact),
            _ => None,
        };
        self.skipped += u64::from(entry.is_none());
        entry
    }
}
