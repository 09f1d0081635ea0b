//! Copies of stacks beside the frames that the kernel side found in them, for checking its unwinder against another one.
//! Empty in ordinary recordings.

use rustc_hash::FxHashMap;

use crate::ids::{Pid, StackId};
use crate::ingest::event::{Event, RawStack, Stack};

/// A stack as memory and as frames.
#[derive(Clone, Debug)]
pub struct RawSample {
    /// The target.
    pub pid: Pid,
    /// The stack's name.
    pub id: StackId,
    /// Its memory, and the registers that unwinding began with.
    pub raw: RawStack,
    /// What the kernel side made of them.
    pub stack: Stack,
}

/// Copies that nobody has asked for yet, and all frames.
#[derive(Debug)]
pub(super) struct RawStacks {
    /// Copies to keep at most.
    max: usize,
    copies: Vec<(Pid, StackId, RawStack)>,
    stacks: FxHashMap<StackId, Stack>,
}

impl RawStacks {
    pub(super) fn new(max: usize) -> Self {
        Self { max, copies: Vec::new(), stacks: FxHashMap::default() }
    }

    /// Keeps what is of use here.
    pub(super) fn enter(&mut self, event: &Event) {
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

    /// The copies whose frames are known. The others stay: frames may come later than the copy.
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
    fn every_copy_is_handed_out_once_with_its_frames() {
        let mut raw = check(9, &[frames(1), copy(1), copy(2), frames(2), copy(1)], &[1, 2, 1]);
        assert_eq!(raw.take().len(), 0);
        raw.enter(&copy(2));
        assert_eq!(raw.take().len(), 1, "frames stay known");
    }

    #[test]
    fn a_copy_waits_for_its_frames() {
        let mut raw = check(9, &[copy(1)], &[]);
        raw.enter(&frames(1));
        assert_eq!(raw.take().len(), 1);
    }

    #[test]
    fn no_more_are_kept_than_asked_for() {
        check(2, &[frames(1), copy(1), copy(1), copy(1)], &[1, 1]);
        assert_eq!(check(0, &[frames(1), copy(1)], &[]).stacks.len(), 0);
    }
}
