//! The entries of a block as bytes. Pure. What repeats within a block is written once: callers, threads, and the high
//! digits of addresses and times. Blocks are independent of each other. Unpacking any bytes gives entries or an
//! error, never a panic.

use std::sync::Arc;

use profiler_common::interval::Interval;
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::stack::StackEnd;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::entry::{Fact, Step};
use super::replay::Entry;
use crate::address::TargetAddr;
use crate::ids::{HeapId, HookId, Pid, StackId, Tid};
use crate::ingest::event::{Allocation, Event, Free, Remap, Stack};
use crate::units::MonotonicNanos;

/// An entry as written, with postcard. New variants go to the end, and change the major version; entries of kind
/// `Other` do not.
#[derive(Deserialize, Serialize)]
enum Packed<'block> {
    /// The next caller of this block.
    Caller(Caller),
    /// The next thread of this block.
    Thread(Thread),
    Alloc {
        caller: u32,
        address: i64,
        size_bytes: u64,
        time: i64,
    },
    Restore {
        caller: u32,
        address: i64,
        size_bytes: u64,
        time: i64,
    },
    Free {
        thread: u32,
        address: i64,
        time: i64,
        age_us: u32,
    },
    /// Each frame as its distance from the previous one.
    Stack {
        pid: u32,
        id: u64,
        end: u8,
        frames: Vec<i64>,
    },
    Remap {
        caller: u32,
        old: (i64, u64),
        new: (i64, u64),
        /// End of the call, and its duration.
        time: i64,
        took: i64,
    },
    /// Anything else, which a reader may skip.
    Other {
        kind: u16,
        #[serde(borrow)]
        payload: &'block [u8],
    },
}

/// Kinds of [`Packed::Other`].
const STEP: u16 = 1;
const FACT: u16 = 2;

/// What the calls of one callsite have in common.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
struct Caller {
    thread: Thread,
    stack: u64,
    interval: u32,
    hook: u16,
    heap: u8,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
struct Thread {
    pid: u32,
    tid: u32,
}

/// Packs the entries of one block.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    bytes: Vec<u8>,
    callers: FxHashMap<Caller, u32>,
    threads: FxHashMap<Thread, u32>,
    near: Near,
}

/// The latest address and time, which the next ones are relative to.
#[derive(Clone, Copy, Debug, Default)]
struct Near {
    address: u64,
    time: u64,
}

impl Near {
    fn address_to(&mut self, address: TargetAddr) -> i64 {
        let distance = address.0.wrapping_sub(self.address).cast_signed();
        self.address = address.0;
        distance
    }

    fn time_to(&mut self, time: MonotonicNanos) -> i64 {
        let distance = time.0.wrapping_sub(self.time).cast_signed();
        self.time = time.0;
        distance
    }

    fn address_at(&mut self, distance: i64) -> TargetAddr {
        self.address = self.address.wrapping_add(distance.cast_unsigned());
        TargetAddr(self.address)
    }

    fn time_at(&mut self, distance: i64) -> MonotonicNanos {
        self.time = self.time.wrapping_add(distance.cast_unsigned());
        MonotonicNanos(self.time)
    }
}

impl Packer {
    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Passes the bytes to `block` and starts the next block.
    pub(crate) fn finish(&mut self, block: impl FnOnce(&[u8])) {
        block(&self.bytes);
        self.bytes.clear();
        self.callers.clear();
        self.threads.clear();
        self.near = Near::default();
    }

    /// Adds an event, step or fact. Events that the session itself acts on are left out: forks, execs and raw stacks.
    pub(crate) fn add(&mut self, entry: &Entry) {
        match entry {
            Entry::Event(event) => self.event(event),
            Entry::Step(step) => {
                let payload = postcard::to_allocvec(step).expect("steps can be written");
                self.write(&Packed::Other { kind: STEP, payload: &payload });
            }
            Entry::Fact(fact) => {
                let payload = serde_json::to_vec(fact).expect("facts can be written");
                self.write(&Packed::Other { kind: FACT, payload: &payload });
            }
            // These have blocks of their own.
            Entry::Fold(_) | Entry::Names(_) | Entry::Symbolization(_) | Entry::End(_) => {}
        }
    }

