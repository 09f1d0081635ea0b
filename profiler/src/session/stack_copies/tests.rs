//! Tests of copies and frames as they arrive.

use profiler_common::step::Registers;

use super::*;

const PAGE_BYTES: usize = 4096;

enum Arrival {
    Page(Pid, StackId, StackPage),
    Frames(Event),
}

fn page(pid: u32, id: u64, number: u64) -> Arrival {
    let registers = Registers { ip: id, sp: 0x1000, bp: 0, link: 0, is_return_address: true };
    let page = StackPage { registers, start: TargetAddr(0x1000 * (number + 1)), bytes: Arc::from([0; PAGE_BYTES]) };
    Arrival::Page(Pid(pid), StackId(id), page)
}

fn frames(pid: u32, id: u64) -> Arrival {
    let frames = Arc::from([TargetAddr(id)]);
    Arrival::Frames(Event::Stack(Pid(pid), StackId(id), Stack { frames, end: StackEnd::MissingModule }))
}

/// First frame and number of bytes of a copy that is to be resumed.
type Seen = (u64, usize);

/// Resumes copies as if each walk had found one more frame and ended like this.
fn resume(
    copies: &mut StackCopies,
    pid: u32,
    is_last: bool,
    end: StackEnd,
    is_unmapped: bool,
) -> (Vec<Seen>, Continued) {
    let mut seen = Vec::new();
    let continued = copies.resume(Pid(pid), is_last, |frames, copy| {
        seen.push((frames[0].0, copy.bytes()));
        let frames = frames.iter().copied().chain([TargetAddr(9)]).collect();
        Resumed { stack: Stack { frames, end }, is_unmapped }
    });
    (seen, continued)
}

fn enter(copies: &mut StackCopies, arrivals: impl IntoIterator<Item = Arrival>) {
    for arrival in arrivals {
        match arrival {
            Arrival::Page(pid, id, page) => copies.add(pid, id, &page),
            Arrival::Frames(event) => copies.observe(&event),
        }
    }
}

#[test]
fn stacks_are_completed_that_a_copy_precedes() {
    let mut copies = StackCopies::default();
    let events = [frames(1, 5), page(1, 6, 0), page(2, 7, 0), page(1, 6, 1), frames(2, 7), frames(1, 6), page(1, 8, 0)];
    enter(&mut copies, events);
    assert_eq!(copies.pids(), [Pid(1), Pid(2)]);
    let (seen, continued) = resume(&mut copies, 1, false, StackEnd::Complete, false);
    assert_eq!(seen, [(6, 2 * PAGE_BYTES)]);
    let stack = Stack { frames: Arc::from([TargetAddr(6), TargetAddr(9)]), end: StackEnd::Complete };
    assert_eq!((continued.stacks, continued.unmapped), (vec![(StackId(6), stack)], 0));
    assert!(!copies.has(Pid(1)) && copies.has(Pid(2)));
    assert_eq!(resume(&mut copies, 1, true, StackEnd::Complete, false).0, [], "each once");
}

#[test]
fn stacks_wait_for_a_reload_unless_it_was_the_last() {
    let mut copies = StackCopies::default();
    enter(&mut copies, [page(1, 6, 0), frames(1, 6)]);
    let (_, continued) = resume(&mut copies, 1, false, StackEnd::MissingModule, true);
    assert_eq!((continued.stacks.len(), continued.unmapped), (0, 1));
    assert!(copies.has(Pid(1)));
    let (seen, continued) = resume(&mut copies, 1, true, StackEnd::MissingModule, true);
    assert_eq!((seen.len(), continued.stacks.len(), continued.unmapped), (1, 1, 1), "further frames are kept");
    assert_eq!((copies.has(Pid(1)), copies.bytes), (false, 0));
}

#[test]
fn the_number_of_bytes_is_limited() {
    let mut copies = StackCopies::default();
    let fitting = (BYTES_MAX / PAGE_BYTES) as u64;
    enter(&mut copies, (0..fitting - 1).map(|id| page(1, id, 0)));
    enter(&mut copies, [page(2, u64::MAX, 0), frames(2, u64::MAX)]);
    assert_eq!(copies.bytes, BYTES_MAX);
    // This copy makes room: the frames of the older copies were probably dropped.
    enter(&mut copies, [page(1, fitting, 0), frames(1, fitting), page(1, 3, 1), frames(1, 3)]);
    assert_eq!(copies.bytes, 2 * PAGE_BYTES);
    assert_eq!(resume(&mut copies, 2, true, StackEnd::Complete, false).0, [(u64::MAX, PAGE_BYTES)]);
}

#[test]
fn nothing_remains_of_a_process_that_has_ended() {
    let mut copies = StackCopies::default();
    enter(&mut copies, [page(1, 6, 0), frames(1, 6), page(1, 7, 0), page(2, 8, 0)]);
    copies.forget(Pid(1));
    assert_eq!((copies.pids(), copies.bytes), (vec![], PAGE_BYTES));
    enter(&mut copies, [frames(1, 7), frames(2, 8)]);
    assert_eq!(copies.pids(), [Pid(2)]);
}

#[test]
fn continued_stacks_count_by_their_final_ends() {
    let mut copies = StackCopies::default();
    for (id, end) in
        [(1, StackEnd::Complete), (2, StackEnd::Complete), (3, StackEnd::NoRow), (4, StackEnd::MissingModule)]
    {
        enter(&mut copies, [page(1, id, 0), frames(1, id)]);
        resume(&mut copies, 1, true, end, false);
    }
    let mut counters = Counters::default();
    counters.add(Counter::StackMissingModule, 9);
    copies.correct(&mut counters);
    let ends: Vec<_> = counters.stack_ends().collect();
    assert_eq!(ends, [(Counter::StackComplete, 2), (Counter::StackMissingModule, 6), (Counter::StackNoRow, 1)]);
}
