//! The unwind table of one module: rows, pages and rules as in the kernel's maps; and its bytes in the cache.

use heapbpf_base::address::{LinkAddr, TargetAddr};
use profiler_common::unwind::{PageRows, RULES_MAX, ReadTables, RowCell, Rule, TableRef, UnwindRow, find_rule};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use strum::EnumCount;

use super::arch::Unsupported;
use super::image::Samples;

// Numbers of the reserved rules in every table.
pub(crate) const GAP: u16 = 0;
pub(crate) const END: u16 = 1;
pub(crate) const UNSUPPORTED: u16 = 2;
pub(crate) const SIGNAL: u16 = 3;
pub(crate) const FRAME_POINTER: u16 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    pub rows: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BuildStats {
    pub code_bytes: u64,
    pub covered_bytes: u64,
    pub functions: u64,
    pub functions_empty: u64,
    pub functions_outside_code: u64,
    pub functions_malformed: u64,
    /// Dropped or truncated because another one begins within them.
    pub functions_overlapping: u64,
    /// Before equal neighbours are merged.
    pub rows_read: u64,
    /// Bytes of code covered by those rows.
    pub bytes_read: u64,
    /// Rows without a rule, by [`Unsupported`].
    pub unsupported: [Tally; Unsupported::COUNT],
    /// By a limit, or because it could not be parsed further.
    pub truncated: bool,
    /// Code that no function covers is unwound by frame pointers.
    pub fills_gaps: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// A multiple of 64 KiB.
    pub base: LinkAddr,
    pub rows: Vec<UnwindRow>,
    /// By address: ranges of `rows`.
    pub pages: Vec<PageRows>,
    pub rules: Vec<Rule>,
    pub stats: BuildStats,
    /// The code that determined how gaps are unwound.
    pub samples: Samples,
}

impl Table {
    /// [`Rule::GAP`] if no function covers the address.
    pub fn lookup(&self, address: LinkAddr) -> Rule {
        find_rule(self, &self.place(TargetAddr(self.base.0), 0), address.0).unwrap_or(Rule::GAP)
    }

    /// `start`: target address of the first page ([`base`](Self::base) + load bias); `page_first`: its index.
    pub fn place(&self, start: TargetAddr, page_first: u32) -> TableRef {
        // The span of code is limited to 2^30 bytes, so to 2^14 pages.
        let page_count = u32::try_from(self.pages.len()).unwrap_or(u32::MAX);
        TableRef { start: start.0, page_first, page_count }
    }

    /// Ends stacks in code that no function covers, instead of following frame pointers.
    pub fn forget_frame_pointers(&mut self) {
        for row in self.rows.iter_mut().filter(|row| row.rule == FRAME_POINTER) {
            row.rule = GAP;
        }
        self.stats.fills_gaps = false;
    }

    /// Maps local rule numbers to those of `shared`; if all are used, to [`Rule::UNSUPPORTED`].
    pub fn number_rules(&self, shared: &mut RuleTable) -> Vec<u16> {
        self.rules.iter().map(|&rule| shared.number(rule).unwrap_or(UNSUPPORTED)).collect()
    }

    pub fn cells<'a>(&'a self, numbers: &'a [u16]) -> impl ExactSizeIterator<Item = RowCell> + 'a {
        let shared = |row: &UnwindRow| UnwindRow {
            pc_low: row.pc_low,
            rule: numbers.get(usize::from(row.rule)).copied().unwrap_or(UNSUPPORTED),
        };
        let unused = UnwindRow { pc_low: u16::MAX, rule: GAP };
        self.rows.chunks(2).map(move |pair| RowCell {
            even: pair.first().map_or(unused, shared),
            odd: pair.get(1).map_or(unused, shared),
        })
    }

    /// `row_first` is the index of the first row in the row map: even, so that modules share no cell.
    pub fn pages_at(&self, row_first: u32) -> impl ExactSizeIterator<Item = PageRows> + '_ {
        self.pages.iter().map(move |page| PageRows {
            first: page.first.wrapping_add(row_first),
            end: page.end.wrapping_add(row_first),
        })
    }

    pub fn kernel_bytes(&self) -> usize {
        self.rows.len().div_ceil(2) * size_of::<RowCell>() + self.pages.len() * size_of::<PageRows>()
    }

    /// Whether all indices are valid and each page's rows are sorted: a cached table is checked.
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

