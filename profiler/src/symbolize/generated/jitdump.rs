//! perf's jitdump: a header and records, each with its size and time; see jitdump-specification.txt of Linux's
//! tools/perf/Documentation. Only files of this machine's byte order are read.

use std::io::{BufRead, BufReader, Read, Seek};
use std::sync::Arc;

use heapbpf_base::shown;
use rustc_hash::FxHashMap;

use super::pieces::{Found, NAME_BYTES_MAX, Piece, Span, range};

const MAGIC: u32 = 0x4a69_5444;
const HEADER_BYTES: u32 = 40;
const RECORD_BYTES: u32 = 16;
/// Times are of the processor's counter, not of a clock.
const FLAG_OWN_TIME: u64 = 1;

const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
const CODE_DEBUG_INFO: u32 = 2;
const CODE_CLOSE: u32 = 3;

/// Number of records that describe pieces which are not loaded yet.
const PENDING_MAX: usize = 1 << 12;
/// Maximum number of lines of a piece.
const LINES_MAX: u64 = 1 << 16;
const PATH_BYTES_MAX: u64 = 1 << 12;
/// An entry with this path has that of the entry before.
const SAME_PATH: &[u8] = b"\xff";

/// Reads integers and texts, and counts bytes.
struct Fields<R> {
    reader: R,
    offset: u64,
}

impl<R: BufRead + Seek> Fields<R> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).ok()?;
        self.offset += N as u64;
        Some(bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_ne_bytes)
    }

    /// Without the terminating zero; `None` above a length.
    fn text(&mut self, bytes_max: u64) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        let count = self.reader.by_ref().take(bytes_max + 1).read_until(0, &mut text).ok()?;
        self.offset += count as u64;
        (text.pop() == Some(0)).then_some(text)
    }

    fn skip_to(&mut self, offset: u64) -> Option<()> {
        let by = i64::try_from(offset.checked_sub(self.offset)?).ok()?;
        self.reader.seek_relative(by).ok()?;
        self.offset = offset;
        Some(())
    }
}

impl<R: Read + Seek> Fields<BufReader<R>> {
    fn new(file: R, offset: u64) -> Self {
        Self { reader: BufReader::with_capacity(1 << 16, file), offset }
    }
}

/// Stops at the first record whose size is invalid: the next one cannot be found.
pub(super) fn parse(file: impl Read + Seek) -> Found {
    let mut dump = Dump::default();
    let mut fields = Fields::new(file, 0);
    let header = |fields: &mut Fields<_>| {
        let [magic, _version, size_bytes, _machine, _padding, _pid] = [(); 6].map(|()| fields.u32());
        let (_created, flags) = (fields.u64()?, fields.u64()?);
        let size_bytes = size_bytes.filter(|_| magic == Some(MAGIC))?;
        fields.skip_to(size_bytes.max(HEADER_BYTES).into())?;
        Some(flags)
    };
    let Some(flags) = header(&mut fields) else {
        dump.found.malformed = 1;
        return dump.found;
    };
    dump.has_time = flags & FLAG_OWN_TIME == 0;
    // A record at the end of the file is still being written.
    while let (Some(kind), Some(size_bytes), Some(time)) = (fields.u32(), fields.u32(), fields.u64()) {
        let payload = fields.offset;
        let Some(length) = size_bytes.checked_sub(RECORD_BYTES) else {
            dump.found.malformed += 1;
            break;
        };
        let end = payload + u64::from(length);
        let is_read = match kind {
            _ if length < fixed_bytes(kind) => None,
            CODE_LOAD => dump.load(&mut fields, time, end),
            CODE_MOVE => dump.relocate(&mut fields, time),
            CODE_DEBUG_INFO => dump.describe(&mut fields, length),
            CODE_CLOSE => break,
            _ => Some(()),
        };
        dump.found.malformed += u64::from(is_read.is_none());
        if dump.found.is_cut || fields.skip_to(end).is_none() {
            break;
        }
    }
    dump.found
}

