//! Branches and operands of aarch64 code.

mod operands;

pub(in crate::interpreter) use self::operands::{
    control_block, first_call, is_offset, member_of, read_through, thread_local,
};

use crate::arch::aarch64::{Control, Word};

/// Addresses outside of this code, which begins at `start`, that it jumps to directly.
pub(in crate::interpreter) fn branches_out(code: &[u8], start: u64) -> Vec<u64> {
    let end = start.saturating_add(code.len() as u64);
    let mut targets: Vec<u64> = Word::all(code, start)
        .filter_map(|(at, word)| match word.control(at) {
            Control::Jump(target) | Control::Branch(target) => Some(target),
            _ => None,
        })
        .filter(|target| !(start..end).contains(target))
        .collect();
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// Addresses of direct calls of a function, and of jumps to it, in code that begins at `start`.
pub(in crate::interpreter) fn direct_calls(code: &[u8], start: u64, function: u64) -> impl Iterator<Item = u64> {
    let calls = [Control::Call(function), Control::Jump(function)];
    Word::all(code, start).filter_map(move |(at, word)| calls.contains(&word.control(at)).then_some(at))
}

/// Number of indirect jumps: `br`.
pub(in crate::interpreter) fn indirect_jumps(code: &[u8]) -> usize {
    Word::all(code, 0).filter(|(at, word)| matches!(word.control(*at), Control::JumpThrough(_))).count()
}

/// Whether a function passes 0 as its first argument to the one that it ends in: `mov w0, #0`, `mov x0, #0`, or of the zero register.
pub(in crate::interpreter) fn passes_zero(code: &[u8]) -> bool {
    let is_zero = |word: Word| [0x5280_0000, 0x2a1f_03e0].iter().any(|&zero| word.is(0x7fff_ffff, zero));
    Word::all(code, 0).any(|(_, word)| is_zero(word))
}

/// V8's generated code, with a copy of its builtins, is in an area of this size (`kMaximalCodeRangeSize` in `src/common/globals.h`).
pub(in crate::interpreter) const CODE_AREA_BYTES: u64 = 256 << 20;

/// V8's instructions of a function begin at multiples of it (`kCodeAlignment` in `src/common/globals.h`).
pub(in crate::interpreter) const CODE_ALIGNMENT: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn direct_jumps_leave_the_code() {
        let code = code(&[
            0xd503_201f, // nop
            0x54ff_ffe0, // b.eq 0x1000
            0x5400_7fc0, // b.eq 0x2000
            0x9400_0800, // bl
            0xb400_7f80, // cbz x0, 0x2000
            0x3607_ff40, // tbz w0, #0, 0xffc
            0xd61f_0000, // br x0
            0x17ff_fbf9, // b 0
        ]);
        assert_eq!(branches_out(&code, 0x1000), [0, 0xffc, 0x2000]);
        assert_eq!((indirect_jumps(&code), branches_out(&code[..6], 0x1000)), (1, Vec::new()));
    }

    #[test]
    fn calls_and_jumps_to_a_function_are_found() {
        // bl 0x2000; nop; b 0x2000; bl 0x1010
        let code = code(&[0x9400_0400, 0xd503_201f, 0x1400_03fe, 0x9400_0001]);
        assert_eq!(direct_calls(&code, 0x1000, 0x2000).collect::<Vec<_>>(), [0x1000, 0x1008]);
    }

    #[test]
    fn zeros_as_first_argument() {
        for zero in [0x5280_0000, 0xd280_0000, 0x2a1f_03e0, 0xaa1f_03e0] {
            assert!(passes_zero(&code(&[zero])), "{zero:#x}");
        }
        assert!(!passes_zero(&code(&[0x5280_0001, 0xaa01_03e0])));
    }

    #[test]
    fn members_are_read_by_address_and_by_table() {
        let structure = 0x5e_9440..0x5e_9c40;
        // `zend_is_executing` of Debian's PHP 8.4, by the global offset table.
        let debian = [
            0xd503_245f, // bti c
            0xf000_1320, // adrp x0, 0x5cf000
            0xf943_cc00, // ldr x0, [x0, #1944]
            0xf940_f400, // ldr x0, [x0, #488]
            0xf100_001f, // cmp x0, #0
            0x1a9f_07e0, // cset w0, ne
            0xd65f_03c0, // ret
            0xf940_f800, // ldr x0, [x0, #496]
        ];
        assert_eq!(member_of(&code(&debian), 0x36_8aec, &structure), Some(0x5e_9440 + 488));
        // By address: in two parts, and with the offset in the load.
        let parts = [0xd000_1400, 0x9111_0000, 0xf940_f400, 0xd65f_03c0];
        assert_eq!(member_of(&code(&parts), 0x36_7000, &structure), Some(0x5e_9440 + 488));
        let direct = [0xd000_1408, 0xf943_1500, 0xd65f_03c0]; // adrp x8; ldr x0, [x8, #1576]
        assert_eq!(member_of(&code(&direct), 0x36_7000, &structure), Some(0x5e_9628));
        // Below the code, and a large offset: adrp x0, -0x1000; add x0, x0, #1, lsl #12; ldr x0, [x0, #8].
        let below = [0xf0ff_ffe0, 0x9140_0400, 0xf940_0400];
        assert_eq!(member_of(&code(&below), 0x5e_9ffc, &(0x5e_9000..0x5e_a000)), Some(0x5e_9008));
        // Another base, the structure's beginning, behind the return, other instructions, and nothing.
        let beginning = [0xd000_1400, 0x9111_0000, 0xf940_0000];
        for words in [&debian[3..], &beginning, &debian[6..], &[0xffff_ffff], &[]] {
            assert_eq!(member_of(&code(words), 0x36_7000, &structure), None, "{words:x?}");
        }
        // Another instruction overwrites the register: mov x0, x1.
        assert_eq!(
            member_of(&code(&[0xd000_1400, 0x9111_0000, 0xaa01_03e0, 0xf940_f400]), 0x36_7000, &structure),
            None
        );
    }

    proptest! {
        #[test]
        fn any_code_has_no_member_outside_of_the_structure(code: [u8; 64]) {
            let structure = 0x3000..0x3400;
            if let Some(address) = member_of(&code, 0x1000, &structure) {
                prop_assert!(structure.contains(&address));
            }
        }
    }
}
