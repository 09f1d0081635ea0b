//! Memory of a copy of a process, read on demand. Each thread caches what it has read last, so that adjacent words cost
//! one system call.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::process::{ForkError, ProcessCopy};
use super::spans::Span;
use crate::address::TargetAddr;
use crate::ids::Pid;
use crate::linux::proc::ProcError;
use crate::linux::proc::maps::{Region, regions};
use crate::linux::process_memory;
use crate::memory::Memory;

/// Bytes read at once for a small request.
const PIECE_BYTES: u64 = 16 << 10;

/// Number of pieces in each thread's cache: 8 MiB.
const PIECES: usize = 512;

thread_local! {
    static CACHE: RefCell<Vec<Option<Piece>>> = const { RefCell::new(Vec::new()) };
}

/// A part of a copy's memory without gaps.
struct Piece {
    /// Copy and address.
    key: (u64, u64),
    bytes: Vec<u8>,
}

/// See the module. Dropping it ends the copy.
#[derive(Debug)]
pub(crate) struct ForkMemory {
    copy: Box<dyn ProcessCopy>,
    /// Unique in this process.
    id: u64,
    /// Existing memory, by rising address; adjacent ranges are joined.
    spans: Vec<Range<u64>>,
}

impl ForkMemory {
    /// `spans` is the existing memory, by rising address and without overlaps. Memory that the process shares with
    /// others is read as it is at the time of the read.
    pub(crate) fn new(copy: Box<dyn ProcessCopy>, spans: Vec<Span>) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let mut joined: Vec<Range<u64>> = Vec::with_capacity(spans.len());
        for span in spans.into_iter().filter(|span| span.start < span.end) {
            match joined.last_mut() {
                Some(last) if span.start.0 <= last.end => last.end = last.end.max(span.end.0),
                _ => joined.push(span.start.0..span.end.0),
            }
        }
        Self { copy, id: NEXT_ID.fetch_add(1, Ordering::Relaxed), spans: joined }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.copy.pid()
    }

    fn between(&self, start: u64, end: u64) -> impl Iterator<Item = &Range<u64>> {
        let first = self.spans.partition_point(|span| span.end <= start);
        self.spans[first..].iter().take_while(move |span| span.start < end)
    }

    fn read_directly(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            let range = (address.saturating_add(done as u64), rest.len());
            // The kernel copies at most 2 GiB per call.
            match process_memory::read(self.pid(), &[range], rest) {
                Ok(count) if count > 0 => done += count,
                _ => match process_memory::read_protected(self.pid(), range.0, rest) {
                    Ok(count) if count > 0 => done += count,
                    _ => break,
                },
            }
        }
        done
    }

    /// Reads from a cached piece, which is loaded if necessary. `span` is the existing memory around the address.
    fn read_cached(&self, address: u64, span: &Range<u64>, buffer: &mut [u8]) -> usize {
        let first = (address - address % PIECE_BYTES).max(span.start);
        let end = (address - address % PIECE_BYTES).saturating_add(PIECE_BYTES).min(span.end);
        let key = (self.id, first);
        let slot = usize::try_from(address / PIECE_BYTES).unwrap_or(0) % PIECES;
        CACHE.with(|pieces| {
            let mut pieces = pieces.borrow_mut();
            pieces.resize_with(PIECES, || None);
            let piece = pieces[slot].get_or_insert_with(|| Piece { key: (0, 0), bytes: Vec::new() });
            if piece.key != key {
                piece.bytes.resize(usize::try_from(end - first).unwrap_or(0), 0);
                let count = self.read_directly(first, &mut piece.bytes);
                piece.bytes.truncate(count);
                piece.key = key;
            }
            let skip = usize::try_from(address - first).unwrap_or(usize::MAX);
            let rest = piece.bytes.get(skip..).unwrap_or_default();
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            count
        })
    }
}

impl Memory for ForkMemory {
    fn present(&self, range: Range<TargetAddr>) -> Vec<Range<TargetAddr>> {
        let parts = self.between(range.start.0, range.end.0);
        parts.map(|part| TargetAddr(part.start.max(range.start.0))..TargetAddr(part.end.min(range.end.0))).collect()
    }

