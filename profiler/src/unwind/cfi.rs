//! Reads `.eh_frame` and `.debug_frame` into functions with rows. `compact` sorts them and handles overlaps and gaps.

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, Error, FrameDescriptionEntry, UnwindContext, UnwindOffset,
    UnwindSection,
};
use rustc_hash::FxHashMap;

use super::arch::{Bytes, Context, Processor, RowStorage, Unsupported};
use super::image::{Code, Image};
use super::table::{self, BuildStats, RuleTable};

/// FDEs of one module. The largest known number, rustc's, is 174,248.
pub(crate) const FUNCTIONS_MAX: usize = 2 << 20;
/// Of one module, before equal neighbours are merged. The largest known number, rustc's, is 1.8 million.
pub(crate) const ROWS_MAX: usize = 16 << 20;
/// A CIE's instructions are executed for each of its functions. Real ones have 20 bytes.
pub(crate) const CIE_BYTES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Link address, like `end`.
    pub start: u64,
    pub end: u64,
    pub first_row: u32,
    pub row_count: u32,
}

/// A rule that applies from this offset of its function on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FunctionRow {
    pub offset: u32,
    pub rule: u16,
}

#[derive(Debug, Default)]
pub(crate) struct Functions {
    /// May overlap.
    pub functions: Vec<Function>,
    pub rows: Vec<FunctionRow>,
}

struct Reader<'a, 'data, S> {
    section: &'a S,
    bases: &'a BaseAddresses,
    processor: Processor,
    code: &'a [Code],
    rules: &'a mut RuleTable,
    stats: &'a mut BuildStats,
    unwinding: UnwindContext<usize, RowStorage>,
    cies: FxHashMap<usize, Result<CommonInformationEntry<Bytes<'data>>, Error>>,
}

impl Functions {
    /// Overlaps are counted twice.
    pub(crate) fn covered_bytes(&self) -> u64 {
        self.functions.iter().map(|function| function.end - function.start).sum()
    }

    /// Adds code with one rule among functions that are sorted. Returns false if there are too many rows.
    pub(super) fn insert(&mut self, start: u64, end: u64, rule: u16) -> bool {
        let Ok(first_row) = u32::try_from(self.rows.len()) else { return false };
        self.rows.push(FunctionRow { offset: 0, rule });
        let at = self.functions.partition_point(|function| function.start < start);
        self.functions.insert(at, Function { start, end, first_row, row_count: 1 });
        true
    }

    /// Gives the function that begins there one rule, if there is one among functions that are sorted.
    pub(super) fn replace(&mut self, start: u64, rule: u16) {
        let found = self.functions.binary_search_by_key(&start, |function| function.start);
        if let (Ok(at), Ok(first_row)) = (found, u32::try_from(self.rows.len())) {
            self.rows.push(FunctionRow { offset: 0, rule });
            (self.functions[at].first_row, self.functions[at].row_count) = (first_row, 1);
        }
    }

    pub(crate) fn read<'data, S: UnwindSection<Bytes<'data>>>(
        &mut self,
        section: &S,
        image: &Image<'_>,
        rules: &mut RuleTable,
        stats: &mut BuildStats,
    ) {
        let mut reader = Reader {
            section,
            bases: &image.bases,
            processor: image.processor,
            code: &image.code,
            rules,
            stats,
            unwinding: UnwindContext::new_in(),
            cies: FxHashMap::default(),
        };
        let mut entries = section.entries(&image.bases);
        loop {
            match entries.next() {
                Ok(Some(CieOrFde::Cie(_))) => {}
                Ok(Some(CieOrFde::Fde(partial))) => {
                    if self.functions.len() >= FUNCTIONS_MAX || self.rows.len() >= ROWS_MAX {
                        reader.stats.truncated = true;
                        break;
                    }
                    let cies = &mut reader.cies;
                    let function = partial.parse(|section, bases, offset| cie_at(cies, section, bases, offset));
                    match function {
                        Ok(function) => self.add(&function, &mut reader),
                        Err(_) => reader.stats.functions_malformed += 1,
                    }
                }
                Ok(None) => break,
                Err(_) => {
                    // The rest of the section cannot be parsed; the functions before it are used.
                    reader.stats.truncated = true;
                    break;
                }
            }
        }
    }

