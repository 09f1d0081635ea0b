//! Tests with first instructions of functions, and the placement of their probes.

use super::*;
use profiler_common::arch::x86_64::{R8, RAX, RBX, RCX, RDI, RDX, RSI};

/// Checks offset and text of the instruction, and that it is emulated. Returns the locations of the arguments.
#[track_caller]
fn check(function: &str, bytes: &str, offset: u64, instruction: &str) -> Arguments {
    let placement = placed(function, &parse(bytes)).expect("it can be placed");
    assert_eq!((placement.offset_in_function, placement.instruction.as_str()), (offset, instruction));
    assert_eq!(placement.class, Class::Emulated);
    placement.arguments
}

/// Checks that the probe is at the entry, single-stepped, with the arguments in their original registers.
#[track_caller]
fn check_entry(function: &str, bytes: &str) {
    let placement = placed(function, &parse(bytes)).expect("it can be placed");
    assert_eq!((placement.offset_in_function, placement.class), (0, Class::SingleStepped), "{placement:?}");
    assert_eq!(placement.arguments, entry_arguments(function));
}

#[test]
fn glibc_2_36() {
    // The `je` is executed for every pointer, and taken for null.
    let free = check("free", "4885ff 0f84 bf000000 55 488d77f0 53 c3", 3, "je 0x10c8");
    assert_eq!(free.pointer, Some(RDI));
    assert_eq!(check("malloc", "4154 55 53 4889fb 4883ec10 c3", 0, "push %r12").size, RDI);
    let out = check("posix_memalign", "803d 01021400 00 4154 4989d4 55 c3", 7, "push %r12");
    assert_eq!((out.size, out.pointer), (RDX, Some(RDI)));
    assert_eq!(check("aligned_alloc", "803d 710e1400 00 7407 e9 32f6ffff 6690 c3", 7, "je 0x1010").size, RSI);
    // The product overwrites a factor before the first emulated instruction.
    check_entry("reallocarray", "4889f0 48f7e2 4889c6 7005 e9 40b8f8ff 31c0 c3");
}

#[test]
fn jemalloc_5_3() {
    assert_eq!(check("malloc", "4881ff 00100000 0f87 93000000 c3", 7, "ja 0x10a0").size, RDI);
    let free = "4889f8 488b15 0e530a00 4889f9 48c1e81a 4881e1 000000c0 25 f0000000 64480304 25 00000000 4801d0 \
                483b88 b0010000 0f85 8a000000 c3";
    assert_eq!(check("free", free, 48, "jne 0x10c0").pointer, Some(RDI));
}

#[test]
fn mimalloc_2_0() {
    // By then the size was moved, and its register holds the thread's heap.
    let malloc = "488b05 49b40000 4889fe 64488b38 4881fe 00040000 7729 488d4607 c3";
    assert_eq!(check("malloc", malloc, 0x15, "ja 0x1040").size, RSI);
    assert_eq!(check("free", "4889f9 4885ff 745d 488d7fff c3", 6, "je 0x1065").pointer, Some(RDI));
    let realloc = "488b05 49a90000 4889f2 4889fe 64488b00 4889c7 e9 f74effff";
    let realloc = check("realloc", realloc, 20, "jmp 0xffffffffffff5f10");
    assert_eq!((realloc.pointer, realloc.size), (Some(RSI), RDX));
}

#[test]
fn tcmalloc_2_10() {
    assert_eq!(check("malloc", "488b05 59ab0000 4885c0 7575 488b05 05a10000 c3", 10, "jne 0x1081").size, RDI);
    let memalign = check("memalign", "4989f8 4881ff 00200000 0f87 e8000000 4c89c0 c3", 10, "ja 0x10f8");
    assert_eq!(memalign.size, RSI);
}

#[test]
fn musl_1_2() {
    check("malloc", "e9 6b190000", 0, "jmp 0x2970");
    check("free", "e9 bb0a0000", 0, "jmp 0x1ac0");
    assert_eq!(check("valloc", "4889fe bf 00100000 e9 a349ffff", 8, "jmp 0xffffffffffff59b0").size, RSI);
}

