//! Tables of source positions, in bytecode and compiled code (`src/codegen/source-position-table.cc` of V8 10.2 to 13.6): differences
//! between entries, as numbers of 7 bits per byte, the lowest first, with the sign in the lowest bit.

/// From this offset on, the code has this position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) offset: u32,
    pub(super) position: Position,
}

/// A place in a source: `SourcePosition` in `src/codegen/source-position.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// In UTF-16 units from the beginning of the source; `None` if it is unknown, or in a file of the engine's.
    pub(super) unit: Option<u32>,
    /// Number of the inlined call that the code is of.
    pub(super) inlined: Option<u16>,
}

impl Position {
    pub(super) fn of_bits(bits: i64) -> Self {
        let bits = bits.cast_unsigned();
        let unit = (bits >> 1 & ((1 << 30) - 1)) as u32;
        let inlined = (bits >> 31 & 0xffff) as u16;
        Self { unit: unit.checked_sub(1).filter(|_| bits & 1 == 0), inlined: inlined.checked_sub(1) }
    }
}

/// Until the bytes end, or are malformed.
pub(super) fn entries(mut bytes: &[u8]) -> Vec<Entry> {
    let mut entries = Vec::new();
    // The first entry can be that of the function itself, before its code (`kFunctionEntryBytecodeOffset`).
    let (mut offset, mut bits): (i64, i64) = (-1, 0);
    while let (Some(step), Some(difference)) = (number(&mut bytes), number(&mut bytes)) {
        // The sign distinguishes statements from expressions.
        let step = if step < 0 { -(step + 1) } else { step };
        (offset, bits) = (offset.wrapping_add(step), bits.wrapping_add(difference));
        if let Ok(offset) = u32::try_from(offset) {
            entries.push(Entry { offset, position: Position::of_bits(bits) });
        }
    }
    entries
}

fn number(bytes: &mut &[u8]) -> Option<i64> {
    let value = unsigned(bytes)?;
    Some((value >> 1).cast_signed() ^ -((value & 1).cast_signed()))
}

/// A number without sign.
pub(super) fn unsigned(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn differences_are_added() {
        // Of a function that Node.js 20 has compiled.
        let bytes = [0x03, 0xd0, 0x02, 0x4f, 0x18, 0xcd, 0x01, 0x38];
        let unit = |unit: u32| Position { unit: Some(unit), inlined: None };
        let expected = [(0, unit(83)), (39, unit(89)), (141, unit(103))];
        let found: Vec<_> = entries(&bytes).iter().map(|entry| (entry.offset, entry.position)).collect();
        assert_eq!(found, expected);
        assert!(entries(&[0x80]).is_empty());
    }

    #[test]
    fn positions_have_an_inlined_call() {
        assert_eq!(Position::of_bits(0x8000_019e), Position { unit: Some(206), inlined: Some(0) });
        assert_eq!(Position::of_bits(0), Position { unit: None, inlined: None });
        assert_eq!(Position::of_bits(0x19f).unit, None, "in a file of the engine's");
    }

    proptest! {
        #[test]
        fn any_table_ends(bytes: Vec<u8>) {
            prop_assert!(entries(&bytes).len() <= bytes.len() / 2);
        }
    }
}
