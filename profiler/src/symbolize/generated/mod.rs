//! Names of generated code, from the files of just-in-time compilers: `perf_map` and `jitdump` read these into a [`CodeIndex`],
//! which is searched by address and time.

mod jitdump;
mod perf_map;
mod pieces;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use heapbpf_base::language::Language;
use heapbpf_base::shown;
use pieces::{Found, NAME_BYTES_MAX, Piece, Span};
use serde::{Deserialize, Serialize};

use super::demangle::demangle;
use super::names::ResolvedFrame;

/// Limits of a file that is read: what lies behind is ignored.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of pieces that are inspected for an address. Few overlap, unless a target has forged the file.
const INSPECTED_MAX: usize = 1 << 14;
/// A file that names generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Format {
    PerfMap,
    JitDump,
}

/// An address, and when it was executed. The latest names apply if the time is [`u64::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) address: u64,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub(super) time_ns: u64,
    /// Size of the perf map then, in bytes.
    pub(super) map_bytes: u64,
}

/// The pieces of a file, by address.
#[derive(Debug)]
pub(super) struct CodeIndex<F> {
    format: Format,
    file: F,
    /// By start, then by time of writing.
    pieces: Vec<Piece>,
    /// The largest end of each piece and those before.
    ends: Vec<u64>,
    /// Number of entries that could not be parsed.
    pub(super) malformed: u64,
    /// The file exceeds the limits.
    pub(super) is_cut: bool,
}

/// A file that is read at positions: several processes share the descriptor's own.
pub(super) trait ReadAt {
    fn size_bytes(&self) -> u64;
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;
}

impl ReadAt for File {
    fn size_bytes(&self) -> u64 {
        self.metadata().map_or(0, |metadata| metadata.len())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }
}

impl ReadAt for Vec<u8> {
    fn size_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// Reads in order up to an offset: a file may grow as fast as it is read.
struct Reader<'a, F> {
    file: &'a F,
    offset: u64,
    end: u64,
}

impl<F: ReadAt> Read for Reader<'_, F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let length = bytes.len().min(left);
        let count = self.file.read_at(self.offset, &mut bytes[..length])?;
        self.offset += count as u64;
        Ok(count)
    }
}

impl<F> Seek for Reader<'_, F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.offset = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.offset.checked_add_signed(by),
            SeekFrom::End(_) => None,
        }
        .ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.offset)
    }
}

impl<F: ReadAt> CodeIndex<F> {
    pub(super) fn read(format: Format, file: F) -> Self {
        let size_bytes = file.size_bytes();
        let reader = Reader { file: &file, offset: 0, end: size_bytes.min(FILE_BYTES_MAX) };
        let Found { mut pieces, malformed, mut is_cut } = match format {
            Format::PerfMap => perf_map::parse(reader),
            Format::JitDump => jitdump::parse(reader),
        };
        is_cut |= size_bytes > FILE_BYTES_MAX;
        pieces.sort_by_key(|piece| (piece.start, piece.written));
        let mut end = 0;
        let ends = pieces.iter().map(|piece| {
            end = piece.end.max(end);
            end
        });
        let ends = ends.collect();
        Self { format, file, pieces, ends, malformed, is_cut }
    }

    /// The functions at an address, innermost first; none if unknown.
    pub(super) fn frames(&self, place: Place) -> Vec<ResolvedFrame> {
        let Some(piece) = self.find(place) else { return Vec::new() };
        let Some(name) = self.text(piece.name).filter(|name| !name.is_empty()) else { return Vec::new() };
        // V8 gives the lines of inlined functions the file of the outer one, so the line of the function is better.
        let (function, place): (Arc<str>, _) = match Language::generated_name(&name) {
            Some(name) => (name.function.into(), name.place.map(|(file, line)| (file.into(), line))),
            None => (demangle(&name).into(), self.line(piece, place.address)),
        };
        let (file, line) = place.unzip();
        vec![ResolvedFrame { function: Some(function), file, line, inlined: false, start: None }]
    }

    /// The piece that was there at the time: of those written by then the last one, else the first one after that, because
    /// compilers write with a delay.
    fn find(&self, place: Place) -> Option<&Piece> {
        let now = match self.format {
            Format::PerfMap => place.map_bytes,
            Format::JitDump => place.time_ns,
        };
        let behind = self.pieces.partition_point(|piece| piece.start <= place.address);
        let candidates = self.pieces[..behind].iter().zip(&self.ends).rev().take(INSPECTED_MAX);
        let candidates = candidates.take_while(|(_, end)| **end > place.address);
        let covering = candidates.map(|(piece, _)| piece).filter(|piece| piece.end > place.address);
        let rank = |piece: &&Piece| match piece.written <= now {
            true => (true, piece.written),
            false => (false, u64::MAX - piece.written),
        };
        covering.max_by_key(rank)
    }

    fn text(&self, span: Span) -> Option<String> {
        let mut bytes = vec![0; (span.length as usize).min(NAME_BYTES_MAX)];
        let count = self.file.read_at(span.offset, &mut bytes).ok()?;
        // Of a file that was truncated meanwhile, less is left.
        (count == bytes.len()).then(|| shown::text(&bytes).into_owned())
    }

    fn line(&self, piece: &Piece, address: u64) -> Option<(Arc<str>, u32)> {
        let (span, written_for) = piece.lines?;
        let offset = address.checked_sub(piece.start)?;
        let end = span.offset.checked_add(span.length.into())?;
        let reader = Reader { file: &self.file, offset: span.offset, end };
        jitdump::line(reader, span, written_for.checked_add(offset)?)
    }
}

/// Reads a file for the fuzz targets, and searches it.
pub(crate) fn exercise(is_dump: bool, bytes: &[u8], address: u64, time_ns: u64) {
    let format = if is_dump { Format::JitDump } else { Format::PerfMap };
    let index = CodeIndex::read(format, bytes.to_vec());
    assert!(index.pieces.iter().all(|piece| piece.start < piece.end), "a piece is empty");
    let known = index.pieces.iter().map(|piece| piece.start).take(64).collect::<Vec<_>>();
    for address in known.into_iter().chain([address]) {
        for frame in index.frames(Place { address, time_ns, map_bytes: time_ns }) {
            assert!(frame.function.is_some_and(|name| name.len() < 1 << 15), "a name is too long");
        }
    }
}

#[cfg(test)]
mod tests;