#[test]
fn mapping_calls_have_three_arguments() {
    // glibc 2.36: the flags are copied for the system call and keep their register.
    let map = check("mmap", "4189ca 41f7c1 ff0f0000 7514 b8 09000000 0f05 c3", 10, "jne 0x1020");
    assert_eq!((map.size, map.count, map.pointer), (RSI, Some(RCX), None));
    check_entry("munmap", "b8 0b000000 0f05 483d 01f0ffff 7301 c3 488b0d c9130d00 c3");
    // The jump is emulated, but by then the stack pointer has moved, which identifies the return.
    check_entry("mremap", "4883ec58 4c89442440 31c0 83f907 775a 4189ca 4531c0 f6c106 c3");
    check("sbrk", "4154 4c8b25 a7510d00 803d be420e00 00 55 53 4889fb c3", 0, "push %r12");
    // musl 1.2
    let map = check("mmap", "4154 53 4883ec28 41f7c1 ff0f0000 c3", 0, "push %r12");
    assert_eq!((map.size, map.count, map.pointer), (RSI, Some(RCX), None));
    let unmap = check("munmap", "55 4889f5 53 4889fb 4883ec08 c3", 0, "push %rbp");
    assert_eq!((unmap.size, unmap.pointer), (RSI, Some(RDI)));
    let remap = check("mremap", "55 4883ec70 4c89442460 c3", 0, "push %rbp");
    assert_eq!((remap.size, remap.count, remap.pointer), (RDX, Some(RSI), Some(RDI)));
    // All three were moved, and their registers reused.
    let moved = check("mremap", "4989f8 4889f0 4889d3 31ff 31f6 31d2 90 c3", 15, "nop");
    assert_eq!((moved.size, moved.count, moved.pointer), (RBX, Some(RAX), Some(R8)));
}

#[test]
fn functions_built_for_control_flow_protection_begin_with_endbr64() {
    check("malloc", "f30f1efa 4154 55 c3", 4, "push %r12");
    check("free", "f30f1efa 4885ff 7401 c3 c3", 7, "je 0x100a");
}

#[test]
fn moves_are_followed_and_other_writes_invalidate() {
    let find = |bytes| check("free", bytes, parse(bytes).len() as u64 - 2, "nop").pointer;
    // mov %rdi,%rbx; xor %edi,%edi
    assert_eq!(find("4889fb 31ff 90 c3"), Some(RBX));
    // The other encoding of mov; then mov %rbx,%rcx and both before it spoiled.
    assert_eq!(find("488bdf 4889d9 31ff 31db 90 c3"), Some(RCX));
    // xchg %rdi,%r8; then xchg %rax,%r8
    assert_eq!(find("4c87c7 90 c3"), Some(R8));
    assert_eq!(find("4c87c7 4990 90 c3"), Some(RAX));
    // There and back: mov %rdi,%rdx; xor %edi,%edi; mov %rdx,%rdi
    assert_eq!(find("4889fa 31ff 4889d7 90 c3"), Some(RDI));
    // mov %rdi,%rdi
    assert_eq!(find("4889ff 90 c3"), Some(RDI));
}

#[test]
fn partially_written_registers_are_invalid() {
    // Each leaves or copies a part of %rdi.
    for write in [
        "89fb 31ff",                  // mov %edi,%ebx; xor %edi,%edi
        "89ff",                       // mov %edi,%edi
        "6689c7",                     // mov %ax,%di
        "4088c7",                     // mov %al,%dil
        "400f94c7",                   // sete %dil
        "480f44f8",                   // cmove %rax,%rdi
        "0f44f8",                     // cmove %eax,%edi
        "87ff",                       // xchg %edi,%edi
        "87f8",                       // xchg %edi,%eax
        "4883e7f0",                   // and $-16,%rdi
        "488d7f01",                   // lea 1(%rdi),%rdi
        "aa",                         // stos %al,(%rdi)
        "f348ab",                     // rep stos %rax,(%rdi)
        "5f",                         // pop %rdi
        "488b3f",                     // mov (%rdi),%rdi
        "480fb13f 480fc13f 480fc1ff", // cmpxchg, xadd %rdi,(%rdi); xadd %rdi,%rdi
    ] {
        check_entry("free", &format!("{write} 90 c3"));
    }
}

