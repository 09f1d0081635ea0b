//! Recordings from inputs. Blocks of a recording are compressed and have checksums, which mutations break; so an input has the
//! contents of blocks, from which the file is built:
//!
//! ```text
//! options 1 · report 1 · from 2 · to 2 · then, until the end, blocks: head 1 · length 2 · bytes
//! ```

use heapbpf::internals::{BlockWriter, Kind, file_header};

use crate::bytes::Bytes;

/// Bits of the options: the rest is the file itself; the span has a start, an end; callsites are separated by thread.
pub const VERBATIM: u8 = 1;
pub const FROM: u8 = 2;
pub const TO: u8 = 4;
pub const BY_THREAD: u8 = 8;
/// Bits of a block's head besides its kind: the next block continues it; it is stored without compression.
pub const GOES_ON: u8 = 0x10;
pub const STORED: u8 = 0x20;
/// Decompressed size in the header of a stored block.
const CLAIMED_BYTES: u32 = 1 << 16;
/// Unit of the span.
const SPAN_UNIT_NS: u64 = 1_000_000;

/// A recording, and how to read it.
pub struct Input {
    pub file: Vec<u8>,
    pub from_ns: Option<u64>,
    pub to_ns: Option<u64>,
    pub by_thread: bool,
    /// Selects the report: see [`reports::write`](crate::reports::write).
    pub report: u8,
}

/// Builds the file of an input. Returns `None` if the options are incomplete.
pub fn input(input: &[u8]) -> Option<Input> {
    let mut bytes = Bytes(input);
    let (options, report, from, to) = (bytes.byte()?, bytes.byte()?, bytes.half()?, bytes.half()?);
    let time = |bit: u8, units: u16| (options & bit != 0).then(|| u64::from(units) * SPAN_UNIT_NS);
    let file = if options & VERBATIM != 0 { bytes.0.to_vec() } else { of_blocks(&mut bytes) };
    Some(Input { file, from_ns: time(FROM, from), to_ns: time(TO, to), by_thread: options & BY_THREAD != 0, report })
}

fn of_blocks(bytes: &mut Bytes<'_>) -> Vec<u8> {
    thread_local! {
        static WRITER: std::cell::RefCell<BlockWriter> = BlockWriter::new().expect("there is memory").into();
    }
    let mut file = file_header().to_vec();
    while let (Some(head), Some(length)) = (bytes.byte(), bytes.half()) {
        let content = bytes.slice(length.into());
        let goes_on = head & GOES_ON != 0;
        if head & STORED != 0 {
            file.extend(stored(head, goes_on, content));
            continue;
        }
        let kind = Kind(u16::from(head & 0xf));
        file.extend(WRITER.with_borrow_mut(|writer| writer.block(kind, goes_on, content)).expect("it is small enough"));
    }
    file
}

/// Returns a block whose content reaches the decompressor unchanged.
fn stored(head: u8, goes_on: bool, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("lengths have 16 bits");
    let mut block = Vec::with_capacity(16 + content.len());
    block.extend(u16::from(head & 0xf).to_le_bytes());
    block.extend(u16::from(goes_on).to_le_bytes());
    block.extend(length.to_le_bytes());
    block.extend(CLAIMED_BYTES.to_le_bytes());
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&block);
    checksum.update(content);
    block.extend(checksum.finalize().to_le_bytes());
    block.extend(content);
    block
}
