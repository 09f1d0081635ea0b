//! Copies of raw stacks, for verifying the kernel side's unwinder. Ordinary recordings have none.

use rustc_hash::FxHashMap;

use crate::ids::{Pid, StackId};
use crate::ingest::event::{Event, RawStack, Stack};

#[derive(Clone, Debug)]
pub struct RawSample {
    pub pid: Pid,
    pub id: StackId,
    pub raw: RawStack,
    pub stack: Stack,
}

#[derive(Debug, Default)]
pub(super) struct RawStacks {
    copies: Vec<(Pid, StackId, RawStack)>,
    stacks: FxHashMap<StackId, Stack>,
}

impl RawStacks {
    pub(super) fn enter(&mut self, event: &Event, copies_max: usize) {
        match event {
            Event::RawStack(pid, id, raw) if self.copies.len() < copies_max => {
                self.copies.push((*pid, *id, raw.clone()));
            }
            Event::Stack(_, id, stack) if copies_max > 0 => {
                self.stacks.insert(*id, stack.clone());
            }
            _ => {}
        }
    }

    /// Returns the copies whose frames are known. Frames may arrive after the copy.
    pub(super) fn take(&mut self) -> Vec<RawSample> {
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
        let raw = RawStack {
            sp: TargetAddr(id),
            bp: 0,
            caller: TargetAddr(0),
            start: TargetAddr(0),
            bytes: Arc::from([0; 8]),
        };
        Event::RawStack(Pid(1), StackId(id), raw)
    }

    fn frames(id: u64) -> Event {
        let stack = Stack { frames: Arc::from([TargetAddr(id)]), end: StackEnd::Complete };
        Event::Stack(Pid(1), StackId(id), stack)
    }

    fn check(max: usize, events: &[Event], expected: &[u64]) -> RawStacks {
        let mut raw = RawStacks::default();
        events.iter().for_each(|event| raw.enter(event, max));
        let taken = raw.take();
        assert_eq!(taken.iter().map(|sample| sample.id.0).collect::<Vec<_>>(), expected);
        assert!(taken.iter().all(|sample| sample.stack.frames[0] == sample.raw.sp), "paired by id: {taken:?}");
        raw
    }

    #[test]
    fn every_copy_is_returned_once_with_its_frames() {
        let mut raw = check(9, &[frames(1), copy(1), copy(2), frames(2), copy(1)], &[1, 2, 1]);
        assert_eq!(raw.take().len(), 0);
        raw.enter(&copy(2), 9);
        assert_eq!(raw.take().len(), 1, "frames are kept");
    }

    #[test]
    fn a_copy_waits_for_its_frames() {
        let mut raw = check(9, &[copy(1)], &[]);
        raw.enter(&frames(1), 9);
        assert_eq!(raw.take().len(), 1);
    }

    #[test]
    fn at_most_the_requested_number_is_kept() {
        check(2, &[frames(1), copy(1), copy(1), copy(1)], &[1, 1]);
        assert_eq!(check(0, &[frames(1), copy(1)], &[]).stacks.len(), 0);
    }
}