/// Size of a record's fields other than texts and code.
fn fixed_bytes(kind: u32) -> u32 {
    match kind {
        CODE_LOAD => 40,
        CODE_MOVE => 48,
        CODE_DEBUG_INFO => 16,
        _ => 0,
    }
}

#[derive(Default)]
struct Dump {
    found: Found,
    has_time: bool,
    /// Records of lines, by address of the code that is loaded next.
    pending: FxHashMap<u64, Span>,
    /// The latest piece of each code index.
    loaded: FxHashMap<u64, usize>,
}

impl Dump {
    /// Records without a clock's time are in order, and count as written before any time.
    fn written(&self, time: u64) -> u64 {
        if self.has_time { time } else { self.found.pieces.len() as u64 }
    }

    fn load<R: BufRead + Seek>(&mut self, fields: &mut Fields<R>, time: u64, end: u64) -> Option<()> {
        let [_pid, _tid] = [fields.u32()?, fields.u32()?];
        let [_virtual, start, size_bytes, index] = [fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?];
        let offset = fields.offset;
        let name_bytes_max = end.checked_sub(offset)?.min(NAME_BYTES_MAX as u64);
        let length = u32::try_from(fields.text(name_bytes_max)?.len()).ok()?;
        let (start, end) = range(start, size_bytes)?;
        let lines = self.pending.remove(&start).map(|span| (span, start));
        self.add(Piece { start, end, written: self.written(time), name: Span { offset, length }, lines }, index);
        Some(())
    }

    fn relocate<R: BufRead + Seek>(&mut self, fields: &mut Fields<R>, time: u64) -> Option<()> {
        let [_pid, _tid] = [fields.u32()?, fields.u32()?];
        let [_virtual, _old] = [fields.u64()?, fields.u64()?];
        let [start, size_bytes, index] = [fields.u64()?, fields.u64()?, fields.u64()?];
        let (start, end) = range(start, size_bytes)?;
        let moved = *self.found.pieces.get(*self.loaded.get(&index)?)?;
        self.add(Piece { start, end, written: self.written(time), ..moved }, index);
        Some(())
    }

    fn describe<R: BufRead + Seek>(&mut self, fields: &mut Fields<R>, length: u32) -> Option<()> {
        let span = Span { offset: fields.offset, length };
        let address = fields.u64()?;
        if self.pending.len() < PENDING_MAX {
            self.pending.insert(address, span);
        }
        Some(())
    }

    fn add(&mut self, piece: Piece, index: u64) {
        // Some runtimes load code of no bytes.
        if piece.start < piece.end && self.found.add(piece) {
            self.loaded.insert(index, self.found.pieces.len() - 1);
        }
    }
}

/// Source file and line of an address, by a record of lines; `file` starts at that record.
pub(super) fn line(file: impl Read + Seek, record: Span, address: u64) -> Option<(Arc<str>, u32)> {
    let mut fields = Fields::new(file, record.offset);
    let end = record.offset + u64::from(record.length);
    let (_address, count) = (fields.u64()?, fields.u64()?);
    let mut path = Vec::new();
    // The entry with the highest address up to this one.
    let mut best: Option<(u64, u32, Vec<u8>)> = None;
    for _ in 0..count.min(LINES_MAX) {
        if fields.offset >= end {
            break;
        }
        let (at, line, _discriminator) = (fields.u64()?, fields.u32()?, fields.u32()?);
        let text = fields.text(PATH_BYTES_MAX)?;
        if text != SAME_PATH {
            path = text;
        }
        if at <= address && best.as_ref().is_none_or(|(known, ..)| *known <= at) {
            best = Some((at, line, path.clone()));
        }
    }
    let (_, line, path) = best.filter(|(_, line, path)| *line > 0 && !path.is_empty())?;
    Some((shown::text(&path).into(), line))
}
