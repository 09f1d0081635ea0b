//! Encodings as GNU binutils assemble them.

use super::*;

fn written(word: u32) -> Vec<u8> {
    Word(word).writes().iter().map(Register::number).collect()
}

#[test]
fn written_registers() {
    let check = |word, expected: &[u8]| assert_eq!(written(word), expected, "{word:#010x}");
    check(0xa9bc_7bfd, &[31]); // stp x29, x30, [sp, #-64]!
    check(0xa8c4_7bfd, &[29, 30, 31]); // ldp x29, x30, [sp], #64
    check(0xa941_53f3, &[19, 20]); // ldp x19, x20, [sp, #16]
    check(0xa901_53f3, &[]); // stp x19, x20, [sp, #16]
    check(0x6d01_a3e9, &[]); // stp d9, d8, [sp, #24]
    check(0x6cbf_23e9, &[31]); // stp d9, d8, [sp, #-16]!
    check(0xd102_43ff, &[31]); // sub sp, sp, #0x90
    check(0xf140_041f, &[]); // cmp x0, #0x1, lsl #12
    check(0xf100_0400, &[0]); // subs x0, x0, #1
    check(0xf240_2cbf, &[]); // tst x5, #0xfff
    check(0x9278_dcff, &[31]); // and sp, x7, #-256
    check(0xb000_0a77, &[23]); // adrp x23
    check(0xd53b_d042, &[2]); // mrs x2, tpidr_el0
    check(0xd51b_d042, &[]); // msr tpidr_el0, x2
    check(0xd503_233f, &[30]); // paciasp
    check(0xd503_245f, &[]); // bti c
    check(0xd503_211f, &[17]); // pacia1716
    check(0x9400_0001, &[30]); // bl
    check(0xd63f_0040, &[30]); // blr x2
    check(0xf940_0422, &[2]); // ldr x2, [x1, #8]
    check(0xf900_0422, &[]); // str x2, [x1, #8]
    check(0xf840_8422, &[1, 2]); // ldr x2, [x1], #8
    check(0xf800_8c22, &[1]); // str x2, [x1, #8]!
    check(0x3940_4020, &[0]); // ldrb w0, [x1, #16]
    check(0xb980_4020, &[0]); // ldrsw x0, [x1, #64]
    check(0xf980_0020, &[]); // prfm pldl1keep, [x1]
    check(0x3dc0_0020, &[]); // ldr q0, [x1]
    check(0xf863_6841, &[1]); // ldr x1, [x2, x3]
    check(0xf823_6841, &[]); // str x1, [x2, x3]
    check(0xf823_0041, &[1]); // ldadd x3, x1, [x2]
    check(0xf823_005f, &[]); // stadd x3, [x2]
    check(0xc85f_fc41, &[1, 2]); // ldaxr x1, [x2]: 2 by caution
    check(0x885f_7c41, &[1, 2]); // ldxr w1, [x2]
    check(0xc803_7c41, &[1, 2, 3, 4]); // stxr w3, x1, [x2]: the others by caution
    check(0xfa40_3040, &[]); // ccmp x2, x0, #0, cc
    check(0x9a81_22c3, &[3]); // csel x3, x22, x1, cs
    check(0x9bc1_7c02, &[2]); // umulh x2, x0, x1
    check(0x8b22_63ff, &[31]); // add sp, sp, x2
    check(0xeb22_63ff, &[]); // cmp sp, x2
    check(0x4c00_7000, &[]); // st1 {v0.16b}, [x0]
    check(0x4c9f_7000, &[0]); // st1 {v0.16b}, [x0], #16
    check(0x0000_0000, &[]); // udf #0
    assert_eq!(Word(0xc000_0000).writes(), Registers::ALL, "an instruction of SME");
}

#[test]
fn control() {
    let check = |word, expected| assert_eq!(Word(word).control(0x1000), expected, "{word:#010x}");
    check(0x1400_0002, Control::Jump(0x1008));
    check(0x17ff_ffff, Control::Jump(0xffc));
    check(0x9400_0002, Control::Call(0x1008));
    check(0xb400_0880, Control::Branch(0x1110)); // cbz x0
    check(0x35ff_ff80, Control::Branch(0xff0)); // cbnz w0
    check(0x5400_0121, Control::Branch(0x1024)); // b.ne
    check(0x5400_0131, Control::Branch(0x1024)); // bc.ne
    check(0xb7f8_0a80, Control::Branch(0x1150)); // tbnz x0, #63
    check(0x3607_ffe0, Control::Branch(0xffc)); // tbz w0, #0
    check(0x7401_0040, Control::Branch(0x1008)); // cbgt w0, w1
    check(0xd61f_0200, Control::JumpThrough(X16));
    check(0xd63f_0220, Control::CallThrough(X17));
    check(0xd71f_0a01, Control::JumpThrough(X16)); // braa x16, x1
    check(0xd63f_0a3f, Control::CallThrough(X17)); // blraaz x17
    check(0xd65f_03c0, Control::Return);
    check(0xd65f_0bff, Control::Return); // retaa
    check(0x5500_001f, Control::Return); // retaasppc
    check(0xd400_0001, Control::SystemCall);
    check(0xd420_0000, Control::Trap); // brk
    check(0xd69f_03e0, Control::Trap); // eret
    check(0x0000_0000, Control::Trap);
    check(0xd503_201f, Control::Next);
    check(0xf940_0422, Control::Next);
}