const MAGIC: [u8; 8] = *b"hbunwind";
/// Must be incremented whenever a module gives another table or other bytes: layout, meaning of rules, builder.
const VERSION: u32 = 6;
/// Before the checksummed bytes are magic, version and checksum.
pub(crate) const CHECKED_FROM: usize = 16;

/// File name, base, rows, pages, rules, statistics, samples: in postcard's format, after the header. Rows are the bytes of their
/// fields, little endian: there are tens of thousands, and decoding each number would take most of the time.
type Stored<'a> = (&'a [u8], u64, &'a [u8], Vec<(u32, u32)>, Vec<[u8; 8]>, BuildStats, Samples);

impl Table {
    pub(crate) fn encode(&self, name: &[u8]) -> Vec<u8> {
        let rows: Vec<u8> = self.rows.iter().flat_map(row_bytes).collect();
        let stored: Stored<'_> = (
            name,
            self.base.0,
            &rows,
            self.pages.iter().map(|page| (page.first, page.end)).collect(),
            self.rules.iter().map(|rule| rule.to_bytes()).collect(),
            self.stats,
            self.samples.clone(),
        );
        // Only sequences of unknown length cannot be encoded.
        let checked = postcard::to_stdvec(&stored).unwrap_or_default();
        let checksum = crc32fast::hash(&checked);
        [&MAGIC[..], &VERSION.to_le_bytes(), &checksum.to_le_bytes(), &checked].concat()
    }

    /// `None` unless the bytes are undamaged, of this version and file name, and consistent. A forged file can at worst
    /// name wrong callers; the cache decides which files to trust.
    pub(crate) fn decode(name: &[u8], bytes: &[u8]) -> Option<Self> {
        let (header, checked) = bytes.split_at_checked(CHECKED_FROM)?;
        if header != [&MAGIC[..], &VERSION.to_le_bytes(), &crc32fast::hash(checked).to_le_bytes()].concat() {
            return None;
        }
        let ((stored_name, base, rows, pages, rules, stats, samples), rest): (Stored<'_>, _) =
            postcard::take_from_bytes(checked).ok()?;
        let table = Self {
            base: LinkAddr(base),
            rows: rows_of(rows)?,
            pages: pages.into_iter().map(|(first, end)| PageRows { first, end }).collect(),
            rules: rules.into_iter().map(Rule::from_bytes).collect::<Option<_>>()?,
            stats,
            samples,
        };
        (rest.is_empty() && stored_name == name && table.is_consistent()).then_some(table)
    }
}

fn row_bytes(row: &UnwindRow) -> [u8; 4] {
    let ([a, b], [c, d]) = (row.pc_low.to_le_bytes(), row.rule.to_le_bytes());
    [a, b, c, d]
}

/// `None` if the bytes are not whole rows.
fn rows_of(bytes: &[u8]) -> Option<Vec<UnwindRow>> {
    let (rows, rest) = bytes.as_chunks();
    let row =
        |&[a, b, c, d]: &[u8; 4]| UnwindRow { pc_low: u16::from_le_bytes([a, b]), rule: u16::from_le_bytes([c, d]) };
    rest.is_empty().then(|| rows.iter().map(row).collect())
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

/// Distinct rules by number, the reserved ones first.
#[derive(Clone, Debug)]
pub struct RuleTable {
    rules: Vec<Rule>,
    numbers: FxHashMap<Rule, u16>,
}

impl RuleTable {
    /// Adds a new rule; `None` if all numbers are used.
    pub fn number(&mut self, rule: Rule) -> Option<u16> {
        if let Some(&number) = self.numbers.get(&rule) {
            return Some(number);
        }
        let number = u16::try_from(self.rules.len()).ok()?;
        debug_assert!(self.rules.len() < RULES_MAX, "numbers have 16 bits");
        self.rules.push(rule);
        self.numbers.insert(rule, number);
        Some(number)
    }

    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub fn into_rules(self) -> Vec<Rule> {
        self.rules
    }
}

impl Default for RuleTable {
    fn default() -> Self {
        let numbers = Rule::RESERVED.into_iter().zip(0..).collect();
        Self { rules: Rule::RESERVED.to_vec(), numbers }
    }
}
