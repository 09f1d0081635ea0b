//! Tests with first instructions of functions, and the placement of their probes.

use profiler_common::arch::aarch64::{X0, X1, X2, X3, X4, X19};

use super::*;

const ADD: u32 = 0x9100_0421; // add x1, x1, #1
const ADRP: u32 = 0x9000_0009; // adrp x9, 0x1000
const BTI: u32 = 0xd503_245f; // bti c
const CBZ: u32 = 0xb400_0880; // cbz x0
const NOP: u32 = 0xd503_201f;
const PACIASP: u32 = 0xd503_233f;
const RET: u32 = 0xd65f_03c0;

/// Checks offset and text of the instruction, and that it is emulated. Returns the locations of the arguments.
#[track_caller]
fn check(function: &str, words: &[u32], offset: u64, instruction: &str) -> Arguments {
    let placement = placed(function, words).expect("it can be placed");
    assert_eq!((placement.offset_in_function, placement.instruction.as_str()), (offset, instruction));
    assert_eq!(placement.class, Class::Emulated);
    placement.arguments
}

/// Checks that the probe is at the entry, single-stepped, with the arguments in their original registers.
#[track_caller]
fn check_entry(function: &str, words: &[u32]) {
    let placement = placed(function, words).expect("it can be placed");
    assert_eq!((placement.offset_in_function, placement.class), (0, Class::SingleStepped), "{placement:?}");
    let arguments = Wanted::of::<Aarch64>(&spec(function)).expect("at most six arguments").arguments;
    assert_eq!(placement.arguments, arguments);
}

#[test]
fn frees_are_probed_at_their_test_for_null() {
    let free = check("free", &[CBZ, 0xa9bc_7bfd, RET], 0, "cbz x0, 0x1110");
    assert_eq!(free.pointer, Some(X0));
    check("free", &[BTI, CBZ, PACIASP, RET], 4, "cbz x0, 0x1114");
    // mimalloc 2.0.9: mov x3, x0; cbz x0
    check("free", &[0xaa00_03e3, CBZ, 0xd100_0400, RET], 4, "cbz x0, 0x1114");
}

#[test]
fn frames_must_not_be_made_yet_if_a_stack_is_captured() {
    // glibc 2.36 makes the frame at once; then the same with a signed return address.
    check_entry("malloc", &[0xa9bc_7bfd, 0x9100_03fd, ADRP, RET]);
    check_entry("malloc", &[PACIASP, 0xa9bc_7bfd, ADRP, RET]);
    check_entry("malloc", &[BTI, PACIASP, ADRP, RET]);
    check_entry("malloc", &[0xd102_43ff, 0xa902_7bfd, ADRP, RET]);
    // A free captures no stack, and is not probed at its return.
    check("free", &[0xa9bc_7bfd, 0x9100_03fd, ADRP, RET], 8, "adrp x9, 0x1000");
    // mov x29, x1
    check_entry("malloc", &[0xaa01_03fd, ADRP, RET]);
}

#[test]
fn a_saved_return_address_cannot_be_replaced() {
    // mov x9, x30; and back, after which the register has the address, but where x9 is used is not known.
    check_entry("malloc", &[0xaa1e_03e9, ADRP, RET]);
    check_entry("malloc", &[0xaa1e_03e9, 0xaa09_03fe, ADRP, RET]);
    // str x30, [x1]
    check_entry("malloc", &[0xf900_003e, ADRP, RET]);
    // xpaclri, and a call whose link would replace that of the return probe.
    check_entry("malloc", &[0xd503_20ff, ADRP, RET]);
    check_entry("malloc", &[ADD, 0x9400_0010, RET]);
    check("free", &[ADD, 0x9400_0010, RET], 4, "bl 0x1044");
}

