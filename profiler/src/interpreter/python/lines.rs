//! Lines of code objects: tables that map instructions to lines, which the target controls.

use std::sync::Arc;

use profiler_common::interpreter::{INSTRUCTION_UNKNOWN, LineTable};

use crate::object::interpreted;

/// The table of a code object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lines {
    pub(super) format: LineTable,
    pub(super) first_line: u32,
    pub(super) table: Arc<[u8]>,
}

/// Bytes of a code unit.
const UNIT_BYTES: u64 = 2;

impl interpreted::LineTable for Lines {
    fn at(&self, unit: u32) -> Option<u32> {
        // A frame that has not begun is at its function's first line.
        if unit == INSTRUCTION_UNKNOWN { Some(self.first_line).filter(|&line| line > 0) } else { self.of_unit(unit) }
    }

    fn bytes(&self) -> usize {
        self.table.len()
    }
}

impl Lines {
    /// The line of a code unit; `None` if it has none, or the table does not reach it.
    fn of_unit(&self, unit: u32) -> Option<u32> {
        let line = match self.format {
            LineTable::Deltas => self.by_deltas(unit),
            LineTable::Ranges => self.by_ranges(unit),
            LineTable::Locations => self.by_locations(unit),
        }?;
        u32::try_from(line).ok().filter(|&line| line > 0)
    }

    /// Pairs: bytes since the last pair, and lines since then. A pair applies from its address on.
    fn by_deltas(&self, unit: u32) -> Option<i64> {
        let wanted = u64::from(unit) * UNIT_BYTES;
        let (mut address, mut line) = (0, i64::from(self.first_line));
        for &[bytes, lines] in self.table.as_chunks::<2>().0 {
            address += u64::from(bytes);
            if address > wanted {
                break;
            }
            line += i64::from(lines.cast_signed());
        }
        Some(line)
    }

    /// Pairs: bytes of a range, and lines since the last range. -128 marks a range without a line.
    fn by_ranges(&self, unit: u32) -> Option<i64> {
        const NO_LINE: i8 = -128;
        let wanted = u64::from(unit) * UNIT_BYTES;
        let (mut end, mut line) = (0, i64::from(self.first_line));
        for &[bytes, lines] in self.table.as_chunks::<2>().0 {
            let lines = lines.cast_signed();
            line += if lines == NO_LINE { 0 } else { i64::from(lines) };
            end += u64::from(bytes);
            if wanted < end {
                return (lines != NO_LINE).then_some(line);
            }
        }
        None
    }

    /// Entries: a byte with the kind and the number of units, then the kind's numbers.
    fn by_locations(&self, unit: u32) -> Option<i64> {
        const NO_COLUMNS: u8 = 13;
        const LONG: u8 = 14;
        const NO_LINE: u8 = 15;
        let mut bytes = self.table.iter().copied();
        let (mut end, mut line) = (0, i64::from(self.first_line));
        while let Some(first) = bytes.next() {
            let kind = first >> 3 & 15;
            end += u64::from(first & 7) + 1;
            // Columns follow the line.
            let columns = match kind {
                0..=9 => 1,
                10..=12 => {
                    line += i64::from(kind - 10);
                    2
                }
                NO_COLUMNS | LONG => {
                    line = line.checked_add(signed(number(&mut bytes)?))?;
                    0
                }
                _ => 0,
            };
            for _ in 0..columns {
                bytes.next()?;
            }
            if kind == LONG {
                for _ in 0..3 {
                    number(&mut bytes)?;
                }
            }
            if u64::from(unit) < end {
                return (kind != NO_LINE).then_some(line);
            }
        }
        None
    }
}

/// Six bits per byte, the lowest first; the seventh marks that another follows.
fn number(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(6) {
        let byte = bytes.next()?;
        value |= u64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            return Some(value);
        }
    }
    None
}

/// The lowest bit is the sign.
fn signed(value: u64) -> i64 {
    let magnitude = (value >> 1).cast_signed();
    if value & 1 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(format: LineTable, first_line: u32, table: &[u8]) -> Lines {
        Lines { format, first_line, table: table.into() }
    }

    fn at(lines: &Lines, units: impl IntoIterator<Item = u32>) -> Vec<Option<u32>> {
        units.into_iter().map(|unit| lines.of_unit(unit)).collect()
    }

    /// Table of `def f(): a = 1; b = (⏎ 2 +⏎ a); return b` in the format of 3.9, from `f.__code__.co_lnotab`.
    #[test]
    fn deltas_apply_from_their_address_on() {
        let lines = lines(LineTable::Deltas, 10, &[0, 1, 4, 1, 2, 1, 2, 255, 4, 1]);
        assert_eq!(at(&lines, 0..8), [11, 11, 12, 13, 12, 12, 13, 13].map(Some));
    }

    #[test]
    fn ranges_may_have_no_line() {
        let lines = lines(LineTable::Ranges, 10, &[4, 1, 2, 128, 0, 5, 2, 254]);
        assert_eq!(at(&lines, 0..5), [Some(11), Some(11), None, Some(14), None]);
    }

    #[test]
    fn locations_have_kinds() {
        let entry = |kind: u8, units: u8| 0x80 | kind << 3 | (units - 1);
        let table =
            [entry(15, 1), entry(11, 2), 3, 4, entry(0, 1), 0x35, entry(13, 1), 4, entry(14, 8), 3 | 64, 1, 0, 1, 2];
        let lines = lines(LineTable::Locations, 7, &table);
        // No line; 7 + 1, twice; the same; + 2; - 33.
        assert_eq!(at(&lines, 0..5), [None, Some(8), Some(8), Some(8), Some(10)]);
        let later = Lines { first_line: 107, ..lines };
        assert_eq!(at(&later, 4..15), [vec![Some(110)], vec![Some(77); 8], vec![None; 2]].concat());
    }

    proptest! {
        #[test]
        fn any_table_gives_lines_or_none(
            table in proptest::collection::vec(any::<u8>(), 0..200),
            first_line: u32,
            unit: u32,
        ) {
            for format in [LineTable::Deltas, LineTable::Ranges, LineTable::Locations] {
                let _ = lines(format, first_line, &table).of_unit(unit);
            }
        }
    }
}
