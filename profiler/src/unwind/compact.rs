//! Turns functions into pages of sorted rows: resolves overlaps, merges equal neighbours, marks gaps.

use heapbpf_base::address::LinkAddr;
use profiler_common::unwind::{PAGE_BITS, PageRows, UnwindRow};

use super::cfi::Functions;
use super::image::{Code, Image, Samples, code_at};
use super::table::{self, BuildStats, RuleTable, Table};

const PAGE_BYTES: u64 = 1 << PAGE_BITS;
/// Code after the entry point that counts as entry code if no function covers it. `_start` has 20 to 50 bytes, on aarch64 up to 80: at
/// fixed addresses, each of three addresses takes four instructions.
const ENTRY_BYTES: u64 = 80;

/// Resolves overlaps as the C++ runtime's search does: the function with the highest start at or before an address
/// applies, even if it ends before that address. Of functions with the same start the first one is kept.
pub(crate) fn resolve(functions: Functions, entry: Option<u64>, code: &[Code], stats: &mut BuildStats) -> Functions {
    let Functions { mut functions, rows } = functions;
    functions.sort_by_key(|function| function.start);
    let before = functions.len();
    functions.dedup_by_key(|function| function.start);
    stats.functions_overlapping += (before - functions.len()) as u64;
    for i in 1..functions.len() {
        let next_start = functions[i].start;
        let function = &mut functions[i - 1];
        if function.end > next_start {
            function.end = next_start;
            stats.functions_overlapping += 1;
        }
    }
    let mut spans = Functions { functions, rows };
    if let Some(entry) = entry {
        mark_entry(&mut spans, entry, code);
    }
    stats.covered_bytes = spans.covered_bytes();
    spans
}

/// Ends stacks at the entry point if its code has no unwind information: musl's, and that of static executables.
fn mark_entry(spans: &mut Functions, entry: u64, code: &[Code]) {
    let functions = &spans.functions;
    let next = functions.partition_point(|function| function.start <= entry);
    if next.checked_sub(1).and_then(|i| functions.get(i)).is_some_and(|function| entry < function.end) {
        return;
    }
    let Some(segment) = code_at(code, entry) else { return };
    let limit = functions.get(next).map_or(segment.end, |function| function.start.min(segment.end));
    spans.insert(entry, limit.min(entry.saturating_add(ENTRY_BYTES)), table::END);
}

/// `gap` is the number of the rule for code that no function covers.
pub(crate) fn compact(spans: &Functions, code: &[Code], gap: u16, rules: RuleTable, stats: BuildStats) -> Table {
    let first = if gap == table::GAP {
        spans.functions.first().map_or(0, |function| function.start)
    } else {
        code.first().map_or(0, |code| code.start)
    };
    let mut pages = Pages::new(first);
    let mut functions = spans.functions.iter().peekable();
    for segment in code {
        pages.hold(segment.start, gap);
        while let Some(function) = functions.next_if(|function| function.start < segment.end) {
            let rows = spans.rows.iter().skip(function.first_row as usize).take(function.row_count as usize);
            for row in rows {
                let address = function.start + u64::from(row.offset);
                if address < function.end {
                    pages.hold(address, row.rule);
                }
            }
            // Padding looks like code without unwind information: the previous rule must cover neither.
            if functions.peek().is_none_or(|next| next.start > function.end) {
                pages.hold(function.end, gap);
            }
        }
        pages.hold(segment.end, table::GAP);
    }
    let (rows, pages) = pages.finish();
    Table {
        base: LinkAddr(first & !(PAGE_BYTES - 1)),
        rows,
        pages,
        rules: rules.into_rules(),
        stats,
        samples: Samples::default(),
    }
}

struct Pages {
    base: u64,
    rows: Vec<UnwindRow>,
    /// Pages that have been started. The last one is open.
    pages: Vec<PageRows>,
    /// The rule that applies after the last address.
    rule: u16,
}

impl Pages {
    fn new(first: u64) -> Self {
        Self { base: first & !(PAGE_BYTES - 1), rows: Vec::new(), pages: Vec::new(), rule: table::GAP }
    }

