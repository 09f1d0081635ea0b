//! Copies of raw stacks, for verifying the kernel side's unwinder. Ordinary recordings have none.

use heapbpf_base::ids::{Pid, StackId};
use heapbpf_ledger::ingest::event::{Event, Stack};
use heapbpf_ledger::ingest::record::RawStack;
use rustc_hash::FxHashMap;

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
    pub(super) fn add(&mut self, pid: Pid, id: StackId, raw: RawStack, copies_max: usize) {
        if self.copies.len() < copies_max {
            self.copies.push((pid, id, raw));
        }
    }

    /// Notes the frames of a stack.
    pub(super) fn observe(&mut self, event: &Event, copies_max: usize) {
        if let Event::Stack(_, id, stack) = event
            && copies_max > 0
        {
            self.stacks.insert(*id, stack.clone());
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

    use heapbpf_base::address::TargetAddr;
    use profiler_common::stack::StackEnd;

    use super::*;

    enum Arrival {
        Copy(u64),
        Frames(u64),
    }

    use Arrival::{Copy, Frames};

    fn enter(stacks: &mut RawStacks, arrival: &Arrival, max: usize) {
        match *arrival {
            Copy(id) => stacks.add(Pid(1), StackId(id), raw(id), max),
            Frames(id) => stacks.observe(&frames(id), max),
        }
    }

    fn raw(id: u64) -> RawStack {
        RawStack { sp: TargetAddr(id), bp: 0, caller: TargetAddr(0), start: TargetAddr(0), bytes: Arc::from([0; 8]) }
    }

    fn frames(id: u64) -> Event {
        let stack = Stack { frames: Arc::from([TargetAddr(id)]), end: StackEnd::Complete };
        Event::Stack(Pid(1), StackId(id), stack)
    }

    fn check(max: usize, arrivals: &[Arrival], expected: &[u64]) -> RawStacks {
        let mut raw = RawStacks::default();
        arrivals.iter().for_each(|arrival| enter(&mut raw, arrival, max));
        let taken = raw.take();
        assert_eq!(taken.iter().map(|sample| sample.id.0).collect::<Vec<_>>(), expected);
        assert!(taken.iter().all(|sample| sample.stack.frames[0] == sample.raw.sp), "paired by id: {taken:?}");
        raw
    }

    #[test]
    fn every_copy_is_returned_once_with_its_frames() {
        let mut raw = check(9, &[Frames(1), Copy(1), Copy(2), Frames(2), Copy(1)], &[1, 2, 1]);
        assert_eq!(raw.take().len(), 0);
        enter(&mut raw, &Copy(2), 9);
        assert_eq!(raw.take().len(), 1, "frames are kept");
    }

    #[test]
    fn a_copy_waits_for_its_frames() {
        let mut raw = check(9, &[Copy(1)], &[]);
        enter(&mut raw, &Frames(1), 9);
        assert_eq!(raw.take().len(), 1);
    }

    #[test]
    fn at_most_the_requested_number_is_kept() {
        check(2, &[Frames(1), Copy(1), Copy(1), Copy(1)], &[1, 1]);
        assert_eq!(check(0, &[Frames(1), Copy(1)], &[]).stacks.len(), 0);
    }
}