    fn add<'data, S: UnwindSection<Bytes<'data>>>(
        &mut self,
        function: &FrameDescriptionEntry<Bytes<'data>>,
        reader: &mut Reader<'_, 'data, S>,
    ) {
        let start = function.initial_address();
        if function.len() == 0 {
            reader.stats.functions_empty += 1;
            return;
        }
        // Functions that the linker removed keep their FDE with an address of 0 or another one outside code.
        let index = reader.code.partition_point(|code| code.start <= start);
        let Some(code) = index.checked_sub(1).and_then(|index| reader.code.get(index)).filter(|code| start < code.end)
        else {
            reader.stats.functions_outside_code += 1;
            return;
        };
        let end = start.saturating_add(function.len()).min(code.end);
        let (Ok(first_row), Ok(_)) = (u32::try_from(self.rows.len()), u32::try_from(end - start)) else {
            reader.stats.functions_malformed += 1;
            return;
        };
        self.add_rows(function, end, reader);
        let row_count = u32::try_from(self.rows.len()).map_or(0, |count| count - first_row);
        reader.stats.functions += 1;
        self.functions.push(Function { start, end, first_row, row_count });
    }

    fn add_rows<'data, S: UnwindSection<Bytes<'data>>>(
        &mut self,
        function: &FrameDescriptionEntry<Bytes<'data>>,
        end: u64,
        reader: &mut Reader<'_, 'data, S>,
    ) {
        let start = function.initial_address();
        let cie = function.cie();
        let context =
            Context { section: reader.section, encoding: cie.encoding(), is_signal: function.is_signal_trampoline() };
        let mut reached = start;
        let is_ordinary =
            cie.return_address_register() == reader.processor.return_address() && cie.entry_len() <= CIE_BYTES_MAX;
        if is_ordinary && let Ok(mut rows) = function.rows(reader.section, reader.bases, &mut reader.unwinding) {
            while let Ok(Some(row)) = rows.next_row() {
                if row.start_address() < reached || row.start_address() >= end || self.rows.len() >= ROWS_MAX {
                    break;
                }
                let row_end = row.end_address().clamp(row.start_address(), end);
                let translated = reader.processor.translate(&context, row);
                let number = number(translated, row_end - row.start_address(), reader.rules, reader.stats);
                self.push(row.start_address() - start, number);
                reached = row_end;
            }
        }
        if reached < end {
            number(Err(Unsupported::Malformed), end - reached, reader.rules, reader.stats);
            self.push(reached - start, table::UNSUPPORTED);
        }
    }

    fn push(&mut self, offset: u64, rule: u16) {
        // The caller has checked that the function's length fits.
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        self.rows.push(FunctionRow { offset, rule });
    }
}

fn number(
    translated: Result<profiler_common::unwind::Rule, Unsupported>,
    bytes: u64,
    rules: &mut RuleTable,
    stats: &mut BuildStats,
) -> u16 {
    stats.rows_read += 1;
    stats.bytes_read += bytes;
    match translated.and_then(|rule| rules.number(rule).ok_or(Unsupported::TooManyRules)) {
        Ok(number) => number,
        Err(reason) => {
            let tally = &mut stats.unsupported[reason as usize];
            tally.rows += 1;
            tally.bytes += bytes;
            table::UNSUPPORTED
        }
    }
}

fn cie_at<'data, S: UnwindSection<Bytes<'data>>>(
    cies: &mut FxHashMap<usize, Result<CommonInformationEntry<Bytes<'data>>, Error>>,
    section: &S,
    bases: &BaseAddresses,
    offset: S::Offset,
) -> Result<CommonInformationEntry<Bytes<'data>>, Error> {
    cies.entry(UnwindOffset::into(offset)).or_insert_with(|| section.cie_from_offset(bases, offset)).clone()
}
