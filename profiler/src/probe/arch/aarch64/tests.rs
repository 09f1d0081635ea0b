//! Tests of the control flow of synthetic functions.

use profiler_common::arch::aarch64::{X0, X1};

use super::*;
use crate::probe::arch::flow::{Flow, ReadCode, follow};
use crate::probe::arch::instruction_set::Instruction as _;

const START: u64 = 0x1_0000;
const HOOKED: u64 = 0x9_0000;

struct Function(Vec<u8>);

impl ReadCode for Function {
    fn code_at(&mut self, address: u64) -> Option<&[u8]> {
        let inside = usize::try_from(address.checked_sub(START)?).ok()?;
        self.0.get(inside..).filter(|bytes| !bytes.is_empty())
    }

    fn is_start(&self, address: u64) -> bool {
        address == HOOKED
    }

    fn is_hooked(&self, address: u64) -> bool {
        address == HOOKED
    }
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn flow(words: &[u32], not_null: Option<Register>) -> Flow {
    follow::<Aarch64>(&mut Function(bytes(words)), START, not_null, &mut 1000)
}

/// Encodes a `b` from the instruction with this index to the hooked function.
fn jump_to_hooked(index: u32) -> u32 {
    0x1400_0000 | (0x2_0000 - index)
}

#[test]
fn calls_and_jumps_are_found() {
    let found = flow(
        &[
            0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
            0x9400_0100, // bl 0x10404
            0xa8c1_7bfd, // ldp x29, x30, [sp], #16
            jump_to_hooked(3),
        ],
        None,
    );
    assert_eq!((found.calls, found.hooked), (vec![(0x1_0404, 0x1_0008)], vec![HOOKED]));
    assert!(found.returns && !found.is_incomplete);
    let endless = flow(&[0x1400_0000], None);
    assert!(!endless.returns && !endless.is_incomplete);
    assert!(!flow(&[0xd420_7d00], None).returns, "brk");
    assert!(flow(&[0xd65f_03c0], None).returns);
}

#[test]
fn linkage_tables_lead_through_their_slots() {
    // adrp x16, 0x20000; ldr x17, [x16, #24]; add x16, x16, #24; br x17
    let linkage = flow(&[0x9000_0090, 0xf940_0e11, 0x9100_6210, 0xd61f_0220], None);
    assert_eq!((linkage.slots, linkage.is_incomplete), (vec![0x2_0018], false));
    // adrp x0, 0x20000; ldr x0, [x0, #16]; blr x0; ret
    let called = flow(&[0x9000_0080, 0xf940_0800, 0xd63f_0000, 0xd65f_03c0], None);
    assert_eq!((called.slots, called.is_incomplete), (vec![0x2_0010], false));
    assert!(flow(&[0xd63f_0000, 0xd65f_03c0], None).is_incomplete, "blr x0");
    assert!(flow(&[0xd61f_0000], None).is_incomplete, "br x0");
    // A call between them changes the register.
    assert!(flow(&[0x9000_0080, 0xf940_0800, 0x9400_0100, 0xd63f_0000, 0xd65f_03c0], None).is_incomplete);
}

#[test]
fn descriptors_of_thread_local_storage_are_no_calls() {
    // adrp x0, 0x20000; ldr x1, [x0, #16]; add x0, x0, #16; blr x1; ret
    let words = [0x9000_0080, 0xf940_0801, 0x9100_4000, 0xd63f_0020, 0xd65f_03c0];
    let found = flow(&words, None);
    assert_eq!((found.slots.len(), found.is_incomplete, found.returns), (0, false, true));
}

#[test]
fn branches_on_null_are_taken_for_null_only() {
    for (name, test) in [
        ("cbz x0", vec![0xb400_0040, 0xd65f_03c0]),
        ("cmp x0, #0; b.eq", vec![0xf100_001f, 0x5400_0040, 0xd65f_03c0]),
        ("tst x0, x0; b.eq", vec![0xea00_001f, 0x5400_0040, 0xd65f_03c0]),
        ("mov x4, x0; mov x0, x1; cbz x4", vec![0xaa00_03e4, 0xaa01_03e0, 0xb400_0044, 0xd65f_03c0]),
        ("cbnz x0; b", vec![0xb500_0040]),
    ] {
        let index = u32::try_from(test.len()).expect("few");
        let words = [test, vec![jump_to_hooked(index), 0xd65f_03c0]].concat();
        assert_eq!(flow(&words, None).hooked, [HOOKED], "{name}");
        assert_eq!(flow(&words, Some(X0)).hooked, [0; 0], "{name}");
        assert_eq!(flow(&words, Some(X1)).hooked, [HOOKED], "{name}");
    }
    // w0 may be 0 if x0 is not.
    let narrow = [0x3400_0040, 0xd65f_03c0, jump_to_hooked(2)];
    assert_eq!(flow(&narrow, Some(X0)).hooked, [HOOKED]);
}

#[test]
fn functions_that_only_jump() {
    let target = |words: &[u32]| Aarch64::initial_jump(&bytes(words), START);
    assert_eq!(target(&[0x1400_0100]), Some(START + 0x400));
    assert_eq!(target(&[0xd503_245f, 0x1400_0100]), Some(START + 0x404));
    assert_eq!(target(&[0xd503_233f, 0x1400_0100]), None);
    assert_eq!((target(&[0x9400_0100]), target(&[])), (None, None));
}

#[test]
fn texts_name_targets() {
    let text = |word: u32| Aarch64::decode(&word.to_le_bytes(), START).next().expect("valid").text();
    assert_eq!(text(0xb400_0880), "cbz x0, 0x10110");
    assert_eq!(text(0x1400_0002), "b 0x10008");
    assert_eq!(text(0xb000_0a77), "adrp x23, 0x15d000");
    assert_eq!(text(0xa9bc_7bfd), "stp x29, x30, [sp, #-0x40]!");
    assert_eq!(text(0xd503_233f), "paciasp");
    assert_eq!(text(0xd503_245f), "bti c");
    assert_eq!(text(0xd503_201f), "nop");
    assert_eq!(text(0x0000_0000), "udf #0x0");
    assert_eq!(text(0xc000_0000), ".inst 0xc0000000");
}

#[test]
fn only_whole_instructions_are_decoded() {
    let offsets = |bytes: &[u8]| Aarch64::decode(bytes, START).map(|found| found.offset()).collect::<Vec<_>>();
    let nops = bytes(&[0xd503_201f; 3]);
    assert_eq!(offsets(&nops), [0, 4, 8]);
    assert_eq!(offsets(&nops[..11]), [0, 4]);
    assert_eq!(offsets(&bytes(&[0xd503_201f, 0x0200_0000, 0xd503_201f])), [0], "an unallocated instruction");
    assert!(Aarch64::jumps_into(&nops[..11], START, 4), "unknown");
    assert!(!Aarch64::jumps_into(&nops, START, 4));
}