#[test]
fn copies_of_arguments_are_found() {
    // glibc 2.43: bti c; mov x4, x1; cbz x0
    let realloc = check("realloc", &[BTI, 0xaa01_03e4, 0xb400_1dc0, RET], 8, "cbz x0, 0x13c0");
    assert_eq!((realloc.pointer, realloc.size), (Some(X0), X1));
    // mov x2, x1; mov x1, x0; ldr x0, [x4, x3]; b: mimalloc 2.0.9
    let words = [0x9000_00e3, 0xaa01_03e2, 0xaa00_03e1, 0xf863_6880, 0x17ff_eb33];
    let moved = check("realloc", &words[1..], 12, "b 0xffffffffffffbcd8");
    assert_eq!((moved.pointer, moved.size), (Some(X1), X2));
    assert_eq!(check("realloc", &words, 0, "adrp x3, 0x1d000").size, X1);
    // mov x19, x0; mov x0, xzr
    assert_eq!(check("free", &[0xaa00_03f3, 0xaa1f_03e0, ADRP], 8, "adrp x9, 0x1000").pointer, Some(X19));
    // The pointer is moved through the stack pointer, and back.
    assert_eq!(check("free", &[0x9100_001f, 0xd280_0000, 0x9100_03e3, ADRP], 12, "adrp x9, 0x1000").pointer, Some(X3));
    let swapped = [0xaa00_03e4, 0xaa01_03e0, 0xaa04_03e1, ADRP]; // x4 = x0, x0 = x1, x1 = x4
    let calloc = check("calloc", &swapped, 12, "adrp x9, 0x1000");
    assert_eq!((calloc.size, calloc.count), (X1, Some(X0)));
    let out = check("posix_memalign", &[0xaa02_03e4, 0xd280_0002, ADRP], 8, "adrp x9, 0x1000");
    assert_eq!((out.size, out.pointer), (X4, Some(X0)));
}

#[test]
fn other_writes_invalidate() {
    for write in [
        0x2a00_03e0, // mov w0, w0
        0xaa00_07e0, // orr x0, xzr, x0, lsl #1
        0xd280_0000, // mov x0, #0
        0xf2a0_0000, // movk x0, #0, lsl #16
        0xf940_0000, // ldr x0, [x0]
        0xf840_8402, // ldr x2, [x0], #8
        0xf800_8c02, // str x2, [x0, #8]!
        0xa940_0402, // ldp x2, x1, [x0]: by the second register below
        0x9bc1_7c00, // umulh x0, x0, x1
        0xd53b_d040, // mrs x0, tpidr_el0
        0xf822_0020, // ldadd x2, x0, [x1]
        0x9e66_0000, // fmov x0, d0
        0x4c9f_7000, // st1 {v0.16b}, [x0], #16
        0xc000_0000, // an instruction of SME
    ] {
        let function = if write == 0xa940_0402 { "aligned_alloc" } else { "free" };
        check_entry(function, &[write, ADRP, RET]);
    }
    // cmp x0, #1; str x0, [x1]; tst x5, x5
    for read in [0xf100_041f, 0xf900_0020, 0xea05_00bf] {
        check("free", &[read, ADRP, RET], 4, "adrp x9, 0x1000");
    }
}

#[test]
fn only_straight_line_code_is_searched() {
    for end in [
        RET,
        0xd400_0001, // svc
        0xd420_0000, // brk
        0xd61f_0200, // br x16
        0x7401_0040, // cbgt w0, w1
        0xd65f_0bff, // retaa
        0xd73f_0841, // blraa x2, x1
        0x0000_0000, // udf
        0x885f_7c42, // ldxr w2, [x2]
        0x8802_7c43, // stxr w2, w3, [x2]
    ] {
        let placement = placed("free", &[ADD, end, ADRP, RET]).expect("it can be placed");
        let is_emulated = end == RET;
        assert_eq!(placement.offset_in_function, if is_emulated { 4 } else { 0 }, "{end:#010x}");
    }
}

