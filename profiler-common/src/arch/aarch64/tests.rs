//! The step on synthetic frames.

use super::*;
use crate::unwind::{CallerBp, Cfa, ReturnAddress};
use proptest::prelude::*;

/// A stack of words from 0x1000 on.
struct Words<'a>(&'a [u64]);

impl ReadMemory for Words<'_> {
    fn read_u64(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(0x1000)?;
        (offset % 8 == 0).then(|| self.0.get(usize::try_from(offset / 8).ok()?).copied())?
    }
}

fn rule(cfa: Cfa, bp: CallerBp, address: ReturnAddress) -> Rule {
    Rule::with_return_address(cfa, bp, address).expect("representable")
}

fn at(sp: u64, bp: u64) -> Registers {
    Registers { ip: 0x40_0100, sp, bp, link: 0, is_return_address: true }
}

fn caller(ip: u64, sp: u64, bp: u64) -> Step {
    Step::Caller(Registers { ip, sp, bp, link: 0, is_return_address: true })
}

fn check(rule: Rule, registers: Registers, stack: &[u64], want: Step) {
    assert_eq!(step(&registers, rule, &Words(stack)), want, "{rule:?}");
}

#[test]
fn a_frame_with_a_frame_record() {
    // stp x29, x30, [sp, #-32]!
    let frame = rule(Cfa::Sp { offset: 32 }, CallerBp::AtCfa(-32), ReturnAddress::AtCfa(-24));
    check(frame, at(0x1000, 0x1000), &[0x1020, 0x40_0200, 7, 7], caller(0x40_0200, 0x1020, 0x1020));
    let by_frame_pointer = rule(Cfa::Bp { offset: 32 }, CallerBp::AtCfa(-32), ReturnAddress::AtCfa(-24));
    check(by_frame_pointer, at(0xf00, 0x1000), &[0x1020, 0x40_0200], caller(0x40_0200, 0x1020, 0x1020));
}

#[test]
fn signatures_and_tags_are_removed_from_return_addresses() {
    let frame = rule(Cfa::Sp { offset: 16 }, CallerBp::AtCfa(-16), ReturnAddress::AtCfa(-8));
    let signed = 0xab2a_0000_0040_0200;
    check(frame, at(0x1000, 0), &[0x1020, signed], caller(0x40_0200, 0x1010, 0x1020));
    check(Rule::FRAME_POINTER, at(0x1000, 0x1000), &[0x1020, signed], caller(0x40_0200, 0x1011, 0x1020));
}

#[test]
fn only_interrupted_frames_have_their_return_address_in_the_link_register() {
    let leaf = rule(Cfa::Sp { offset: 0 }, CallerBp::Same, ReturnAddress::Link);
    let interrupted = Registers { link: 0x40_0300, is_return_address: false, ..at(0x1000, 7) };
    check(leaf, interrupted, &[], caller(0x40_0300, 0x1000, 7));
    check(leaf, at(0x1000, 7), &[], Step::End(StackEnd::Unreadable));
}

#[test]
fn a_signal_frame_leads_to_the_interrupted_instruction() {
    let mut stack = [0; 72];
    (stack[68], stack[69], stack[70], stack[71]) = (0xb0, 0x40_0666, 0x7000, 0x40_0555);
    let interrupted = Registers { ip: 0x40_0555, sp: 0x7000, bp: 0xb0, link: 0x40_0666, is_return_address: false };
    check(Rule::SIGNAL, at(0x1000, 7), &stack, Step::Caller(interrupted));
    check(Rule::SIGNAL, at(0x1000, 7), &stack[..71], Step::End(StackEnd::Unreadable));
}

#[test]
fn a_chain_of_frame_records() {
    let stack = [1, 2, 0x1040, 0x40_0200];
    check(Rule::FRAME_POINTER, at(0x1000, 0x1010), &stack, caller(0x40_0200, 0x1021, 0x1040));
    check(Rule::FRAME_POINTER, at(0x1000, 0), &stack, Step::End(StackEnd::Complete));
    check(Rule::FRAME_POINTER, at(0x1020, 0x1010), &stack, Step::End(StackEnd::BrokenChain));
    check(Rule::FRAME_POINTER, at(0x1021, 0x1010), &stack, Step::End(StackEnd::BrokenChain));
    check(Rule::FRAME_POINTER, at(0x1000, 0x1011), &stack, Step::End(StackEnd::BrokenChain));
}

#[test]
fn tables_continue_after_frame_pointers() {
    // x29 points to the record at the bottom of a frame of 32 bytes.
    let frame = rule(Cfa::Sp { offset: 32 }, CallerBp::AtCfa(-32), ReturnAddress::AtCfa(-24));
    check(frame, at(0x1001, 0x1000), &[0x1020, 0x40_0200, 7, 7], caller(0x40_0200, 0x1020, 0x1020));
    let without = rule(Cfa::Sp { offset: 16 }, CallerBp::Same, ReturnAddress::AtCfa(-16));
    check(without, at(0x1001, 0x1000), &[0x40_0200, 0], Step::End(StackEnd::Unreadable));
}

#[test]
fn stack_ends() {
    let frame = rule(Cfa::Sp { offset: 16 }, CallerBp::AtCfa(-16), ReturnAddress::AtCfa(-8));
    check(Rule::END, at(0x1000, 7), &[1], Step::End(StackEnd::Complete));
    check(frame, at(0x1000, 7), &[0, 0], Step::End(StackEnd::Complete));
    check(Rule::GAP, at(0x1000, 7), &[1], Step::End(StackEnd::NoRow));
    check(Rule::UNSUPPORTED, at(0x1000, 7), &[1], Step::End(StackEnd::UnsupportedRule));
    let still = rule(Cfa::Sp { offset: 0 }, CallerBp::Same, ReturnAddress::AtCfa(8));
    check(still, at(0x1000, 7), &[5, 6], Step::End(StackEnd::BrokenChain));
}

#[test]
fn calls_are_recognised_at_the_end_of_code() {
    let code = |last: u32| u64::from(last) << 32 | 0xd503_201f;
    // `bl`, `blr x3`, `blraa x3, sp`, `blraaz x3`, `blrab x3, x4`.
    let calls = [0x9400_0010, 0x97ff_fff0, 0xd63f_0060, 0xd73f_087f, 0xd63f_087f, 0xd73f_0c64];
    assert_eq!(calls.map(|call| ends_with_call(code(call))), [true; 6]);
    // `b`, `br x3`, `ret`, `nop`.
    let others = [0x1400_0010, 0xd61f_0060, 0xd65f_03c0, 0xd503_201f];
    assert_eq!(others.map(|other| ends_with_call(code(other))), [false; 4]);
}

proptest! {
    #[test]
    fn arbitrary_registers_and_rules_do_not_panic(
        bytes: [u8; 8],
        (ip, sp, bp, link, is_return_address) in any::<(u64, u64, u64, u64, bool)>(),
        words: [u64; 4],
    ) {
        let registers = Registers { ip, sp, bp, link, is_return_address };
        if let Some(rule) = Rule::from_bytes(bytes) {
            step(&registers, rule, &Words(&words));
        }
        for rule in Rule::RESERVED {
            step(&registers, rule, &Words(&words));
        }
    }
}