    fn event(&mut self, event: &Event) {
        let packed = match event {
            Event::Alloc(allocation) => self.allocation(allocation),
            Event::Restore(allocation) => match self.allocation(allocation) {
                Packed::Alloc { caller, address, size_bytes, time } => {
                    Packed::Restore { caller, address, size_bytes, time }
                }
                other => other,
            },
            Event::Free(free) => {
                let thread = self.thread(Thread { pid: free.pid.0, tid: free.tid.0 });
                Packed::Free {
                    thread,
                    address: self.near.address_to(free.address),
                    time: self.near.time_to(free.time),
                    age_us: free.age_us,
                }
            }
            Event::Stack(pid, id, stack) => {
                let mut before = 0;
                let distance = |frame: &TargetAddr| {
                    let distance = frame.0.wrapping_sub(before).cast_signed();
                    before = frame.0;
                    distance
                };
                let frames = stack.frames.iter().map(distance).collect();
                Packed::Stack { pid: pid.0, id: id.0, end: stack.end as u8, frames }
            }
            Event::Remap(remap) => self.remap(remap),
            Event::Fork(_) | Event::Exec(_) | Event::RawStack(..) => return,
        };
        self.write(&packed);
    }

    fn allocation(&mut self, allocation: &Allocation) -> Packed<'static> {
        let caller = self.caller(Caller {
            thread: Thread { pid: allocation.pid.0, tid: allocation.tid.0 },
            stack: allocation.stack.0,
            interval: allocation.interval.code(),
            hook: allocation.hook.0,
            heap: allocation.heap.0,
        });
        Packed::Alloc {
            caller,
            address: self.near.address_to(allocation.address),
            size_bytes: allocation.size_bytes,
            time: self.near.time_to(allocation.time),
        }
    }

    fn remap(&mut self, remap: &Remap) -> Packed<'static> {
        let caller = self.caller(Caller {
            thread: Thread { pid: remap.pid.0, tid: remap.tid.0 },
            stack: remap.stack.0,
            interval: Interval::EXACT.code(),
            hook: remap.hook.0,
            heap: remap.heap.0,
        });
        Packed::Remap {
            caller,
            old: (self.near.address_to(remap.old_address), remap.old_bytes),
            new: (self.near.address_to(remap.new_address), remap.new_bytes),
            time: self.near.time_to(remap.ended),
            took: remap.ended.0.wrapping_sub(remap.began.0).cast_signed(),
        }
    }

    fn caller(&mut self, caller: Caller) -> u32 {
        let next = u32::try_from(self.callers.len()).expect("blocks are far below a gigabyte");
        if let Some(&known) = self.callers.get(&caller) {
            return known;
        }
        self.callers.insert(caller, next);
        self.write(&Packed::Caller(caller));
        next
    }

    fn thread(&mut self, thread: Thread) -> u32 {
        let next = u32::try_from(self.threads.len()).expect("blocks are far below a gigabyte");
        if let Some(&known) = self.threads.get(&thread) {
            return known;
        }
        self.threads.insert(thread, next);
        self.write(&Packed::Thread(thread));
        next
    }

    fn write(&mut self, packed: &Packed<'_>) {
        let bytes = std::mem::take(&mut self.bytes);
        self.bytes = postcard::to_extend(packed, bytes).expect("writing to memory cannot fail");
    }
}

/// Why the bytes of a block with a valid checksum are not entries.
#[derive(Debug, Error)]
pub enum PackError {
    #[error("malformed entries: {0}")]
    Malformed(#[from] postcard::Error),
    #[error("malformed entries: invalid reference")]
    Dangling,
    #[error("malformed entries: a stack has more than {STACK_FRAMES_MAX} frames")]
    Deep,
}

/// Unpacks the entries of one block.
#[derive(Debug, Default)]
pub(crate) struct Unpacker {
    bytes: Vec<u8>,
    at: usize,
    callers: Vec<Caller>,
    threads: Vec<Thread>,
    near: Near,
    /// Number of entries of unknown kinds.
    passed_over: u64,
}

impl Unpacker {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Returns the number of entries of unknown kinds so far.
    pub(crate) fn passed_over(&self) -> u64 {
        self.passed_over
    }

    /// Returns the next entry; `None` at the end of the block, and after an error.
    pub(crate) fn take(&mut self) -> Result<Option<Entry>, PackError> {
        // Moved out, so that payloads can borrow from it.
        let bytes = std::mem::take(&mut self.bytes);
        let entry = self.take_of(&bytes);
        self.bytes = bytes;
        if entry.is_err() {
            self.at = self.bytes.len();
        }
        entry
    }

