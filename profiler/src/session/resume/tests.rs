//! Tests of walks over synthetic stacks.

use profiler_common::unwind::{CallerBp, Cfa};
use proptest::prelude::*;

use super::*;

const STACK: u64 = 0x7ffc_0000_1000;
const PAGE: usize = 4096;

fn registers(ip: u64, sp: u64) -> Registers {
    Registers { ip, sp, bp: 0, link: 0, is_return_address: true }
}

/// A copy that begins at [`STACK`] and contains these words by their offset in bytes, else zeros.
fn copy(registers: Registers, pages: usize, words: &[(usize, u64)]) -> StackCopy {
    let mut bytes = vec![0; pages * PAGE];
    for &(at, word) in words {
        bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    }
    let mut pages = bytes.chunks(PAGE).zip(0..).map(|(bytes, number)| StackPage {
        registers,
        start: TargetAddr(STACK + number * PAGE_BYTES),
        bytes: Arc::from(bytes),
    });
    let mut copy = StackCopy::new(&pages.next().expect("at least one page"));
    pages.for_each(|page| assert!(copy.append(&page)));
    copy
}

fn sp(offset: i32) -> Result<Rule, NoRule> {
    Ok(Rule::new(Cfa::Sp { offset }, CallerBp::Same).expect("representable"))
}

/// Three modules: frames of 0x20 bytes, frames by frame pointer with rbp at the CFA, and the thread's first function.
fn rule(address: u64) -> Result<Rule, NoRule> {
    match address >> 16 {
        1 => sp(0x20),
        2 => Ok(Rule::new(Cfa::Sp { offset: 0x1000 }, CallerBp::AtCfa(-16)).expect("representable")),
        3 => Ok(Rule::FRAME_POINTER),
        4 => Ok(Rule::END),
        5 => Err(NoRule::NoTable),
        6 => Err(NoRule::Gap),
        _ => Err(NoRule::Unmapped),
    }
}

fn frames(addresses: &[u64]) -> Vec<TargetAddr> {
    addresses.iter().map(|&address| TargetAddr(address)).collect()
}

#[track_caller]
fn check(copy: &StackCopy, before: &[u64], after: &[u64], end: StackEnd, is_unmapped: bool) {
    let resumed = resume(&frames(before), copy, rule);
    assert_eq!(resumed.stack, Stack { frames: Arc::from(frames(&[before, after].concat())), end });
    assert_eq!(resumed.is_unmapped, is_unmapped);
}

#[test]
fn a_walk_continues_through_several_modules_to_the_first_frame() {
    let bp = STACK + 0x1100;
    let words = [(0x28, 0x2_0042), (0x1020, bp), (0x1028, 0x3_0042), (0x1100, 0), (0x1108, 0x4_0042)];
    let copy = copy(registers(0x1_0042, STACK + 0x10), 2, &words);
    check(&copy, &[0x9_0000, 0x1_0042], &[0x2_0042, 0x3_0042, 0x4_0042], StackEnd::Complete, false);
}

#[test]
fn a_walk_that_leaves_the_copy_stays_cut_with_the_frames_so_far() {
    let last_word = copy(registers(0x1_0042, STACK + 0xfe0), 1, &[(0xff8, 0x1_0043)]);
    check(&last_word, &[0x1_0042], &[0x1_0043], StackEnd::MissingModule, false);
    let below = copy(registers(0x1_0042, STACK - 0x40), 1, &[]);
    check(&below, &[0x1_0042], &[], StackEnd::MissingModule, false);
}

#[test]
fn ends_are_told_apart() {
    for (ip, end, is_unmapped) in [
        (0x7_0000, StackEnd::MissingModule, true),
        (0x5_0000, StackEnd::MissingModule, false),
        (0x6_0000, StackEnd::NoRow, false),
        (0, StackEnd::Complete, false),
    ] {
        let copy = copy(registers(0x1_0042, STACK), 1, &[(0x18, ip + u64::from(ip > 0))]);
        let after = if ip > 0 { vec![ip + 1] } else { Vec::new() };
        check(&copy, &[0x1_0042], &after, end, is_unmapped);
    }
}

#[test]
fn walks_have_at_most_as_many_frames_as_in_the_kernel() {
    let pages = usize::try_from(STACK_COPY_PAGES_MAX).expect("small");
    let words: Vec<(usize, u64)> = (0..pages * PAGE / 8).map(|word| (word * 8, 0x1_0042)).collect();
    let copy = copy(registers(0x1_0042, STACK), pages, &words);
    let Resumed { stack, is_unmapped } = resume(&frames(&[7, 0x1_0042]), &copy, |_| sp(8));
    assert_eq!((stack.frames.len(), stack.end, is_unmapped), (STACK_FRAMES_MAX, StackEnd::Truncated, false));
    assert_eq!(stack.frames[0], TargetAddr(7));
}

#[test]
fn only_the_next_page_of_the_same_stack_is_appended() {
    let registers = registers(0x1_0042, STACK);
    let page = |registers, start| StackPage { registers, start: TargetAddr(start), bytes: Arc::from([0; PAGE]) };
    let mut copy = StackCopy::new(&page(registers, STACK));
    assert!(!copy.append(&page(registers, STACK)), "the same again");
    assert!(!copy.append(&page(registers, STACK + 2 * PAGE_BYTES)), "one too far");
    assert!(!copy.append(&page(Registers { sp: 1, ..registers }, STACK + PAGE_BYTES)), "of another stack");
    for number in 1..STACK_COPY_PAGES_MAX {
        assert!(copy.append(&page(registers, STACK + number * PAGE_BYTES)));
    }
    assert!(!copy.append(&page(registers, STACK + STACK_COPY_PAGES_MAX * PAGE_BYTES)), "too many");
    assert_eq!(copy.bytes() as u64, STACK_COPY_PAGES_MAX * PAGE_BYTES);
}

fn any_rule() -> impl Strategy<Value = Result<Rule, NoRule>> {
    prop_oneof![
        any::<[u8; 8]>().prop_map(|bytes| Rule::from_bytes(bytes).ok_or(NoRule::Gap)),
        (8i32..200).prop_map(sp),
        Just(Ok(Rule::FRAME_POINTER)),
        Just(Ok(Rule::SIGNAL)),
        Just(Err(NoRule::Unmapped)),
    ]
}

proptest! {
    #[test]
    fn garbage_gives_a_bounded_stack_that_begins_as_before(
        words in proptest::collection::vec(prop_oneof![any::<u64>(), STACK..STACK + 0x1000, 0u64..8], 512),
        (ip, bp) in any::<(u64, u64)>(),
        sp in prop_oneof![any::<u64>(), STACK..STACK + 0x1000],
        rules in proptest::collection::vec(any_rule(), 1..16),
    ) {
        let words: Vec<(usize, u64)> = words.into_iter().enumerate().map(|(at, word)| (at * 8, word)).collect();
        let copy = copy(Registers { ip, sp, bp, link: 0, is_return_address: ip & 1 != 0 }, 1, &words);
        let before = frames(&[1, ip]);
        let resumed = resume(&before, &copy, |address| rules[usize::try_from(address % 16).expect("small") % rules.len()]);
        prop_assert!(resumed.stack.frames.starts_with(&before));
        prop_assert!(resumed.stack.frames.len() <= STACK_FRAMES_MAX);
        prop_assert!(!resumed.is_unmapped || resumed.stack.end == StackEnd::MissingModule);
    }
}
