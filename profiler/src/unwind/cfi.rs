//! Reads `.eh_frame` and `.debug_frame` into functions with rows. Order, overlaps and gaps are `spans`' business.

use std::collections::hash_map::Entry;

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, DebugFrame, EhFrame, Error, FrameDescriptionEntry, LittleEndian,
    Register, RegisterRule, UnwindContext, UnwindContextStorage, UnwindOffset, UnwindSection, UnwindTableRow, X86_64,
};
use object::ReadRef;
use rustc_hash::FxHashMap;

use super::image::{Code, Image};
use super::rule::{self, Bytes, Context, Unsupported};
use super::rules::{self, RuleTable};
use super::table::BuildStats;

/// Functions (FDEs) that are read of one module. The most that were met, in rustc's, are 174,248.
pub(crate) const FUNCTIONS_MAX: usize = 2 << 20;

/// Rows that are read of one module, before equal neighbours are merged. The most that were met, in rustc's, are 1.8
/// million.
pub(crate) const ROWS_MAX: usize = 16 << 20;

/// Length that a CIE may have, in bytes: its instructions run again for each of its functions. Real ones have 20.
pub(crate) const CIE_BYTES_MAX: usize = 1024;

/// Room for one row: 17 columns for general registers, 10 vector registers that functions of the Windows ABI save.
///
/// Remembering a row copies it, and two bytes can ask for that, so its size bounds the work that a module can demand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowStorage;

impl UnwindContextStorage<usize> for RowStorage {
    type Rules = [(Register, RegisterRule<usize>); 32];
    type Stack = Box<[UnwindTableRow<usize, Self>; 16]>;
}

/// One function's stretch of code and its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// First link address.
    pub start: u64,
    /// Link address after the last.
    pub end: u64,
    /// Index of its first row.
    pub first_row: u32,
    /// Number of its rows.
    pub row_count: u32,
}

/// From this distance into its function on, a rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FunctionRow {
    /// Distance from the function's start, in bytes.
    pub offset: u32,
    /// The rule's number.
    pub rule: u16,
}

/// All functions that a module's unwind information describes, in its order.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    /// The functions. They may overlap.
    pub functions: Vec<Function>,
    /// The rows of all functions.
    pub rows: Vec<FunctionRow>,
}

/// What one section's functions are read with.
struct Reader<'a, 'data, S> {
    section: &'a S,
    bases: &'a BaseAddresses,
    code: &'a [Code],
    rules: &'a mut RuleTable,
    stats: &'a mut BuildStats,
    unwinding: UnwindContext<usize, RowStorage>,
    cies: FxHashMap<usize, Result<CommonInformationEntry<Bytes<'data>>, Error>>,
}

impl Functions {
    /// Adds the functions of `.eh_frame`.
    pub(crate) fn read_eh_frame<'data, R: ReadRef<'data>>(
        &mut self,
        bytes: &'data [u8],
        image: &Image<'data, R>,
        rules: &mut RuleTable,
        stats: &mut BuildStats,
    ) {
        let mut section = EhFrame::new(bytes, LittleEndian);
        section.set_address_size(8);
        self.read(&section, image, rules, stats);
    }

    /// Adds the functions of `.debug_frame`.
    pub(crate) fn read_debug_frame<'data, R: ReadRef<'data>>(
        &mut self,
        bytes: &'data [u8],
        image: &Image<'data, R>,
        rules: &mut RuleTable,
        stats: &mut BuildStats,
    ) {
        let mut section = DebugFrame::new(bytes, LittleEndian);
        section.set_address_size(8);
        self.read(&section, image, rules, stats);
    }

    /// Bytes of code in all functions; where they overlap, counted twice.
    pub(crate) fn covered_bytes(&self) -> u64 {
        self.functions.iter().map(|function| function.end - function.start).sum()
    }

    fn read<'data, R: ReadRef<'data>, S: UnwindSection<Bytes<'data>>>(
        &mut self,
        section: &S,
        image: &Image<'data, R>,
        rules: &mut RuleTable,
        stats: &mut BuildStats,
    ) {
        let mut reader = Reader {
            section,
            bases: &image.bases,
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
                    // The section cannot be followed any further; what was read before stands.
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
        // Functions that the linker dropped keep their FDE with an address of 0 or some other place without code.
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
        let usual = cie.return_address_register() == X86_64::RA && cie.entry_len() <= CIE_BYTES_MAX;
        if usual && let Ok(mut rows) = function.rows(reader.section, reader.bases, &mut reader.unwinding) {
            while let Ok(Some(row)) = rows.next_row() {
                if row.start_address() < reached || row.start_address() >= end || self.rows.len() >= ROWS_MAX {
                    break;
                }
                let row_end = row.end_address().clamp(row.start_address(), end);
                let translated = rule::translate(&context, row);
                let number = number(translated, row_end - row.start_address(), reader.rules, reader.stats);
                self.push(row.start_address() - start, number);
                reached = row_end;
            }
        }
        if reached < end {
            number(Err(Unsupported::Malformed), end - reached, reader.rules, reader.stats);
            self.push(reached - start, rules::UNSUPPORTED);
        }
    }

    fn push(&mut self, offset: u64, rule: u16) {
        // The caller has seen that the function's length fits.
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
            rules::UNSUPPORTED
        }
    }
}

fn cie_at<'data, S: UnwindSection<Bytes<'data>>>(
    cies: &mut FxHashMap<usize, Result<CommonInformationEntry<Bytes<'data>>, Error>>,
    section: &S,
    bases: &BaseAddresses,
    offset: S::Offset,
) -> Result<CommonInformationEntry<Bytes<'data>>, Error> {
    match cies.entry(UnwindOffset::into(offset)) {
        Entry::Occupied(entry) => entry.get().clone(),
        Entry::Vacant(entry) => entry.insert(section.cie_from_offset(bases, offset)).clone(),
    }
}
