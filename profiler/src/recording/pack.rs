//! Entries → bytes of a block; the way back is `unpack`. Pure. What repeats within a block is said once: who called, from
//! where, and the high digits of addresses and times. Blocks know nothing of each other.

use profiler_common::interval::Interval;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::entry::Entry;
use crate::address::TargetAddr;
use crate::ingest::event::{Allocation, Event, Remap};
use crate::units::MonotonicNanos;

/// An entry as it is written, with postcard. New variants go to the end, and change the major version; whatever can be an
/// `Other` need not.
#[derive(Deserialize, Serialize)]
pub(super) enum Packed<'block> {
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
    /// Each frame as its distance from the one before.
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
        /// The end of the call, and how long it took.
        time: i64,
        took: i64,
    },
    /// Anything else, which a reader may pass over.
    Other {
        kind: u16,
        #[serde(borrow)]
        payload: &'block [u8],
    },
}

/// Kinds of [`Packed::Other`].
pub(super) const STEP: u16 = 1;
pub(super) const FACT: u16 = 2;

/// Everything about an allocating call that calls have in common.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub(super) struct Caller {
    pub(super) thread: Thread,
    pub(super) stack: u64,
    pub(super) interval: u32,
    pub(super) hook: u16,
    pub(super) heap: u8,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub(super) struct Thread {
    pub(super) pid: u32,
    pub(super) tid: u32,
}

/// Writes the entries of one block.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    bytes: Vec<u8>,
    callers: FxHashMap<Caller, u32>,
    threads: FxHashMap<Thread, u32>,
    near: Near,
}

/// What the next address and the next time are told from.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Near {
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

    pub(super) fn address_at(&mut self, distance: i64) -> TargetAddr {
        self.address = self.address.wrapping_add(distance.cast_unsigned());
        TargetAddr(self.address)
    }

    pub(super) fn time_at(&mut self, distance: i64) -> MonotonicNanos {
        self.time = self.time.wrapping_add(distance.cast_unsigned());
        MonotonicNanos(self.time)
    }
}

impl Packer {
    /// How much was written.
    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes of the block. What is added next is of another one.
    pub(crate) fn finish(&mut self, block: impl FnOnce(&[u8])) {
        block(&self.bytes);
        self.bytes.clear();
        self.callers.clear();
        self.threads.clear();
        self.near = Near::default();
    }

    /// Adds an event, step or fact. Of events, those that the session itself acts on are left out: forks, execs and copies
    /// of stacks.
    ///
    /// # Panics
    ///
    /// If memory runs out, or a fact is no JSON, which all are.
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
            // They have blocks of their own.
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
        let next = u32::try_from(self.callers.len()).expect("a block is no gigabyte");
        if let Some(&known) = self.callers.get(&caller) {
            return known;
        }
        self.callers.insert(caller, next);
        self.write(&Packed::Caller(caller));
        next
    }

    fn thread(&mut self, thread: Thread) -> u32 {
        let next = u32::try_from(self.threads.len()).expect("a block is no gigabyte");
        if let Some(&known) = self.threads.get(&thread) {
            return known;
        }
        self.threads.insert(thread, next);
        self.write(&Packed::Thread(thread));
        next
    }

    fn write(&mut self, packed: &Packed<'_>) {
        let bytes = std::mem::take(&mut self.bytes);
        self.bytes = postcard::to_extend(packed, bytes).expect("it goes to memory");
    }
}
