//! Serialised tables for the cache, little-endian.
//!
//! ```text
//! magic 8 · version u32 · CRC-32 of the rest u32 · name u16 + bytes · base u64 · rows u32 · pages u32 · rules u32 · samples u32
//! · stats, u64 each · rows 4 B each · pages 8 B each · rules 8 B each · samples 12 B each · their digest 32 B
//! ```
//!
//! The checksum (CRC-32, by the `crc32fast` crate) detects disk errors and interrupted writes. The decoder also checks the
//! invariants of built tables, so a forged file can at worst name wrong callers; the cache decides which files to trust.

use profiler_common::unwind::{PageRows, Rule, UnwindRow};

use super::arch::Unsupported;
use super::image::Samples;
use super::table::{BuildStats, Table, Tally};
use crate::address::LinkAddr;

const MAGIC: [u8; 8] = *b"hbunwind";

/// Must be incremented whenever the same module would give another table or other bytes: for changes of the layout, of the meaning
/// of rules, or of the builder.
const VERSION: u32 = 2;

/// Offset of the bytes that the checksum covers.
pub(crate) const CHECKED_FROM: usize = 16;

/// Encodes a table for a file of this name.
pub(crate) fn encode(name: &[u8], table: &Table) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(table.rows.len() * 4 + table.pages.len() * 8 + table.rules.len() * 8 + 512);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
    bytes.extend(name);
    bytes.extend(table.base.0.to_le_bytes());
    let ranges = &table.samples.ranges;
    for count in [table.rows.len(), table.pages.len(), table.rules.len(), ranges.len()] {
        bytes.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
    }
    for number in numbers_of(&table.stats) {
        bytes.extend(number.to_le_bytes());
    }
    for row in &table.rows {
        bytes.extend(row.pc_low.to_le_bytes());
        bytes.extend(row.rule.to_le_bytes());
    }
    for page in &table.pages {
        bytes.extend(page.first.to_le_bytes());
        bytes.extend(page.end.to_le_bytes());
    }
    for rule in &table.rules {
        bytes.extend(rule.to_bytes());
    }
    for (address, length) in ranges {
        bytes.extend(address.to_le_bytes());
        bytes.extend(length.to_le_bytes());
    }
    bytes.extend(table.samples.digest);
    let checksum = crc32fast::hash(&bytes[CHECKED_FROM..]);
    bytes[CHECKED_FROM - 4..CHECKED_FROM].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Decodes a table; `None` unless the bytes are complete, undamaged, of this version, and of a file of this name.
pub(crate) fn decode(name: &[u8], bytes: &[u8]) -> Option<Table> {
    let mut rest = bytes;
    if take(&mut rest)? != MAGIC || u32::from_le_bytes(take(&mut rest)?) != VERSION {
        return None;
    }
    if u32::from_le_bytes(take(&mut rest)?) != crc32fast::hash(rest) {
        return None;
    }
    let length = usize::from(u16::from_le_bytes(take(&mut rest)?));
    if rest.split_off(..length)? != name {
        return None;
    }
    let base = LinkAddr(u64::from_le_bytes(take(&mut rest)?));
    let mut count = || Some(u32::from_le_bytes(take(&mut rest)?) as usize);
    let (rows, pages, rules, ranges) = (count()?, count()?, count()?, count()?);
    let stats = stats_from(&mut rest)?;
    let rows = rest.split_off(..rows.checked_mul(4)?)?.as_chunks().0;
    let pages = rest.split_off(..pages.checked_mul(8)?)?.as_chunks().0;
    let rules = rest.split_off(..rules.checked_mul(8)?)?.as_chunks().0;
    let ranges = rest.split_off(..ranges.checked_mul(12)?)?.as_chunks().0;
    let digest = take(&mut rest)?;
    if !rest.is_empty() {
        return None;
    }
    let row =
        |&[a, b, c, d]: &[u8; 4]| UnwindRow { pc_low: u16::from_le_bytes([a, b]), rule: u16::from_le_bytes([c, d]) };
    let page = |&[a, b, c, d, e, f, g, h]: &[u8; 8]| PageRows {
        first: u32::from_le_bytes([a, b, c, d]),
        end: u32::from_le_bytes([e, f, g, h]),
    };
    let range = |&[a, b, c, d, e, f, g, h, i, j, k, l]: &[u8; 12]| {
        (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u32::from_le_bytes([i, j, k, l]))
    };
    let table = Table {
        base,
        rows: rows.iter().map(row).collect(),
        pages: pages.iter().map(page).collect(),
        rules: rules.iter().map(|&bytes| Rule::from_bytes(bytes)).collect::<Option<_>>()?,
        stats,
        samples: Samples { ranges: ranges.iter().map(range).collect(), digest },
    };
    table.is_consistent().then_some(table)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

const UNSUPPORTED: usize = Unsupported::ALL.len();

fn numbers_of(stats: &BuildStats) -> impl Iterator<Item = u64> + '_ {
    let plain = [
        stats.code_bytes,
        stats.covered_bytes,
        stats.functions,
        stats.functions_empty,
        stats.functions_outside_code,
        stats.functions_malformed,
        stats.functions_overlapping,
        stats.rows_read,
        stats.bytes_read,
        u64::from(stats.truncated),
        u64::from(stats.fills_gaps),
    ];
    plain.into_iter().chain(stats.unsupported.iter().flat_map(|tally| [tally.rows, tally.bytes]))
}

fn stats_from(bytes: &mut &[u8]) -> Option<BuildStats> {
    let mut next = || Some(u64::from_le_bytes(take(bytes)?));
    let mut stats = BuildStats {
        code_bytes: next()?,
        covered_bytes: next()?,
        functions: next()?,
        functions_empty: next()?,
        functions_outside_code: next()?,
        functions_malformed: next()?,
        functions_overlapping: next()?,
        rows_read: next()?,
        bytes_read: next()?,
        truncated: next()? != 0,
        fills_gaps: next()? != 0,
        unsupported: [Tally::default(); UNSUPPORTED],
    };
    for tally in &mut stats.unsupported {
        *tally = Tally { rows: next()?, bytes: next()? };
    }
    Some(stats)
}