#[test]
fn operands() {
    let as_move = |word| Word(word).as_move().map(|it| (it.to.number(), it.from.number()));
    assert_eq!(as_move(0xaa01_03f4), Some((20, 1))); // mov x20, x1
    assert_eq!(as_move(0x9100_03fd), Some((29, 31))); // mov x29, sp
    assert_eq!(as_move(0x2a01_03f4), None); // mov w20, w1
    assert_eq!(as_move(0xaa1f_03f4), None); // mov x20, xzr
    assert_eq!(as_move(0xaa01_07f4), None); // lsl x20, x1, #1, as orr
    assert_eq!(as_move(0x9100_0401), None); // add x1, x0, #1
    assert_eq!(Word(0xb000_0000).address(0x1234), Some(0x2000));
    assert_eq!(Word(0x10ff_ffe0).address(0x1234), Some(0x1230)); // adr x0, . - 4
    assert_eq!(Word(0xf940_0422).address(0x1234), None);
    let words = |access: Access| {
        let words = access.words().map(|(register, distance)| (register.number(), distance)).collect::<Vec<_>>();
        (access.base.number(), words)
    };
    let load = |word| Word(word).as_load().map(words);
    assert_eq!(load(0xf940_0422), Some((1, vec![(2, 8)]))); // ldr x2, [x1, #8]
    assert_eq!(load(0xf85f_8022), Some((1, vec![(2, -8)]))); // ldur x2, [x1, #-8]
    assert_eq!(load(0xa97f_0c22), Some((1, vec![(2, -16), (3, -8)]))); // ldp x2, x3, [x1, #-16]
    assert_eq!(load(0xb940_0422), None); // ldr w2, [x1, #4]
    let store = |word| Word(word).as_store().map(|(access, adds)| (words(access), adds));
    assert_eq!(store(0xf900_0422), Some(((1, vec![(2, 8)]), false))); // str x2, [x1, #8]
    assert_eq!(store(0xf81f_0ffe), Some(((31, vec![(30, -16)]), true))); // str x30, [sp, #-16]!
    assert_eq!(store(0xa9be_7bfd), Some(((31, vec![(29, -32), (30, -24)]), true))); // stp x29, x30, [sp, #-32]!
    assert_eq!(store(0xa902_7bfd), Some(((31, vec![(29, 32), (30, 40)]), false))); // stp x29, x30, [sp, #32]
    assert_eq!(store(0xb900_0422), None); // str w2, [x1, #4]
}

#[test]
fn constants_and_sums() {
    let constant = |word| Word(word).as_constant().map(|(to, value)| (to.number(), value));
    assert_eq!(constant(0xd2a0_0020), Some((0, 0x1_0000))); // movz x0, #1, lsl #16
    assert_eq!(constant(0x9280_c1e0), Some((0, 1552_u64.wrapping_neg()))); // mov x0, #-1552
    assert_eq!(constant(0x5280_0020), None); // mov w0, #1
    let insertion = Word(0xf280_0300).as_insertion(); // movk x0, #0x18
    assert_eq!(insertion.map(|(to, kept, value)| (to.number(), kept, value)), Some((0, !0xffff, 0x18)));
    let addition = |word| Word(word).as_addition().map(|(to, from, value)| (to.number(), from.number(), value));
    assert_eq!(addition(0x9140_0420), Some((0, 1, 0x1000))); // add x0, x1, #1, lsl #12
    assert_eq!(addition(0xd100_0400), Some((0, 0, u64::MAX))); // sub x0, x0, #1
    assert_eq!(addition(0xf100_0400), None); // subs x0, x0, #1
    let sum = |word| Word(word).as_sum().map(|(to, from)| (to.number(), from.map(Register::number)));
    assert_eq!(sum(0x8b01_0000), Some((0, [0, 1]))); // add x0, x0, x1
    assert_eq!(sum(0x8b01_0400), None); // add x0, x0, x1, lsl #1
    assert_eq!(Word(0xf860_6820).as_load_at_sum().map(|it| it.map(Register::number)), Some([1, 0])); // ldr x0, [x1, x0]
    assert_eq!(Word(0xf860_7820).as_load_at_sum(), None); // ldr x0, [x1, x0, lsl #3]
    assert_eq!(Word(0xd53b_d041).as_thread_pointer().map(Register::number), Some(1)); // mrs x1, tpidr_el0
    assert_eq!(Word(0xf0ff_ffe0).address(0x5004), Some(0x4000)); // adrp x0, . - 4096
}
