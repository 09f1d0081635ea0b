//! Rows in order of address become pages: equal neighbours are merged, gaps are marked, and each page stands alone.

use profiler_common::unwind::{PAGE_BITS, PageRows, UnwindRow};

use super::frame_pointer::Samples;
use super::image::Code;
use super::rules::{self, RuleTable};
use super::spans::Spans;
use super::table::{BuildStats, Table};
use crate::address::LinkAddr;

const PAGE_BYTES: u64 = 1 << PAGE_BITS;

/// Builds the table. `gap` is the number of the rule that holds in code which no function covers.
pub(crate) fn compact(spans: &Spans, code: &[Code], gap: u16, rules: RuleTable, stats: BuildStats) -> Table {
    let first = if gap == rules::GAP {
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
            // Padding is not told from code without unwind information: neither may be covered by the rule before it.
            if functions.peek().is_none_or(|next| next.start > function.end) {
                pages.hold(function.end, gap);
            }
        }
        pages.hold(segment.end, rules::GAP);
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

/// Rows in the making.
struct Pages {
    base: u64,
    rows: Vec<UnwindRow>,
    /// Pages that have been begun. The last one is open.
    pages: Vec<PageRows>,
    /// The rule that holds from the last address on.
    rule: u16,
}

impl Pages {
    fn new(first: u64) -> Self {
        Self { base: first & !(PAGE_BYTES - 1), rows: Vec::new(), pages: Vec::new(), rule: rules::GAP }
    }

    /// From `address` on, which is not below any before, `rule` holds.
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

    /// Opens all pages up to this one. Each begins with the rule that holds there; one wholly in a gap stays empty.
    fn open(&mut self, page: u64) {
        while (self.pages.len() as u64) <= page {
            if !self.pages.is_empty() {
                self.close();
            }
            let first = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
            self.pages.push(PageRows { first, end: first });
            let carries_on = (self.pages.len() as u64) <= page;
            if carries_on && self.rule != rules::GAP {
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