#[test]
fn jump_targets_are_not_probed() {
    // add; adrp; then a branch to the second, to the first, which is allowed, and through a register.
    check_entry("free", &[ADD, ADRP, 0x17ff_ffff]);
    check_entry("free", &[ADD, ADRP, ADD, 0xb5ff_ffc0]); // cbnz x0
    check_entry("free", &[ADD, ADRP, 0xb707_ffe0]); // tbnz x0, #32
    check_entry("free", &[ADD, ADRP, 0x54ff_ffe0]); // b.eq
    check_entry("free", &[ADD, ADRP, 0x97ff_ffff]); // bl
    check_entry("free", &[ADD, ADRP, 0xd61f_0200]); // br x16
    // glibc 2.31: mov x16, x2; br x16
    check("free", &[ADRP, 0xaa02_03f0, 0xd61f_0200], 0, "adrp x9, 0x1000");
    check("free", &[ADD, ADRP, 0xaa02_03f0, 0xd61f_0200], 4, "adrp x9, 0x1000");
    check_entry("free", &[ADD, ADRP, 0xaa02_03f0, 0x8b21_8810, 0xd61f_0200]); // add x16, x0, w1, sxtb #2
    check_entry("free", &[ADD, ADRP, 0xaa02_03e1, 0xd61f_0020]); // mov x1, x2; br x1
    check("free", &[ADD, ADRP, 0x17ff_fffe], 4, "adrp x9, 0x1000");
    check("free", &[ADD, ADRP, 0xd63f_0200, RET], 4, "adrp x9, 0x1000"); // blr x16
}

#[test]
fn refused_instructions_are_left_out() {
    let literal = 0x5800_0041; // ldr x1, 0x1008
    let placement = placed("free", &[literal, ADD, RET, RET]).expect("the return is emulated");
    assert_eq!((placement.offset_in_function, placement.class), (8, Class::Emulated));
    // The first one that the kernel accepts: mov x2, x0, and the argument before it.
    let placement = placed("malloc", &[literal, 0xd53b_4222, ADD, 0x0000_0000]).expect("`add` is accepted");
    assert_eq!((placement.offset_in_function, placement.class), (8, Class::SingleStepped));
    assert_eq!(placement.arguments.size, X0);
    for words in
        [&[0x0000_0000, RET][..], &[literal, 0xa9bc_7bfd][..1], &[0xd503_23bf, 0xa9bc_7bfd], &[0x885f_7c42, ADD]]
    {
        let error = placed("malloc", words).expect_err("nothing can be probed");
        assert!(matches!(&error, PlaceError::Refused(_)), "{error}");
        assert!(error.to_string().contains("the kernel refuses"), "{error}");
    }
    // The entry alone is known.
    let bytes = literal.to_le_bytes();
    let result = place_on::<Aarch64>(&code(&bytes, false), &spec("free"), PlacementMode::Auto, Emulation::default());
    assert_eq!(result, Err(PlaceError::Refused("ldr x1, 0x1008".to_owned())));
}

#[test]
fn nops_are_probed_if_the_kernel_emulates_them() {
    let bytes: Vec<u8> = [BTI, NOP, RET].into_iter().flat_map(u32::to_le_bytes).collect();
    let offset = |nops| {
        let placement =
            place_on::<Aarch64>(&code(&bytes, true), &spec("munmap"), PlacementMode::Auto, Emulation { nops });
        placement.expect("it can be placed").offset_in_function
    };
    assert_eq!((offset(false), offset(true)), (8, 4));
}

#[test]
fn the_distance_from_the_entry_is_limited() {
    let line = |length: usize| [vec![ADD; length], vec![ADRP, RET]].concat();
    let last = DISTANCE_BYTES_MAX / 4 - 1;
    check("free", &line(last), DISTANCE_BYTES_MAX as u64 - 4, "adrp x9, 0x1000");
    check_entry("free", &line(last + 1));
}

#[test]
fn undecodable_bytes_are_reported() {
    assert_eq!(placed("malloc", &[0x0200_0000]), Err(PlaceError::Undecodable("00 00 00 02".to_owned())));
    assert_eq!(placed("malloc", &[]), Err(PlaceError::Undecodable(String::new())));
}
