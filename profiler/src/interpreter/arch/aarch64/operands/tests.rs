//! Code of Debian's packages for arm64, and of the other models of thread-local storage as binutils relaxes them.

use proptest::prelude::*;

use super::*;

fn code(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn local(words: &[u32]) -> Option<ThreadLocal> {
    thread_local(&code(words), 0xe1000)
}

#[test]
fn descriptors_of_debians_ruby_are_found() {
    // `rb_errinfo` of libruby3.1 3.1.2-7+deb12u1.
    let rb_errinfo = code(&[
        0xd53b_d041, // mrs x1, tpidr_el0
        0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
        0x9100_03fd, // mov x29, sp
        0xb000_1640, // adrp x0, 37f000
        0xf941_f402, // ldr x2, [x0, #1000]
        0x910f_a000, // add x0, x0, #0x3e8
        0xd63f_0040, // blr x2
        0xf860_6820, // ldr x0, [x1, x0]
        0xa8c1_7bfd, // ldp x29, x30, [sp], #16
        0xf940_3800, // ldr x0, [x0, #112]
        0xd65f_03c0, // ret
    ]);
    assert_eq!(thread_local(&rb_errinfo, 0xb6b10), Some(ThreadLocal::Descriptor(0x37f3e8, 0)));
    assert_eq!(first_call(&rb_errinfo, 0xb6b10), None);
}

#[test]
fn the_function_that_reads_the_context_of_ruby_3_3_is_found() {
    // `rb_errinfo` of libruby3.3 3.3.8-2, and `rb_current_ec_noinline`.
    let rb_errinfo = code(&[
        0xd503_233f, // paciasp
        0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
        0x9100_03fd, // mov x29, sp
        0x9405_fdf2, // bl 261344
        0xf940_3c00, // ldr x0, [x0, #120]
        0xa8c1_7bfd, // ldp x29, x30, [sp], #16
        0xd503_23bf, // autiasp
        0xd65f_03c0, // ret
    ]);
    assert_eq!(thread_local(&rb_errinfo, 0xe1b70), None);
    assert_eq!(first_call(&rb_errinfo, 0xe1b70), Some(0x261344));
    let context = code(&[
        0xd503_233f, // paciasp
        0xd53b_d041, // mrs x1, tpidr_el0
        0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
        0x9100_03fd, // mov x29, sp
        0xd000_0f60, // adrp x0, 44f000
        0xf941_6c02, // ldr x2, [x0, #728]
        0x910b_6000, // add x0, x0, #0x2d8
        0xd63f_0040, // blr x2
        0xf860_6820, // ldr x0, [x1, x0]
        0xd65f_03c0, // ret
    ]);
    assert_eq!(thread_local(&context, 0x261344), Some(ThreadLocal::Descriptor(0x44f2d8, 0)));
}

#[test]
fn every_model_of_thread_local_storage_is_read() {
    let pointer = 0xd53b_d041; // mrs x1, tpidr_el0
    // Local executable: add x0, x1, #0, lsl #12; add x0, x0, #0x18; ldr x0, [x0]. Or with the offset in the load.
    let added = [pointer, 0x9140_0020, 0x9100_6000, 0xf940_0000];
    assert_eq!(local(&added), Some(ThreadLocal::Fixed(0x18)));
    assert_eq!(local(&[pointer, 0x9140_0420, 0xf940_0c00]), Some(ThreadLocal::Fixed(0x1018)));
    assert_eq!(local(&[pointer, 0xf940_0c20]), Some(ThreadLocal::Fixed(0x18)));
    // The table of thread-local storage is no pointer in it: ldr x2, [x1].
    assert_eq!(local(&[pointer, 0xf940_0022, 0xf940_0c20]), Some(ThreadLocal::Fixed(0x18)));
    // A relaxed descriptor: movz x0, #1, lsl #16; movk x0, #0x18; nop; nop; ldr x0, [x1, x0].
    let relaxed = [pointer, 0xd2a0_0020, 0xf280_0300, 0xd503_201f, 0xd503_201f, 0xf860_6820];
    assert_eq!(local(&relaxed), Some(ThreadLocal::Fixed(0x1_0018)));
    // Initial executable: adrp x0, 0xe2000; ldr x0, [x0, #0x100]; then ldr x0, [x1, x0], or add x0, x0, x1; ldr x0, [x0, #8].
    let loaded = [pointer, 0xb000_0000, 0xf940_8000];
    assert_eq!(local(&[&loaded[..], &[0xf860_6820]].concat()), Some(ThreadLocal::Loaded(0xe2100, 0)));
    assert_eq!(local(&[&loaded[..], &[0x8b01_0000, 0xf940_0400]].concat()), Some(ThreadLocal::Loaded(0xe2100, 8)));
    // A descriptor, with the thread pointer read after its call: adrp x0; ldr x1, [x0, #0x100]; add x0, x0, #0x100; blr x1;
    // mrs x1, tpidr_el0; add x0, x1, x0; ldr x0, [x0].
    let described = [0xb000_0000, 0xf940_8001, 0x9104_0000, 0xd63f_0020, pointer, 0x8b00_0020, 0xf940_0000];
    assert_eq!(local(&described), Some(ThreadLocal::Descriptor(0xe2100, 0)));
    // Global dynamic with a call of `__tls_get_addr`: adrp x0; add x0, x0, #0x100; bl; nop; mov x19, x0; ldr x0, [x19, #8].
    let called = [0xb000_0000, 0x9104_0000, 0x9400_1000, 0xd503_201f, 0xaa00_03f3, 0xf940_0660];
    assert_eq!(local(&called), Some(ThreadLocal::Module(0xe2100, 8)));
}

#[test]
fn other_code_reads_no_thread_local_storage() {
    // ret; bl; blr x1; b; ldr w0, [x1] after mrs, which is no pointer; an overwritten register: mrs x1; ldp x0, x1, [sp].
    for words in [
        &[0xd65f_03c0][..],
        &[0x9400_1000],
        &[0xd63f_0020],
        &[0x1400_0001, 0xd53b_d041, 0xf940_0c20],
        &[0xd53b_d041, 0xb940_1820],
        &[0xd53b_d041, 0xa940_07e0, 0xf940_0c20],
        &[],
    ] {
        assert_eq!(local(words), None, "{words:x?}");
    }
}

#[test]
fn control_blocks_are_as_far_from_the_thread_pointer_as_pthread_self_subtracts() {
    let distance = |words: &[u32]| control_block(|| Some(code(words)));
    let (pointer, end) = (0xd53b_d040, 0xd65f_03c0); // mrs x0, tpidr_el0; ret
    // glibc 2.31, 2.36 and 2.41 (with `bti c`), musl 1.2.3.
    assert_eq!(distance(&[pointer, 0xd11c_0000, end]), Some(0x700));
    assert_eq!(distance(&[pointer, 0xd11d_0000, end]), Some(0x740));
    assert_eq!(distance(&[0xd503_245f, pointer, 0xd11c_8000, end]), Some(0x720));
    assert_eq!(distance(&[pointer, 0xd103_2000, end]), Some(200));
    // Another function, one whose result is before the block, and none.
    for words in [&[0xd280_0000, end][..], &[pointer, end], &[pointer, 0xd140_4000, end], &[]] {
        assert_eq!(distance(words), None, "{words:x?}");
    }
    assert_eq!(control_block(|| None), None);
}

#[test]
fn the_symbols_of_debians_ruby_are_found() {
    // `rb_sym_all_symbols` of libruby3.3 3.3.8-2.
    let code = code(&[
        0xd503_233f, // paciasp
        0xd100_c3ff, // sub sp, sp, #0x30
        0xb000_1160, // adrp x0, 44f000
        0xf942_d400, // ldr x0, [x0, #1448]
        0xa901_7bfd, // stp x29, x30, [sp, #16]
        0x9100_43fd, // add x29, sp, #0x10
        0xa902_53f3, // stp x19, x20, [sp, #32]
        0xb000_1174, // adrp x20, 44f000
        0xf941_ba94, // ldr x20, [x20, #880]
        0xf940_0002, // ldr x2, [x0]
        0xf900_07e2, // str x2, [sp, #8]
        0xd280_0002, // mov x2, #0
        0xf940_0281, // ldr x1, [x20]
        0xb400_0361, // cbz x1, 22256c
        0xd000_1173, // adrp x19, 450000
        0x9105_2273, // add x19, x19, #0x148
        0xf940_0660, // ldr x0, [x19, #8]
        0xf940_0800, // ldr x0, [x0, #16]
        0x97f8_705f, // bl 3e690
    ]);
    assert_eq!(read_through(&code, 0x2224cc, 16), Some(0x450150));
    assert_eq!(read_through(&code, 0x2224cc, 24), None);
}

#[test]
fn offsets_of_descriptors_are_small() {
    for (word, expected) in [(16, true), (0x1_0000, true), (0x40_0000, false), (0xffff_8000_1000, false)] {
        assert_eq!(is_offset(word), expected, "{word:#x}");
    }
}

proptest! {
    #[test]
    fn any_code_is_read(words: [u32; 32]) {
        let code = code(&words);
        let _ = (thread_local(&code, 0x1000), read_through(&code, 0x1000, 16), first_call(&code, 0x1000));
        let _ = control_block(|| Some(code));
    }
}
