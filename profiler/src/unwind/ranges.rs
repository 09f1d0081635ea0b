//! Address ranges of functions, from `.eh_frame`: stripped files keep them.

use gimli::{BaseAddresses, CieOrFde, EhFrame, UnwindContext, UnwindOffset, UnwindSection as _};
use rustc_hash::FxHashMap;

use super::cfi::FUNCTIONS_MAX;
use super::image::Image;
use crate::object::image::Image as File;

/// Link addresses, exclusive of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    start: u64,
    end: u64,
}

/// Ranges that frame description entries (FDEs) cover, by start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges(Vec<Range>);

impl Ranges {
    /// Empty without `.eh_frame`; up to the first malformed entry.
    pub(crate) fn read(file: &File) -> Self {
        let Ok(image) = Image::parse(file) else { return Self::default() };
        Self::of(&image.eh_frame(), &image.bases)
    }

    fn of(section: &EhFrame<super::arch::Bytes<'_>>, bases: &BaseAddresses) -> Self {
        let mut cies = FxHashMap::default();
        let mut entries = section.entries(bases);
        let mut ranges = Vec::new();
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else { continue };
            let function = partial.parse(|section, bases, offset| {
                let parse = || section.cie_from_offset(bases, offset);
                cies.entry(UnwindOffset::into(offset)).or_insert_with(parse).clone()
            });
            // Entries of functions that the linker removed start at 0.
            if let Ok(function) = function.map(|function| (function.initial_address(), function.len()))
                && function.0 != 0
                && ranges.len() < FUNCTIONS_MAX
            {
                ranges.push(Range { start: function.0, end: function.0.saturating_add(function.1) });
            }
        }
        ranges.sort_unstable();
        Self(ranges)
    }

    /// All ranges, by their starts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        self.0.iter().map(|range| range.start..range.end)
    }

    /// Returns the start of the range that contains the address; of overlapping ones, the last.
    pub(crate) fn start_of(&self, address: u64) -> Option<u64> {
        self.range_of(address).map(|range| range.start)
    }

    /// Returns the range that contains the address; of overlapping ones, the last.
    pub(crate) fn range_of(&self, address: u64) -> Option<std::ops::Range<u64>> {
        let behind = self.0.partition_point(|range| range.start <= address);
        let range = self.0.get(behind.checked_sub(1)?)?;
        (address < range.end).then_some(range.start..range.end)
    }
}

/// Ranges that contain one of these addresses, and are parts of functions that begin elsewhere: where their code begins, the
/// function has pushed something already. Compilers put what is rarely executed there (`.cold`).
pub(crate) fn inner_parts(file: &File, addresses: &[u64]) -> Vec<std::ops::Range<u64>> {
    let Ok(image) = Image::parse(file) else { return Vec::new() };
    let section = image.eh_frame();
    let (mut entries, mut context) =
        (section.entries(&image.bases), UnwindContext::<usize, super::arch::RowStorage>::new_in());
    let mut parts = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(function) = partial.parse(EhFrame::cie_from_offset) else { continue };
        let start = function.initial_address();
        let range = start..start.saturating_add(function.len());
        if !addresses.iter().any(|address| range.contains(address)) {
            continue;
        }
        let rows = function.rows(&section, &image.bases, &mut context);
        let is_inner = rows.is_ok_and(|mut rows| {
            rows.next_row().is_ok_and(|row| row.is_some_and(|row| !image.processor.is_entry(row.cfa())))
        });
        if is_inner {
            parts.push(range);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_range_that_contains_it() {
        let ranges = Ranges(vec![Range { start: 0x10, end: 0x20 }, Range { start: 0x30, end: 0x34 }]);
        for (address, start) in
            [(0, None), (0x10, Some(0x10)), (0x1f, Some(0x10)), (0x20, None), (0x33, Some(0x30)), (0x34, None)]
        {
            assert_eq!(ranges.start_of(address), start, "{address:#x}");
        }
        assert_eq!(Ranges::default().start_of(0), None);
    }
}
