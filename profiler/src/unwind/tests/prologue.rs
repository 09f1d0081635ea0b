//! Rules from machine code, for functions without unwind information.

use profiler_common::unwind::{CallerBp, Cfa, Rule};

use super::super::arch::Processor;

#[track_caller]
fn check(code: &[u8], expected: Option<(i32, CallerBp)>) {
    let rule = expected.and_then(|(offset, bp)| Rule::new(Cfa::Sp { offset }, bp));
    assert_eq!(Processor::X86_64.rule_at_first_call(code, 0x46_43c0), rule, "{code:x?}");
}

const CALL: [u8; 5] = [0xe8, 0x83, 0xa5, 0xff, 0xff];

#[test]
fn the_frame_of_go_s_entry_from_c_is_found() {
    // sub $0x30,%rsp; mov %rbp,0x28(%rsp); lea 0x28(%rsp),%rbp; mov %rbx,(%rsp); sub $0x18,%rsp; mov %rdi,(%rsp)
    let crosscall2 = [
        0x48, 0x83, 0xec, 0x30, 0x48, 0x89, 0x6c, 0x24, 0x28, 0x48, 0x8d, 0x6c, 0x24, 0x28, 0x48, 0x89, 0x1c, 0x24,
        0x48, 0x83, 0xec, 0x18, 0x48, 0x89, 0x3c, 0x24,
    ];
    check(&[&crosscall2[..], &CALL].concat(), Some((0x50, CallerBp::AtCfa(-16))));
    // push %rbp; push %rbx; lea -0x20(%rsp),%rsp; add $0x10,%rsp
    let pushes = [0x55, 0x53, 0x48, 0x8d, 0x64, 0x24, 0xe0, 0x48, 0x83, 0xc4, 0x10];
    check(&[&pushes[..], &CALL].concat(), Some((0x28, CallerBp::AtCfa(-16))));
    check(&CALL, Some((8, CallerBp::Same)));
}

#[test]
fn code_whose_frame_cannot_be_seen_has_no_rule() {
    let before_call = |code: &[u8]| check(&[code, &CALL].concat(), None);
    before_call(&[0x75, 0x02]); // jne
    before_call(&[0x48, 0x89, 0xc4]); // mov %rax,%rsp
    before_call(&[0x48, 0x83, 0xe4, 0xf0]); // and $-16,%rsp
    before_call(&[0x48, 0x8d, 0x24, 0x04]); // lea (%rsp,%rax),%rsp
    before_call(&[0x06]); // invalid
    before_call(&[0x90; 64]); // beyond the limit
    check(&[0x55, 0x90], None); // no call
    check(&[], None);
}
