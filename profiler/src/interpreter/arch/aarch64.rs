//! Branches of aarch64 code. Operands are not read: what interpreters need them for is unknown on aarch64.

use std::ops::Range;

use super::thread_local::ThreadLocal;

/// Whether the kernel side finds the frames of interpreters and virtual machines.
pub(in crate::interpreter) const HAS_FRAMES: bool = false;

/// Instructions with their addresses.
fn words(code: &[u8], start: u64) -> impl Iterator<Item = (u64, u32)> {
    let words = code.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    (0..).map(move |index: u64| start.wrapping_add(4 * index)).zip(words)
}

/// Target of a branch at this address whose distance is `count` bits from bit `from` on.
fn target(at: u64, word: u32, from: u32, count: u32) -> u64 {
    let distance = i64::from(word << (32 - from - count)) << 32 >> (64 - count);
    at.wrapping_add_signed(4 * distance)
}

/// Addresses outside of this code, which begins at `start`, that it jumps to directly.
pub(in crate::interpreter) fn branches_out(code: &[u8], start: u64) -> Vec<u64> {
    let end = start.saturating_add(code.len() as u64);
    let mut targets: Vec<u64> = words(code, start)
        .filter_map(|(at, word)| match word {
            // b
            _ if word & 0xfc00_0000 == 0x1400_0000 => Some(target(at, word, 0, 26)),
            // b.cond; cbz and cbnz
            _ if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 => {
                Some(target(at, word, 5, 19))
            }
            // tbz and tbnz
            _ if word & 0x7e00_0000 == 0x3600_0000 => Some(target(at, word, 5, 14)),
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
    // b, bl
    let is_call = move |at, word| word & 0x7c00_0000 == 0x1400_0000 && target(at, word, 0, 26) == function;
    words(code, start).filter_map(move |(at, word)| is_call(at, word).then_some(at))
}

/// Number of indirect jumps: `br`.
pub(in crate::interpreter) fn indirect_jumps(code: &[u8]) -> usize {
    words(code, 0).filter(|(_, word)| word & 0xffff_fc1f == 0xd61f_0000).count()
}

/// Whether a function passes 0 as its first argument to the one that it ends in: `mov w0, #0`, `mov x0, #0`, or of the zero register.
pub(in crate::interpreter) fn passes_zero(code: &[u8]) -> bool {
    words(code, 0).any(|(_, word)| matches!(word & 0x7fff_ffff, 0x5280_0000 | 0x2a1f_03e0))
}

/// Unknown.
pub(in crate::interpreter) fn thread_local(_code: &[u8], _start: u64) -> Option<ThreadLocal> {
    None
}

/// Unknown.
pub(in crate::interpreter) fn read_through(_code: &[u8], _start: u64, _offset: u64) -> Option<u64> {
    None
}

/// Unknown.
pub(in crate::interpreter) fn member_of(_code: &[u8], _start: u64, _structure: &Range<u64>) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
