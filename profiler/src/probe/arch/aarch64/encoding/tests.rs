//! Tests of encodings, with instructions as GNU binutils assemble them.

use super::*;

#[test]
fn uses_of_the_link_register() {
    let check = |word, expected| assert_eq!(Word(word).reads_link(), expected, "{word:#010x}");
    check(0xa9bc_7bfd, true); // stp x29, x30, [sp, #-64]!
    check(0xa902_7bfd, true); // stp x29, x30, [sp, #32]
    check(0xf81f_0ffe, true); // str x30, [sp, #-16]!
    check(0xaa1e_03e9, true); // mov x9, x30
    check(0x9100_03c9, true); // mov x9, x30, as an addition
    check(0xf900_03c1, true); // str x1, [x30]
    check(0xf862_781e, true); // ldr x30, [x0, x2, lsl #3]
    check(0x9b1e_7c20, true); // mul x0, x1, x30
    check(0xa941_7bfd, false); // ldp x29, x30, [sp, #16]
    check(0xf940_0bfe, false); // ldr x30, [sp, #16]
    check(0xd503_233f, false); // paciasp
    check(0x912a_4021, false); // add x1, x1, #2704: the constant contains the number
    check(0xd280_03c1, false); // mov x1, #30
    check(0x6d00_7bfe, false); // stp d30, d30, [sp]
    check(0xd53b_d042, false); // mrs x2, tpidr_el0
}

#[test]
fn comparisons_with_null() {
    let null = |word| Word(word).as_null_test().map(Register::number);
    assert_eq!(null(0xf100_001f), Some(0)); // cmp x0, #0
    assert_eq!(null(0xea01_003f), Some(1)); // tst x1, x1
    assert_eq!((null(0xea02_003f), null(0xf100_041f), null(0x7100_001f)), (None, None, None));
}