#[test]
fn implicit_writes_invalidate() {
    // The size of `calloc` is %rdi times %rsi, of `posix_memalign` %rdx, of `aligned_alloc` %rsi.
    check_entry("posix_memalign", "48f7e6 90 c3"); // mul %rsi
    check_entry("posix_memalign", "4899 90 c3"); // cqto
    check_entry("posix_memalign", "0f31 90 c3"); // rdtsc
    check_entry("posix_memalign", "0fa2 90 c3"); // cpuid
    check_entry("aligned_alloc", "48a5 90 c3"); // movsq
    assert_eq!(check("aligned_alloc", "48f7e7 90 c3", 3, "nop").size, RSI);
}

#[test]
fn stack_capture_requires_the_stack_and_frame_pointers_of_the_entry() {
    // The push itself may be probed, instructions after it not: sub $8,%rsp; nop
    for moved in ["4883ec08", "4889e5", "c8000000", "6a00", "668ec0 488d6424f8"] {
        check_entry("malloc", &format!("{moved} 90 c3"));
    }
    assert_eq!(check("malloc", "4885ff 55 90 c3", 3, "push %rbp").size, RDI);
    // mov %rbp,%rax; mov %rsi,%rbp and back
    check_entry("malloc", "4889e8 4889f5 90 c3");
    check("malloc", "4889e8 4889f5 4889c5 90 c3", 9, "nop");
    // A free captures no stack.
    assert_eq!(check("free", "4883ec08 90 c3", 4, "nop").pointer, Some(RDI));
    assert_eq!(check("free", "4889e5 90 c3", 3, "nop").pointer, Some(RDI));
}

#[test]
fn only_straight_line_code_is_searched() {
    for branch in [
        "4885ff ffd0",       // call *%rax
        "4885ff c3",         // ret
        "4885ff ffe0",       // jmp *%rax
        "4885ff e300",       // jrcxz
        "4885ff e200",       // loop
        "4885ff 0f0b",       // ud2
        "4885ff cc",         // int3
        "4885ff 0f05",       // syscall
        "4885ff c7f8000000", // xbegin
    ] {
        check_entry("free", &format!("{branch} 90 c3"));
    }
    // So does a call without the arguments: xor %edi,%edi; call
    check_entry("free", "4889fb 31ff 31db e8 00000000 90 c3");
}

#[test]
fn jump_targets_are_not_probed() {
    // test; je at 3; then a jump to 3, to 1, into the entry's middle, and to the entry, which is allowed.
    check_entry("free", "4885ff 7402 ebfc c3");
    check_entry("free", "4885ff 7402 ebfa c3");
    check("free", "4885ff 7402 ebf9 c3", 3, "je 0x1007");
    // A target behind it is allowed, and so is the jump's own target.
    check("free", "4885ff 7401 90 ebfd c3", 3, "je 0x1006");
    // Here the target is that of a call, a conditional jump of 32 bits, xbegin or a loop.
    check_entry("free", "4885ff 7406 e8 f9ffffff c3");
    check_entry("free", "4885ff 7406 0f84 f8ffffff c3");
    check_entry("free", "4885ff 7406 c7f8 f8ffffff c3");
    check_entry("free", "4885ff 7406 e2fc c3");
}