    fn take_of(&mut self, bytes: &[u8]) -> Result<Option<Entry>, PackError> {
        while self.at < bytes.len() {
            let (packed, rest) = postcard::take_from_bytes::<Packed<'_>>(&bytes[self.at..])?;
            self.at = bytes.len() - rest.len();
            if let Some(entry) = self.entry(packed)? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    fn entry(&mut self, packed: Packed<'_>) -> Result<Option<Entry>, PackError> {
        let event = match packed {
            Packed::Caller(caller) => {
                self.callers.push(caller);
                return Ok(None);
            }
            Packed::Thread(thread) => {
                self.threads.push(thread);
                return Ok(None);
            }
            Packed::Alloc { caller, address, size_bytes, time } => {
                Event::Alloc(self.allocation(caller, address, size_bytes, time)?)
            }
            Packed::Restore { caller, address, size_bytes, time } => {
                Event::Restore(self.allocation(caller, address, size_bytes, time)?)
            }
            Packed::Free { thread, address, time, age_us } => {
                let thread = self.threads.get(thread as usize).ok_or(PackError::Dangling)?;
                Event::Free(Free {
                    pid: Pid(thread.pid),
                    tid: Tid(thread.tid),
                    address: self.near.address_at(address),
                    time: self.near.time_at(time),
                    age_us,
                })
            }
            Packed::Stack { pid, id, end, frames } => stack(pid, id, end, &frames)?,
            Packed::Remap { caller, old, new, time, took } => Event::Remap(self.remap(caller, old, new, time, took)?),
            Packed::Other { kind, payload } => return Ok(self.other(kind, payload)),
        };
        Ok(Some(Entry::Event(event)))
    }

    fn allocation(&mut self, caller: u32, address: i64, size_bytes: u64, time: i64) -> Result<Allocation, PackError> {
        let caller = *self.callers.get(caller as usize).ok_or(PackError::Dangling)?;
        Ok(Allocation {
            pid: Pid(caller.thread.pid),
            tid: Tid(caller.thread.tid),
            address: self.near.address_at(address),
            size_bytes,
            time: self.near.time_at(time),
            stack: StackId(caller.stack),
            interval: Interval::from_code(caller.interval),
            hook: HookId(caller.hook),
            heap: HeapId(caller.heap),
        })
    }

    fn remap(
        &mut self,
        caller: u32,
        old: (i64, u64),
        new: (i64, u64),
        time: i64,
        took: i64,
    ) -> Result<Remap, PackError> {
        let caller = *self.callers.get(caller as usize).ok_or(PackError::Dangling)?;
        let old_address = self.near.address_at(old.0);
        let new_address = self.near.address_at(new.0);
        let ended = self.near.time_at(time);
        Ok(Remap {
            pid: Pid(caller.thread.pid),
            tid: Tid(caller.thread.tid),
            old_address,
            old_bytes: old.1,
            new_address,
            new_bytes: new.1,
            began: MonotonicNanos(ended.0.wrapping_sub(took.cast_unsigned())),
            ended,
            stack: StackId(caller.stack),
            hook: HookId(caller.hook),
            heap: HeapId(caller.heap),
        })
    }

    /// Entries that cannot be decoded were added by a later version.
    fn other(&mut self, kind: u16, payload: &[u8]) -> Option<Entry> {
        let entry = match kind {
            STEP => postcard::from_bytes::<Step>(payload).ok().map(Entry::Step),
            FACT => serde_json::from_slice::<Fact>(payload).ok().map(Box::new).map(Entry::Fact),
            _ => None,
        };
        self.passed_over += u64::from(entry.is_none());
        entry
    }
}

fn stack(pid: u32, id: u64, end: u8, frames: &[i64]) -> Result<Event, PackError> {
    if frames.len() > STACK_FRAMES_MAX {
        return Err(PackError::Deep);
    }
    let mut at = 0u64;
    let address = |distance: &i64| {
        at = at.wrapping_add(distance.cast_unsigned());
        TargetAddr(at)
    };
    let frames: Arc<[TargetAddr]> = frames.iter().map(address).collect();
    let end = StackEnd::from_wire(end).ok_or(PackError::Dangling)?;
    Ok(Event::Stack(Pid(pid), StackId(id), Stack { frames, end }))
}
