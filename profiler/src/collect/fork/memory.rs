//! Memory of a copy of a process, read when it is asked for. What a thread has read last it keeps, so that neighbouring words cost
//! one call to the kernel.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::address::TargetAddr;
use crate::collect::{ProcessCopy, Span};
use crate::ids::Pid;
use crate::linux::process_memory;
use crate::memory::Memory;

/// Bytes that are read at once for a small question.
const PIECE_BYTES: u64 = 16 << 10;

/// How many pieces each thread keeps: 8 MiB.
const PIECES: usize = 512;

thread_local! {
    static PIECES_READ: RefCell<Vec<Option<Piece>>> = const { RefCell::new(Vec::new()) };
}

/// A part of a copy's memory, as far as there is something without a gap.
struct Piece {
    /// Of which copy, and where.
    key: (u64, u64),
    bytes: Vec<u8>,
}

/// See the module. The copy ends with it.
#[derive(Debug)]
pub(crate) struct ForkMemory {
    copy: Box<dyn ProcessCopy>,
    /// Identifies the copy in this process.
    id: u64,
    /// What is there, by rising address; neighbours are joined.
    spans: Vec<Range<u64>>,
}

impl ForkMemory {
    /// Of a copy in which these parts exist, by rising address and without overlaps. Memory that the process shares with others
    /// is read as it is when it is asked for.
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

    /// The process that is read.
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
            // The kernel copies no more than 2 GiB at once.
            match process_memory::read(self.pid(), &[range], rest) {
                Ok(count) if count > 0 => done += count,
                _ => match process_memory::read_closed(self.pid(), range.0, rest) {
                    Ok(count) if count > 0 => done += count,
                    _ => break,
                },
            }
        }
        done
    }

    /// From a piece that this thread keeps, or reads now: as many bytes of it as the buffer takes. `span` is what is there.
    fn read_kept(&self, address: u64, span: &Range<u64>, buffer: &mut [u8]) -> usize {
        let first = (address - address % PIECE_BYTES).max(span.start);
        let end = (address - address % PIECE_BYTES).saturating_add(PIECE_BYTES).min(span.end);
        let key = (self.id, first);
        let slot = usize::try_from(address / PIECE_BYTES).unwrap_or(0) % PIECES;
        PIECES_READ.with(|pieces| {
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
            let count = self.read_kept(address.0 + done as u64, span, &mut buffer[done..]);
            if count == 0 {
                // A page of it cannot be read; others of the piece may.
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
