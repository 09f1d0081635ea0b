//! The step on synthetic frames, and against a direct evaluation of each rule over arbitrary memory.

use super::*;
use crate::unwind::tests::{caller_bp, cfa};
use crate::unwind::{CallerBp, Cfa};
use proptest::prelude::*;

/// A stack of words from 0x1000 on.
struct Words<'a>(&'a [u64]);

impl ReadMemory for Words<'_> {
    fn read_u64(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(0x1000)?;
        (offset % 8 == 0).then(|| self.0.get(usize::try_from(offset / 8).ok()?).copied())?
    }
}

/// Memory with a pseudo-random word at every address; some are unreadable.
struct Noise(u64);

impl ReadMemory for Noise {
    fn read_u64(&self, address: u64) -> Option<u64> {
        let mixed = (address ^ self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (!mixed.is_multiple_of(7)).then_some(mixed ^ (mixed >> 29))
    }
}

fn rule(cfa: Cfa, bp: CallerBp) -> Rule {
    Rule::new(cfa, bp).expect("shrinks the stack")
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
fn a_frame_relative_to_rsp() {
    let leaf = rule(Cfa::Sp { offset: 8 }, CallerBp::Same);
    check(leaf, at(0x1000, 77), &[0x40_0200], caller(0x40_0200, 0x1008, 77));
    let saved = rule(Cfa::Sp { offset: 24 }, CallerBp::AtCfa(-16));
    check(saved, at(0x1000, 77), &[1, 0x9000, 0x40_0200], caller(0x40_0200, 0x1018, 0x9000));
}

#[test]
fn a_frame_relative_to_rbp() {
    let ordinary = rule(Cfa::Bp { offset: 16 }, CallerBp::AtCfa(-16));
    check(ordinary, at(0x1000, 0x1010), &[1, 2, 0x1040, 0x40_0200], caller(0x40_0200, 0x1020, 0x1040));
    // The call was moved to this stack from another, lower one.
    check(ordinary, at(0x8000, 0x1010), &[1, 2, 0x1040, 0x40_0200], caller(0x40_0200, 0x1020, 0x1040));
}

#[test]
fn a_frame_whose_stack_was_aligned() {
    // gcc keeps the address above the return address at rbp-8, and the caller's rbp at rbp itself.
    let compiled = rule(Cfa::AtBp { slot: -8, add: 0 }, CallerBp::AtBp(0));
    check(compiled, at(0x1000, 0x1010), &[1, 0x1028, 0x9000, 3, 0x40_0200], caller(0x40_0200, 0x1028, 0x9000));
    let assembly = rule(Cfa::AtSp { slot: 8, add: 8 }, CallerBp::AtCfa(-16));
    check(assembly, at(0x1000, 5), &[1, 0x1018, 0x9000, 0x40_0200], caller(0x40_0200, 0x1020, 0x9000));
}

#[test]
fn a_linkage_table_before_and_after_its_push() {
    let plt = rule(Cfa::Plt { offset: 8, threshold: 11 }, CallerBp::Same);
    let stack = [0x40_0200, 0x40_0300];
    let before = Registers { ip: 0x40_010a, ..at(0x1000, 7) };
    check(plt, before, &stack, caller(0x40_0200, 0x1008, 7));
    let after = Registers { ip: 0x40_010b, ..at(0x1000, 7) };
    check(plt, after, &stack, caller(0x40_0300, 0x1010, 7));
}

#[test]
fn a_signal_frame_leads_to_the_interrupted_instruction() {
    let mut stack = [0; 22];
    (stack[15], stack[20], stack[21]) = (0xb0, 0x7000, 0x40_0555);
    let interrupted = Registers { ip: 0x40_0555, sp: 0x7000, bp: 0xb0, link: 0, is_return_address: false };
    check(Rule::SIGNAL, at(0x1000, 7), &stack, Step::Caller(interrupted));
    assert_eq!(interrupted.lookup_address(), 0x40_0555);
    check(Rule::SIGNAL, at(0x1000, 7), &stack[..21], Step::End(StackEnd::Unreadable));
}

#[test]
fn a_chain_of_frame_pointers() {
    let stack = [1, 2, 0x1040, 0x40_0200];
    check(Rule::FRAME_POINTER, at(0x1000, 0x1010), &stack, caller(0x40_0200, 0x1020, 0x1040));
    check(Rule::FRAME_POINTER, at(0x1000, 0), &stack, Step::End(StackEnd::Complete));
    check(Rule::FRAME_POINTER, at(0x1018, 0x1010), &stack, Step::End(StackEnd::BrokenChain));
    check(Rule::FRAME_POINTER, at(0x1000, 0x1011), &stack, Step::End(StackEnd::BrokenChain));
    check(Rule::FRAME_POINTER, at(0x1000, 0x9000), &stack, Step::End(StackEnd::Unreadable));
}

#[test]
fn stack_ends() {
    let leaf = rule(Cfa::Sp { offset: 8 }, CallerBp::Same);
    check(Rule::END, at(0x1000, 7), &[1], Step::End(StackEnd::Complete));
    check(leaf, at(0x1000, 7), &[0], Step::End(StackEnd::Complete));
    check(leaf, at(0x1008, 7), &[1], Step::End(StackEnd::Unreadable));
    check(Rule::GAP, at(0x1000, 7), &[1], Step::End(StackEnd::NoRow));
    check(Rule::UNSUPPORTED, at(0x1000, 7), &[1], Step::End(StackEnd::UnsupportedRule));
    // A frame that is its own caller.
    let still = rule(Cfa::Bp { offset: 0 }, CallerBp::Same);
    check(still, at(0x1008, 0x1008), &[5, 6], Step::End(StackEnd::BrokenChain));
}

#[test]
fn return_addresses_are_looked_up_inside_the_call() {
    assert_eq!(at(0, 0).lookup_address(), 0x40_00ff);
    assert_eq!(Registers { ip: 0, ..at(0, 0) }.lookup_address(), u64::MAX);
    assert_eq!(Registers { link: 0, is_return_address: false, ..at(0, 0) }.lookup_address(), 0x40_0100);
}

/// `base + offset` in 64 bits.
fn plus(base: u64, offset: i64) -> u64 {
    let sum = (i128::from(base) + i128::from(offset)).rem_euclid(1 << 64);
    u64::try_from(sum).expect("reduced to 64 bits")
}

/// Evaluates a rule as its documentation specifies.
fn plainly(rule: Rule, registers: &Registers, memory: &Noise) -> Option<Step> {
    let cfa = match rule.cfa()? {
        Cfa::Sp { offset } => plus(registers.sp, offset.into()),
        Cfa::Bp { offset } => plus(registers.bp, offset.into()),
        Cfa::AtSp { slot, add } => plus(memory.read_u64(plus(registers.sp, slot.into()))?, add.into()),
        Cfa::AtBp { slot, add } => plus(memory.read_u64(plus(registers.bp, slot.into()))?, add.into()),
        Cfa::Plt { offset, threshold } => {
            plus(registers.sp, i64::from(offset) + if registers.ip % 16 >= u64::from(threshold) { 8 } else { 0 })
        }
    };
    let bp = match rule.caller_bp() {
        CallerBp::Same => registers.bp,
        CallerBp::AtCfa(offset) => memory.read_u64(plus(cfa, offset.into()))?,
        CallerBp::AtBp(offset) => memory.read_u64(plus(registers.bp, offset.into()))?,
        CallerBp::Lost => 0,
    };
    let ip = memory.read_u64(plus(cfa, -8))?;
    Some(match ip {
        0 => Step::End(StackEnd::Complete),
        _ if cfa == registers.sp => Step::End(StackEnd::BrokenChain),
        _ => caller(ip, cfa, bp),
    })
}

#[test]
fn calls_are_recognised_at_the_end_of_code() {
    let code = |last: &[u8]| {
        let mut bytes = [0x90; 8];
        bytes[8 - last.len()..].copy_from_slice(last);
        u64::from_le_bytes(bytes)
    };
    // `call target`, `call *%rax`, `call *%r12`, `call *(%rax)`, `call *8(%rsp)`, `call *0x1234(%rip)`, `call *0x1234(%rax,%rcx,8)`.
    let calls: [&[u8]; 7] = [
        &[0xe8, 1, 2, 3, 4],
        &[0xff, 0xd0],
        &[0x41, 0xff, 0xd4],
        &[0xff, 0x10],
        &[0xff, 0x54, 0x24, 8],
        &[0xff, 0x15, 0x34, 0x12, 0, 0],
        &[0xff, 0x94, 0xc8, 0x34, 0x12, 0, 0],
    ];
    assert_eq!(calls.map(|call| ends_with_call(code(call))), [true; 7]);
    // Nothing, `jmp target`, `jmp *%rax`, `push (%rax)`, pointers.
    let others: [&[u8]; 6] =
        [&[], &[0xe9, 1, 2, 3, 4], &[0xff, 0xe0], &[0xff, 0x30], &[0x10, 0x20, 0x7f, 0x1c, 0x55, 0x55, 0, 0], &[0; 8]];
    assert_eq!(others.map(|other| ends_with_call(code(other))), [false; 6]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn every_rule_matches_its_specification(
        cfa in cfa(),
        caller_bp in caller_bp(),
        (ip, sp, bp, is_return_address) in any::<(u64, u64, u64, bool)>(),
        seed in any::<u64>(),
    ) {
        let rule = rule(cfa, caller_bp);
        let registers = Registers { ip, sp, bp, link: 0, is_return_address };
        let memory = Noise(seed);
        let want = plainly(rule, &registers, &memory).unwrap_or(Step::End(StackEnd::Unreadable));
        prop_assert_eq!(step(&registers, rule, &memory), want);
    }

    #[test]
    fn arbitrary_registers_do_not_panic(
        reserved in 0..Rule::RESERVED.len(),
        (ip, sp, bp, is_return_address) in any::<(u64, u64, u64, bool)>(),
        seed in any::<u64>(),
    ) {
        step(&Registers { ip, sp, bp, link: 0, is_return_address }, Rule::RESERVED[reserved], &Noise(seed));
    }
}