    fn read(&self, address: TargetAddr, buffer: &mut [u8]) -> usize {
        let Some(span) = self.between(address.0, address.0.saturating_add(1)).next() else { return 0 };
        let there = usize::try_from(span.end - address.0).unwrap_or(usize::MAX);
        let buffer_len = buffer.len().min(there);
        let buffer = &mut buffer[..buffer_len];
        if buffer.len() as u64 >= PIECE_BYTES {
            return self.read_directly(address.0, buffer);
        }
        let mut done = 0;
        while done < buffer.len() {
            let count = self.read_cached(address.0 + done as u64, span, &mut buffer[done..]);
            if count == 0 {
                // A page is unreadable; others of the piece may be readable.
                return done + self.read_directly(address.0 + done as u64, &mut buffer[done..]);
            }
            done += count;
        }
        done
    }

    fn is_there(&self) -> bool {
        !self.copy.has_ended()
    }

    fn slice(&self, _address: TargetAddr, _length: usize) -> Option<&[u8]> {
        None
    }
}

/// Private and readable mappings of a process that its copy lacks because the process requested it (`MADV_DONTFORK`,
/// `MADV_WIPEONFORK`); adjacent ones are joined. Call it when the process runs again: it takes as long as copying.
pub(super) fn left_out(copy: Pid, mapped: &[Region]) -> Result<Vec<Span>, ForkError> {
    let copied: BTreeSet<_> = regions(copy)?.into_iter().map(|region| (region.start, region.end)).collect();
    let wiped = wiped(copy)?;
    let mut left_out: Vec<Span> = Vec::new();
    for region in mapped.iter().filter(|region| region.readable && !region.shared) {
        if copied.contains(&(region.start, region.end)) && !wiped.contains(&region.start) {
            continue;
        }
        match left_out.last_mut() {
            Some(last) if last.end == region.start => last.end = region.end,
            _ => left_out.push(region.start..region.end),
        }
    }
    Ok(left_out)
}

/// Maximum number of inspected mappings.
const REGIONS_MAX: usize = 1 << 20;

/// Start addresses of the copy's mappings that are empty because of `MADV_WIPEONFORK`.
fn wiped(pid: Pid) -> Result<BTreeSet<TargetAddr>, ProcError> {
    let failed = |source| ProcError::Io { pid, entry: "smaps", source };
    let file = File::open(format!("/proc/{pid}/smaps")).map_err(failed)?;
    let (mut wiped, mut start, mut seen) = (BTreeSet::new(), None, 0);
    // File names may be invalid UTF-8.
    for line in BufReader::with_capacity(1 << 16, file).split(b'\n') {
        let line = line.map_err(failed)?;
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            if flags.split(|&byte| byte == b' ').any(|flag| flag == b"wf") {
                wiped.extend(start);
            }
        } else if let Some(found) = mapping_start(&line) {
            start = Some(TargetAddr(found));
            seen += 1;
            if seen > REGIONS_MAX {
                break;
            }
        }
    }
    Ok(wiped)
}

/// Returns the start address if a line of `smaps` begins a mapping; its other lines have no range.
pub(crate) fn mapping_start(line: &[u8]) -> Option<u64> {
    let dash = line.iter().take(17).position(|&byte| byte == b'-')?;
    u64::from_str_radix(std::str::from_utf8(&line[..dash]).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_distinguished_from_their_fields() {
        assert_eq!(mapping_start(b"7f00-8f00 rw-p 00000000 00:00 0 "), Some(0x7f00));
        assert_eq!(mapping_start(b"7ffd7f001000-7ffd7f005000 r-xp 00000000 00:00 0 [vdso]"), Some(0x7ffd_7f00_1000));
        assert_eq!(mapping_start(b"Rss:                   4 kB"), None);
        assert_eq!(mapping_start(b"VmFlags: rd wr mr mw me ac sd"), None);
    }
}
