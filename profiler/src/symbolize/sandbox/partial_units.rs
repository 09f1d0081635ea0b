//! Partial units (dwz(1)) of DWARF 4 and older. They name the line table of another unit, so that addr2line 0.27 takes them for the
//! units of its addresses, and finds no function. Without that attribute, it ignores them.

use addr2line::gimli::constants::{DW_AT_stmt_list, DW_FORM_implicit_const, DW_TAG_partial_unit};

/// An attribute that no version of DWARF has.
const NO_ATTRIBUTE: u8 = 0x04;

/// Returns a copy of `.debug_abbrev` in which partial units name no line table; `None` if none does.
pub(super) fn without_lines(abbreviations: &[u8]) -> Option<Vec<u8>> {
    let places = line_tables(abbreviations);
    if places.is_empty() {
        return None;
    }
    let mut changed = abbreviations.to_vec();
    places.into_iter().for_each(|at| changed[at] = NO_ATTRIBUTE);
    Some(changed)
}

/// Where the attributes are, each a byte. Ends where the section is malformed.
fn line_tables(bytes: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if add_entry(bytes, &mut at, &mut places).is_none() {
            break;
        }
    }
    places
}

/// Reads an abbreviation, or the end of a unit's.
fn add_entry(bytes: &[u8], at: &mut usize, places: &mut Vec<usize>) -> Option<()> {
    if leb128(bytes, at)? == 0 {
        return Some(());
    }
    let is_partial = leb128(bytes, at)? == u64::from(DW_TAG_partial_unit.0);
    // Whether it has children.
    *at += 1;
    loop {
        let place = *at;
        let (name, form) = (leb128(bytes, at)?, leb128(bytes, at)?);
        if form == u64::from(DW_FORM_implicit_const.0) {
            leb128(bytes, at)?;
        }
        if (name, form) == (0, 0) {
            return Some(());
        }
        if is_partial && name == u64::from(DW_AT_stmt_list.0) && bytes[place] < 0x80 {
            places.push(place);
        }
    }
}

fn leb128(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_line_tables_of_partial_units_are_removed() {
        // A compile unit, a partial unit with a constant as well, the end of a unit's, and a partial unit.
        let own = [1, 0x11, 1, 0x10, 0x17, 0, 0];
        let partial = [2, 0x3c, 1, 0x3a, 0x21, 0x10, 0x10, 0x17, 0, 0];
        let bytes = [&own[..], &partial, &[0], &[1, 0x3c, 0, 0x10, 0x17, 0, 0, 0]].concat();
        let mut expected = bytes.clone();
        (expected[13], expected[21]) = (NO_ATTRIBUTE, NO_ATTRIBUTE);
        assert_eq!(without_lines(&bytes), Some(expected));
        assert_eq!(without_lines(&own), None);
        for length in 0..bytes.len() {
            let _ = without_lines(&bytes[..length]);
        }
        assert_eq!(without_lines(&[0xff; 40]), None);
    }
}
