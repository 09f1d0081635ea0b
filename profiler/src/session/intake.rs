//! Intake of kernel events: drains the ring buffer and passes each record to the ledgers and to the queue of process changes.

use std::io;

use rustc_hash::FxHashMap;
use tracing::debug;

use super::lifecycle::Lifecycle;
use super::process_table::ProcessTable;
use super::rates::Rates;
use super::resync::Resync;
use crate::bpf::ring::Ring;
use crate::ids::{Pid, StackId};
use crate::ingest::decode::decode;
use crate::ingest::event::{Event, RawStack, Stack};

/// Maximum number of records per drain, so that timers and signals are handled in between.
const BATCH_MAX: usize = 65_536;

pub(super) struct Intake {
    ring: Ring,
    raw: RawStacks,
    records_unreadable: u64,
}

impl Intake {
    pub(super) fn new(ring: Ring, raw_stacks_max: usize) -> Self {
        Self { ring, raw: RawStacks::new(raw_stacks_max), records_unreadable: 0 }
    }

    pub(super) async fn filled(&mut self) -> io::Result<()> {
        self.ring.filled().await
    }

    pub(super) fn unread_bytes(&self) -> u64 {
        self.ring.unread_bytes()
    }

    /// Number of records that could not be decoded.
    pub(super) fn unreadable(&self) -> u64 {
        self.records_unreadable
    }

    /// Enters a batch of records. Returns whether it emptied the ring buffer.
    pub(super) fn take_records(
        &mut self,
        processes: &mut ProcessTable,
        lifecycle: &mut Lifecycle,
        rates: &mut Rates,
        resync: &mut Resync,
    ) -> bool {
        let Self { ring, raw, records_unreadable } = self;
        processes.record_corrections();
        let count = ring.drain(BATCH_MAX, |record| match decode(record) {
            Ok(Event::Fork(fork)) => lifecycle.forked(fork, processes),
            Ok(Event::Exec(exec)) => lifecycle.executed(exec, processes),
            Ok(mut event) => {
                rates.count(record.len(), &event);
                resync.observe(&mut event);
                raw.enter(&event);
                processes.enter(event);
            }
            Err(error) => {
                *records_unreadable += 1;
                debug!("{error}");
            }
        });
        count < BATCH_MAX
    }

    /// Returns the raw stacks since the last call whose frames are known.
    pub(super) fn take_raw_stacks(&mut self) -> Vec<RawSample> {
        self.raw.take()
    }
}

/// A stack as memory and as frames, for verifying the kernel side's unwinder.
#[derive(Clone, Debug)]
pub struct RawSample {
    /// The target.
    pub pid: Pid,
    /// Id of the stack.
    pub id: StackId,
    /// Stack memory, and the registers that unwinding started with.
    pub raw: RawStack,
    /// The frames found by the kernel side.
    pub stack: Stack,
}

/// Raw stacks that were not returned yet, and all frames. Empty in ordinary recordings.
#[derive(Debug)]
struct RawStacks {
    max: usize,
    copies: Vec<(Pid, StackId, RawStack)>,
    stacks: FxHashMap<StackId, Stack>,
}

impl RawStacks {
    fn new(max: usize) -> Self {
        Self { max, copies: Vec::new(), stacks: FxHashMap::default() }
    }

    fn enter(&mut self, event: &Event) {
        match event {
            Event::RawStack(pid, id, raw) if self.copies.len() < self.max => {
                self.copies.push((*pid, *id, raw.clone()));
            }
            Event::Stack(_, id, stack) if self.max > 0 => {
                self.stacks.insert(*id, stack.clone());
            }
            _ => {}
        }
    }

    /// Returns the copies whose frames are known. Frames may arrive after the copy.
    fn take(&mut self) -> Vec<RawSample> {
        let (known, unknown) =
            std::mem::take(&mut self.copies).into_iter().partition(|(_, id, _)| self.stacks.contains_key(id));
        self.copies = unknown;
        known
            .into_iter()
            .filter_map(|(pid, id, raw)| Some(RawSample { pid, id, raw, stack: self.stacks.get(&id)?.clone() }))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use profiler_common::stack::StackEnd;

    use super::*;
    use crate::address::TargetAddr;

    fn copy(id: u64) -> Event {
        let raw = RawStack { sp: TargetAddr(id), bp: 0, start: TargetAddr(0), bytes: Arc::from([0; 8]) };
        Event::RawStack(Pid(1), StackId(id), raw)
    }

    fn frames(id: u64) -> Event {
        let stack = Stack { frames: Arc::from([TargetAddr(id)]), end: StackEnd::Complete };
        Event::Stack(Pid(1), StackId(id), stack)
    }

    fn check(max: usize, events: &[Event], expected: &[u64]) -> RawStacks {
        let mut raw = RawStacks::new(max);
        events.iter().for_each(|event| raw.enter(event));
        let taken = raw.take();
        assert_eq!(taken.iter().map(|sample| sample.id.0).collect::<Vec<_>>(), expected);
        assert!(taken.iter().all(|sample| sample.stack.frames[0] == sample.raw.sp), "paired by id: {taken:?}");
        raw
    }

    #[test]
    fn every_copy_is_returned_once_with_its_frames() {
        let mut raw = check(9, &[frames(1), copy(1), copy(2), frames(2), copy(1)], &[1, 2, 1]);
        assert_eq!(raw.take().len(), 0);
        raw.enter(&copy(2));
        assert_eq!(raw.take().len(), 1, "frames are kept");
    }

    #[test]
    fn a_copy_waits_for_its_frames() {
        let mut raw = check(9, &[copy(1)], &[]);
        raw.enter(&frames(1));
        assert_eq!(raw.take().len(), 1);
    }

    #[test]
    fn at_most_the_requested_number_is_kept() {
        check(2, &[frames(1), copy(1), copy(1), copy(1)], &[1, 1]);
        assert_eq!(check(0, &[frames(1), copy(1)], &[]).stacks.len(), 0);
    }
}
