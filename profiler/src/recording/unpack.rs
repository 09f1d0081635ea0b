//! Bytes of a block → entries: the way back from `pack`. Pure; any bytes give entries or a reason, never a panic.

use std::sync::Arc;

use profiler_common::interval::Interval;
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::stack::StackEnd;
use thiserror::Error;

use super::entry::{Entry, Fact, Step};
use super::pack::{Caller, FACT, Near, Packed, STEP, Thread};
use crate::address::TargetAddr;
use crate::ids::{HeapId, HookId, Pid, StackId, Tid};
use crate::ingest::event::{Allocation, Event, Free, Remap, Stack};
use crate::units::MonotonicNanos;

/// Why the bytes of a block are no entries, although they are what was written.
#[derive(Debug, Error)]
pub enum PackError {
    /// They are not of the format.
    #[error("its entries make no sense: {0}")]
    Malformed(#[from] postcard::Error),
    /// A number leads nowhere.
    #[error("its entries name what the block does not have")]
    Dangling,
    /// A stack has more frames than any has.
    #[error("a stack has more than {STACK_FRAMES_MAX} frames")]
    Deep,
}

/// Reads the entries of one block.
#[derive(Debug, Default)]
pub(crate) struct Unpacker {
    bytes: Vec<u8>,
    at: usize,
    callers: Vec<Caller>,
    threads: Vec<Thread>,
    near: Near,
    /// Entries of kinds that this version does not know.
    passed_over: u64,
}

impl Unpacker {
    /// For the bytes of a block.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Entries of kinds that this version does not know, so far.
    pub(crate) fn passed_over(&self) -> u64 {
        self.passed_over
    }

    /// The next entry; `None` when that was all.
    ///
    /// # Errors
    ///
    /// See [`PackError`]. There is nothing to be had behind one.
    pub(crate) fn take(&mut self) -> Result<Option<Entry>, PackError> {
        // Taken out, so that what is read of it can be kept while the rest changes.
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

    /// What cannot be read here is of a kind that a later version has.
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
