//! Snapshots of a target's memory, and ranges of addresses.

use std::ops::Range;

use crate::address::TargetAddr;

pub type Span = Range<TargetAddr>;

pub const WORD_BYTES: u64 = 8;

/// Immutable snapshot of a target's memory. Has only pages that the target has touched.
pub trait Memory: Send + Sync {
    /// Returns the present parts of a range in ascending order, without overlaps; adjacent parts are joined.
    fn present(&self, range: Span) -> Vec<Span>;

    /// Copies bytes from `address` until the buffer is full or a byte is not present. Returns their number.
    fn read(&self, address: TargetAddr, buffer: &mut [u8]) -> usize;

    /// Returns the bytes at `address` if they are contiguous in the snapshot.
    fn slice(&self, address: TargetAddr, length: usize) -> Option<&[u8]>;

    /// Whether the snapshot can still be read. False if it is a process that was killed.
    fn is_there(&self) -> bool {
        true
    }

    fn word(&self, address: TargetAddr) -> Option<u64> {
        let mut bytes = [0; size_of::<u64>()];
        (self.read(address, &mut bytes) == bytes.len()).then(|| u64::from_le_bytes(bytes))
    }
}

/// Sorts and joins overlapping or adjacent spans; removes empty ones.
pub fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.retain(|span| span.start < span.end);
    spans.sort_by_key(|span| span.start);
    spans.dedup_by(|later, earlier| {
        let joins = later.start <= earlier.end;
        if joins {
            earlier.end = earlier.end.max(later.end);
        }
        joins
    });
    spans
}

/// The spans without the cuts. Both are by rising address and without overlaps.
pub fn without(spans: Vec<Span>, cuts: &[Span]) -> Vec<Span> {
    let mut rest = Vec::with_capacity(spans.len());
    let mut first = 0;
    for span in spans {
        first += cuts[first..].partition_point(|cut| cut.end <= span.start);
        let mut start = span.start;
        for cut in cuts[first..].iter().take_while(|cut| cut.start < span.end) {
            if start < cut.start {
                rest.push(start..cut.start);
            }
            start = start.max(cut.end);
        }
        if start < span.end {
            rest.push(start..span.end);
        }
    }
    rest
}

#[derive(Debug, Default)]
pub struct Copied {
    /// Pieces in ascending order, without overlaps; adjacent pieces are not joined.
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    start: u64,
    bytes: Box<[u8]>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes.len() as u64)
    }
}

impl Copied {
    /// Creates a snapshot. A piece that overlaps an earlier one is ignored.
    pub fn new(pieces: impl IntoIterator<Item = (TargetAddr, Box<[u8]>)>) -> Self {
        let pieces = pieces.into_iter().filter(|(_, bytes)| !bytes.is_empty());
        let mut pieces: Vec<Piece> = pieces.map(|(start, bytes)| Piece { start: start.0, bytes }).collect();
        pieces.sort_by_key(|piece| piece.start);
        let mut end = 0;
        pieces.retain(|piece| {
            let follows = piece.start >= end;
            end = if follows { piece.end() } else { end };
            follows
        });
        Self { pieces }
    }

    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes.len() as u64).sum()
    }

    fn between(&self, start: u64, end: u64) -> impl Iterator<Item = &Piece> {
        let first = self.pieces.partition_point(|piece| piece.end() <= start);
        self.pieces[first..].iter().take_while(move |piece| piece.start < end)
    }
}

impl Memory for Copied {
    fn present(&self, range: Span) -> Vec<Span> {
        let mut parts: Vec<Span> = Vec::new();
        for piece in self.between(range.start.0, range.end.0) {
            let part = TargetAddr(piece.start.max(range.start.0))..TargetAddr(piece.end().min(range.end.0));
            match parts.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => parts.push(part),
            }
        }
        parts
    }

    fn read(&self, address: TargetAddr, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        for piece in self.between(address.0, address.0.saturating_add(buffer.len() as u64)) {
            let Some(skip) = address.0.saturating_add(done as u64).checked_sub(piece.start) else { break };
            let rest = &piece.bytes[usize::try_from(skip).unwrap_or(usize::MAX).min(piece.bytes.len())..];
            let count = rest.len().min(buffer.len() - done);
            buffer[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
        }
        done
    }

    fn slice(&self, address: TargetAddr, length: usize) -> Option<&[u8]> {
        let piece = self.between(address.0, address.0.saturating_add(1)).next()?;
        let skip = usize::try_from(address.0.checked_sub(piece.start)?).ok()?;
        piece.bytes.get(skip..skip.checked_add(length)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_removed_from_spans() {
        let spans = |all: &[(u64, u64)]| -> Vec<Span> {
            all.iter().map(|&(start, end)| TargetAddr(start)..TargetAddr(end)).collect()
        };
        let check = |of: &[(u64, u64)], holes: &[(u64, u64)], expected: &[(u64, u64)]| {
            assert_eq!(without(joined(spans(of)), &joined(spans(holes))), spans(expected), "{of:?} without {holes:?}");
        };
        check(&[(10, 20), (20, 30), (40, 50)], &[], &[(10, 30), (40, 50)]);
        check(&[(40, 50), (10, 30)], &[(12, 14), (20, 22)], &[(10, 12), (14, 20), (22, 30), (40, 50)]);
        check(&[(10, 30), (40, 50)], &[(10, 12), (25, 45)], &[(12, 25), (45, 50)]);
        check(&[(10, 30), (40, 50)], &[(5, 60)], &[]);
        check(&[(10, 30), (40, 50)], &[(30, 40), (50, 60)], &[(10, 30), (40, 50)]);
    }

    fn adjacent_and_separate_pieces() -> Copied {
        let piece = |start, byte| (TargetAddr(start), vec![byte; 16].into_boxed_slice());
        Copied::new([piece(0x2000, 3), piece(0x1010, 2), piece(0x1000, 1), piece(0x1008, 9)])
    }

    #[test]
    fn adjacent_pieces_are_joined() {
        let memory = adjacent_and_separate_pieces();
        assert_eq!(memory.bytes(), 48);
        let addr = TargetAddr;
        assert_eq!(
            memory.present(addr(0x1004)..addr(0x2004)),
            [addr(0x1004)..addr(0x1020), addr(0x2000)..addr(0x2004)]
        );
        assert_eq!(memory.present(addr(0x1020)..addr(0x2000)), []);
        let mut buffer = [0; 24];
        assert_eq!(memory.read(addr(0x1008), &mut buffer), 24);
        assert_eq!(buffer[..8], [1; 8]);
        assert_eq!(buffer[8..], [2; 16]);
        assert_eq!(memory.read(addr(0x1018), &mut buffer), 8);
        assert_eq!(memory.read(addr(0x1020), &mut buffer), 0);
        assert_eq!(memory.word(addr(0x100c)), Some(0x0202_0202_0101_0101));
        assert_eq!(memory.word(addr(0x101c)), None);
        assert_eq!(memory.slice(addr(0x1008), 8), Some(&[1; 8][..]));
        assert_eq!(memory.slice(addr(0x1008), 9), None, "two pieces");
        assert_eq!(memory.slice(addr(0xfff), 1), None);
        assert_eq!(memory.read(addr(u64::MAX), &mut buffer), 0);
    }
}
