//! Bytecode, as far as its lengths, and the code that V8 generates from it without optimization: a piece for each bytecode, in the same
//! order (`src/baseline/bytecode-offset-iterator.h` of V8 10.2 to 13.6).

use super::positions::unsigned;

/// Bytecodes before others, which widen their operands to 2 and 4 bytes; with a breakpoint, these have the next two numbers.
const WIDE: u8 = 0;
const EXTRA_WIDE: u8 = 1;
const WIDE_BREAK: u8 = 2;
const EXTRA_WIDE_BREAK: u8 = 3;

/// Offset of the bytecode that code at this offset belongs to. `table` has the bytes of the code before the first bytecode, and of each
/// one's; `sizes` the bytes of each bytecode, for operands of 1, 2 and 4 bytes. `None` before the first and behind the last.
pub(super) fn offset_in(bytecode: &[u8], sizes: &[u8], mut table: &[u8], code_offset: u64) -> Option<u32> {
    let mut end = unsigned(&mut table)?;
    if code_offset < end {
        return None;
    }
    let mut at = 0;
    loop {
        end = end.checked_add(unsigned(&mut table)?)?;
        if code_offset < end {
            return u32::try_from(at).ok();
        }
        at += length(bytecode.get(at..)?, sizes)?;
    }
}

fn length(bytecode: &[u8], sizes: &[u8]) -> Option<usize> {
    let (row, prefix) = match *bytecode.first()? {
        WIDE | WIDE_BREAK => (1, 1),
        EXTRA_WIDE | EXTRA_WIDE_BREAK => (2, 1),
        _ => (0, 0),
    };
    let rows = sizes.len() / 3;
    let number = usize::from(*bytecode.get(prefix)?);
    let size = (number < rows).then(|| sizes[row * rows + number])?;
    (size > 0).then_some(prefix + usize::from(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Of seven bytecodes; number 5 has an operand, 6 has two.
    const SIZES: [u8; 21] = [1, 1, 1, 1, 1, 2, 3, 1, 1, 1, 1, 1, 3, 5, 1, 1, 1, 1, 1, 5, 9];

    #[test]
    fn code_belongs_to_the_bytecode_in_the_same_order() {
        // Number 5; 6 with wide operands; 4; 6 with very wide ones.
        let bytecode = [5, 9, 0, 6, 9, 9, 9, 9, 4, 1, 6, 9, 9, 9, 9, 9, 9, 9, 9];
        let table = [10, 4, 0x81, 1, 2, 3];
        let at = |offset| offset_in(&bytecode, &SIZES, &table, offset);
        assert_eq!(
            [0, 9, 10, 13, 14, 142, 143, 144, 145, 147].map(at),
            [None, None, Some(0), Some(0), Some(2), Some(2), Some(8), Some(8), Some(9), Some(9),]
        );
        assert_eq!(at(148), None);
        assert_eq!(offset_in(&[7], &SIZES, &[1, 1, 1], 2), None, "no such bytecode");
        assert_eq!(offset_in(&[5], &[], &[1, 1, 1], 2), None, "sizes are not known");
    }

    proptest! {
        #[test]
        fn any_table_ends(bytecode: Vec<u8>, table: Vec<u8>, offset: u64) {
            let _ = offset_in(&bytecode, &SIZES, &table, offset);
        }
    }
}
