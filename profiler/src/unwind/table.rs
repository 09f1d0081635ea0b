//! The table of one module: rows, pages and rules as the kernel's maps will hold them.

use profiler_common::unwind::{PageRows, ReadTables, RowCell, Rule, TableRef, UnwindRow, find_rule};

use super::frame_pointer::Samples;
use super::rule::Unsupported;
use super::rules::{self, RuleTable};
use crate::address::{LinkAddr, TargetAddr};

/// Rows, and bytes of code that they cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tally {
    /// Rows.
    pub rows: u64,
    /// Bytes of code.
    pub bytes: u64,
}

/// What went into a table, and what did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BuildStats {
    /// Bytes of executable segments.
    pub code_bytes: u64,
    /// Bytes of code that functions cover.
    pub covered_bytes: u64,
    /// Functions (FDEs) read.
    pub functions: u64,
    /// Functions dropped: of no length.
    pub functions_empty: u64,
    /// Functions dropped: not in an executable segment.
    pub functions_outside_code: u64,
    /// Functions dropped: malformed.
    pub functions_malformed: u64,
    /// Functions dropped or cut short: another one begins within them.
    pub functions_overlapping: u64,
    /// Rows read, before equal neighbours are merged.
    pub rows_read: u64,
    /// Bytes of code of those rows.
    pub bytes_read: u64,
    /// Rows without a rule, by [`Unsupported`].
    pub unsupported: [Tally; Unsupported::ALL.len()],
    /// Whether the unwind information was cut short: by a limit, or because it could not be followed any further.
    pub truncated: bool,
    /// Whether code that no function covers is unwound by frame pointers.
    pub fills_gaps: bool,
}

/// The unwind table of one module, by link address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The address that the first page begins at: a multiple of 64 KiB.
    pub base: LinkAddr,
    /// The rows of all pages, one page after the other, by address within each.
    pub rows: Vec<UnwindRow>,
    /// The pages, by address. They index `rows`.
    pub pages: Vec<PageRows>,
    /// The rules that rows number.
    pub rules: Vec<Rule>,
    /// How the table came about.
    pub stats: BuildStats,
    /// The code that decided how gaps are unwound.
    pub samples: Samples,
}

impl Table {
    /// The rule at a link address. Where no function covers it, [`Rule::GAP`].
    pub fn lookup(&self, address: LinkAddr) -> Rule {
        find_rule(self, &self.place(TargetAddr(self.base.0), 0), address.0).unwrap_or(Rule::GAP)
    }

    /// The reference that a process's mapping carries: `start` is where the first page lies in the target, which is
    /// [`base`](Self::base) plus the load bias; `page_first` is where the pages were put in the page map.
    pub fn place(&self, start: TargetAddr, page_first: u32) -> TableRef {
        // The span of code is limited to 2^30 bytes, so to 2^14 pages.
        let page_count = u32::try_from(self.pages.len()).unwrap_or(u32::MAX);
        TableRef { start: start.0, page_first, page_count }
    }

    /// Ends stacks in code that no function covers, instead of following frame pointers there.
    pub fn forget_frame_pointers(&mut self) {
        for row in self.rows.iter_mut().filter(|row| row.rule == rules::FRAME_POINTER) {
            row.rule = rules::GAP;
        }
        self.stats.fills_gaps = false;
    }

    /// Enters this table's rules into the table that all modules share. The result maps the numbers here to those
    /// there. Where all numbers are taken a rule becomes [`Rule::UNSUPPORTED`].
    pub fn number_rules(&self, shared: &mut RuleTable) -> Vec<u16> {
        self.rules.iter().map(|&rule| shared.number(rule).unwrap_or(rules::UNSUPPORTED)).collect()
    }

    /// Values of the row map, with rules by their shared numbers.
    pub fn cells<'a>(&'a self, numbers: &'a [u16]) -> impl ExactSizeIterator<Item = RowCell> + 'a {
        let shared = |row: &UnwindRow| UnwindRow {
            pc_low: row.pc_low,
            rule: numbers.get(usize::from(row.rule)).copied().unwrap_or(rules::UNSUPPORTED),
        };
        let unused = UnwindRow { pc_low: u16::MAX, rule: rules::GAP };
        self.rows.chunks(2).map(move |pair| RowCell {
            even: pair.first().map_or(unused, shared),
            odd: pair.get(1).map_or(unused, shared),
        })
    }

    /// Values of the page map, for a table whose first row was put at this index of the row map: an even one, so that
    /// no cell is shared between modules.
    pub fn pages_at(&self, row_first: u32) -> impl ExactSizeIterator<Item = PageRows> + '_ {
        self.pages.iter().map(move |page| PageRows {
            first: page.first.wrapping_add(row_first),
            end: page.end.wrapping_add(row_first),
        })
    }

    /// Memory that the table takes in the kernel's row and page maps, in bytes.
    pub fn kernel_bytes(&self) -> usize {
        self.rows.len().div_ceil(2) * size_of::<RowCell>() + self.pages.len() * size_of::<PageRows>()
    }

    /// Whether all indices lie within the table and each page's rows are in order. The builder's tables are; one from a
    /// file is checked.
    pub(crate) fn is_consistent(&self) -> bool {
        let rows_fit = self.rows.iter().all(|row| usize::from(row.rule) < self.rules.len());
        let mut end = 0;
        let pages_fit = self.pages.iter().all(|page| {
            let rows = self.rows.get(page.first as usize..page.end as usize);
            let follows = page.first == end;
            end = page.end;
            follows
                && rows.is_some_and(|rows| {
                    rows.first().is_none_or(|row| row.pc_low == 0) && rows.is_sorted_by(|a, b| a.pc_low < b.pc_low)
                })
        });
        let aligned = self.base.0.is_multiple_of(1 << profiler_common::unwind::PAGE_BITS);
        let reserved = self.rules.get(..Rule::RESERVED.len()) == Some(&Rule::RESERVED);
        rows_fit && pages_fit && aligned && reserved && end as usize == self.rows.len()
    }
}

impl ReadTables for Table {
    fn row(&self, index: u32) -> Option<UnwindRow> {
        self.rows.get(index as usize).copied()
    }

    fn page(&self, index: u32) -> Option<PageRows> {
        self.pages.get(index as usize).copied()
    }

    fn rule(&self, index: u16) -> Option<Rule> {
        self.rules.get(usize::from(index)).copied()
    }
}