#[test]
fn untraceable_jumps_keep_the_probe_at_the_entry() {
    check_entry("free", "4885ff 7402 ffe0"); // jmp *%rax
    check_entry("free", "4885ff 7402 ff24c500100000"); // jmp *0x1000(,%rax,8)
    check_entry("free", "4885ff 7402 3effe0"); // notrack jmp *%rax
    check_entry("free", "4885ff 7402 ff27"); // jmp *(%rdi)
    // A jump through a fixed slot leads to another function.
    check("free", "4885ff 7402 ff2500000000", 3, "je 0x1007");
    // Bytes that cannot be decoded may hide jumps, and so may a truncated instruction.
    check_entry("free", "4885ff 7402 06 c3");
    check_entry("free", "4885ff 7402 e9 0000");
}

#[test]
fn a_function_of_unknown_size_is_probed_at_its_entry() {
    let bytes = parse("4885ff 7401 c3 c3");
    let part = code(&bytes, false);
    let free = |mode| place_on::<X86_64>(&part, &spec("free"), mode, Emulation::default()).expect("it can be placed");
    assert_eq!(free(PlacementMode::Auto).offset_in_function, 0);
    assert_eq!(free(PlacementMode::Auto).class, Class::SingleStepped);
}

#[test]
fn entry_mode_probes_the_entry() {
    let bytes = parse("4885ff 7401 c3 c3");
    let whole = code(&bytes, true);
    let placement = place_on::<X86_64>(&whole, &spec("free"), PlacementMode::Entry, Emulation::default())
        .expect("it can be placed");
    assert_eq!(
        (placement.offset_in_function, placement.instruction.as_str(), placement.class),
        (0, "test %rdi,%rdi", Class::SingleStepped)
    );
}

#[test]
fn the_distance_from_the_entry_is_limited() {
    // cld, one byte long.
    let line = |length| "fc".repeat(length) + "90c3";
    check("free", &line(DISTANCE_BYTES_MAX - 1), DISTANCE_BYTES_MAX as u64 - 1, "nop");
    check_entry("free", &line(DISTANCE_BYTES_MAX));
}

#[test]
fn nops_are_probed_if_the_kernel_emulates_them() {
    let bytes = parse("f30f1efa 0f1f440000 c3");
    let whole = code(&bytes, true);
    let offset = |nops| {
        let placement = place_on::<X86_64>(&whole, &spec("malloc"), PlacementMode::Auto, Emulation { nops });
        placement.expect("it can be placed").offset_in_function
    };
    assert_eq!((offset(false), offset(true)), (0, 4));
}

#[test]
fn undecodable_bytes_are_reported() {
    let error = placed("malloc", &parse("06 90 c3")).expect_err("push %es is invalid in 64-bit mode");
    assert_eq!(error, PlaceError::Undecodable("06 90 c3".to_owned()));
    assert!(error.to_string().contains("`06 90 c3`"), "{error}");
    assert_eq!(placed("malloc", &[]), Err(PlaceError::Undecodable(String::new())));
    // Cut off in the middle.
    assert_eq!(placed("malloc", &parse("4885")), Err(PlaceError::Undecodable("48 85".to_owned())));
}

#[test]
fn arguments_on_the_stack_are_rejected() {
    let seventh = HookSpec { size: 6, ..spec("malloc") };
    let bytes = parse("90 c3");
    let code = code(&bytes, true);
    let result = place_on::<X86_64>(&code, &seventh, PlacementMode::Auto, Emulation::default());
    assert_eq!(result, Err(PlaceError::Argument(7)));
    assert!(result.expect_err("rejected").to_string().contains("argument 7"));
}

#[test]
fn all_arguments_must_be_available() {
    // calloc: xor %esi,%esi before the nop loses the second factor.
    check_entry("calloc", "31f6 90 c3");
    let calloc = check("calloc", "4889f0 31f6 90 c3", 5, "nop");
    assert_eq!((calloc.size, calloc.count), (RDI, Some(RAX)));
    let reallocarray = check("reallocarray", "4887f7 90 c3", 3, "nop");
    assert_eq!((reallocarray.pointer, reallocarray.size, reallocarray.count), (Some(RSI), RDI, Some(RDX)));
}