    /// From `address` on, which must not decrease.
    fn hold(&mut self, address: u64, rule: u16) {
        if rule == self.rule || address < self.base {
            return;
        }
        let offset = address - self.base;
        self.open(offset >> PAGE_BITS);
        #[expect(clippy::cast_possible_truncation, reason = "the low bits are wanted")]
        let row = UnwindRow { pc_low: offset as u16, rule };
        let open = self.pages.last().map_or(0, |page| page.first as usize);
        if self.rows.len() > open && self.rows.last().is_some_and(|last| last.pc_low == row.pc_low) {
            self.rows.pop();
        } else if self.rows.len() == open && row.pc_low > 0 {
            self.rows.push(UnwindRow { pc_low: 0, rule: self.rule });
        }
        self.rows.push(row);
        self.rule = rule;
    }

    /// Starts all pages up to this one, each with the current rule; a page that is a gap stays empty.
    fn open(&mut self, page: u64) {
        while (self.pages.len() as u64) <= page {
            if !self.pages.is_empty() {
                self.close();
            }
            let first = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
            self.pages.push(PageRows { first, end: first });
            let carries_on = (self.pages.len() as u64) <= page;
            if carries_on && self.rule != table::GAP {
                self.rows.push(UnwindRow { pc_low: 0, rule: self.rule });
            }
        }
    }

    fn close(&mut self) {
        let end = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
        if let Some(page) = self.pages.last_mut() {
            page.end = end;
        }
    }

    fn finish(mut self) -> (Vec<UnwindRow>, Vec<PageRows>) {
        self.close();
        (self.rows, self.pages)
    }
}

/// Shorter gaps are padding.
const GAP_BYTES_MIN: u64 = 64;
const SAMPLES: u64 = 256;
const SAMPLE_BYTES: u64 = 4096;
const PROLOGUES_MIN: u64 = 4;
/// Compilers' functions have 100 to 1,000 bytes; some gaps are constants that the linker put beside the code.
const BYTES_PER_PROLOGUE_MAX: u64 = 4096;

/// Whether the functions in a module's gaps set up frame pointers, so that these unwind it; also returns the sampled
/// code. A walk along rbp through code that uses it otherwise silently skips frames, so code is sampled for prologues:
/// chromium's 236 MB have 8,852 functions with unwind information and a frame pointer in nearly all others; libraries
/// with some assembly, and musl's loader, have neither. Bytes per function would not distinguish these, nor detect the
/// builtins of V8, which are in a gap of node and keep frame pointers.
pub(crate) fn fill_gaps(image: &Image<'_>, spans: &Functions) -> (bool, Samples) {
    let samples = Samples::of(image, sample_ranges(&gaps(image, spans)));
    let prologues = image.processor.prologues();
    let (mut bytes_read, mut found) = (0, 0);
    for &(address, length) in &samples.ranges {
        let bytes = image.read_code(address, length);
        if bytes.is_empty() {
            return (false, samples);
        }
        bytes_read += bytes.len() as u64;
        found += bytes.array_windows::<4>().filter(|window| prologues.contains(window)).count() as u64;
    }
    (found >= PROLOGUES_MIN && bytes_read / found <= BYTES_PER_PROLOGUE_MAX, samples)
}

fn sample_ranges(gaps: &[(u64, u64)]) -> Vec<(u64, u32)> {
    let total: u64 = gaps.iter().map(|(start, end)| end - start).sum();
    let stride = (total / SAMPLES).max(SAMPLE_BYTES);
    let mut ranges = Vec::new();
    let mut skip = 0;
    for &(start, end) in gaps {
        let mut address = start.saturating_add(skip);
        while address < end {
            ranges.push((address, u32::try_from(SAMPLE_BYTES.min(end - address)).unwrap_or(0)));
            address = address.saturating_add(stride);
        }
        skip = address - end;
    }
    ranges
}

pub(super) fn gaps(image: &Image<'_>, spans: &Functions) -> Vec<(u64, u64)> {
    let mut gaps = all_gaps(image, spans);
    gaps.retain(|(start, end)| end - start >= GAP_BYTES_MIN);
    gaps
}

/// Also padding.
pub(super) fn all_gaps(image: &Image<'_>, spans: &Functions) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut functions = spans.functions.iter().peekable();
    for code in &image.code {
        let mut start = code.start;
        while let Some(function) = functions.next_if(|function| function.start < code.end) {
            gaps.push((start, function.start));
            start = function.end;
        }
        gaps.push((start, code.end));
    }
    gaps.retain(|(start, end)| start < end);
    gaps
}
