//! Blocks: the units in which a recording is written and checked.
//!
//! ```text
//! file     magic 8 · major 2 · minor 2 · crc32 of these 4      then blocks
//! block    kind 2 · flags 2 · stored bytes 4 · raw bytes 4 · crc32 of these and of the stored bytes 4      then the stored bytes
//! ```
//!
//! Numbers are little endian; stored bytes are compressed with zstd. Both lengths are bounded, whatever a file
//! contains.

use std::io::{self, Read};

use thiserror::Error;

/// Start of every recording. The first byte is not text, so that the file is not taken for a text file.
pub(crate) const MAGIC: [u8; 8] = *b"\x89HEAPBPF";
/// Readers refuse other major versions.
pub(crate) const VERSION_MAJOR: u16 = 2;
/// Incremented for additions that a reader may skip.
pub(crate) const VERSION_MINOR: u16 = 0;

pub const FILE_HEADER_BYTES: usize = 16;
pub(crate) const BLOCK_HEADER_BYTES: usize = 16;
/// Maximum size of a block's contents, before and after compression.
pub(crate) const BLOCK_BYTES_MAX: usize = 16 << 20;

/// Compresses about 500 MB/s; higher levels gain little on packed entries.
const COMPRESSION_LEVEL: i32 = 1;

/// Flag: the next block continues this one.
const GOES_ON: u16 = 1;

/// Contents of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Entries,
    /// A part of the state that replaces older blocks.
    Fold,
    /// Symbolized locations.
    Names,
    End,
    /// How the locations were symbolized.
    Symbolization,
    /// Added by a later version.
    Unknown(u16),
}

impl Kind {
    const fn to_wire(self) -> u16 {
        match self {
            Self::Entries => 1,
            Self::Fold => 2,
            Self::Names => 3,
            Self::End => 4,
            Self::Symbolization => 5,
            Self::Unknown(kind) => kind,
        }
    }

    const fn from_wire(kind: u16) -> Self {
        match kind {
            1 => Self::Entries,
            2 => Self::Fold,
            3 => Self::Names,
            4 => Self::End,
            5 => Self::Symbolization,
            kind => Self::Unknown(kind),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub kind: Kind,
    /// The next block continues this one.
    pub goes_on: bool,
    /// Decompressed contents.
    pub bytes: Vec<u8>,
    /// Size in the file, with the header.
    pub stored_bytes: u64,
}

#[derive(Debug, Error)]
pub enum BlockError {
    #[error("the file ends within a block")]
    Cut,
    #[error("checksum mismatch in a block")]
    Checksum,
    #[error("a block exceeds the limit of {} MiB", BLOCK_BYTES_MAX >> 20)]
    Large,
    #[error("a block cannot be decompressed")]
    Compression,
    #[error("cannot read the file: {0}")]
    Io(#[from] io::Error),
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum HeaderError {
    #[error("not a heapbpf recording, or its header is damaged")]
    Foreign,
    #[error(
        "unsupported recording format {major}.{minor}: this heapbpf reads format {VERSION_MAJOR}; use the heapbpf version that wrote it"
    )]
    Version { major: u16, minor: u16 },
}

pub fn file_header() -> [u8; FILE_HEADER_BYTES] {
    header_of(VERSION_MAJOR, VERSION_MINOR)
}

fn header_of(major: u16, minor: u16) -> [u8; FILE_HEADER_BYTES] {
    let mut header = [0; FILE_HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&major.to_le_bytes());
    header[10..12].copy_from_slice(&minor.to_le_bytes());
    let checksum = crc32fast::hash(&header[..12]);
    header[12..].copy_from_slice(&checksum.to_le_bytes());
    header
}

pub(crate) fn check_header(header: &[u8]) -> Result<(), HeaderError> {
    let number = |at: usize| header.get(at..).and_then(<[u8]>::first_chunk).copied().map(u16::from_le_bytes);
    let (Some(major), Some(minor)) = (number(8), number(10)) else { return Err(HeaderError::Foreign) };
    if header != header_of(major, minor) {
        return Err(HeaderError::Foreign);
    }
    if major == VERSION_MAJOR { Ok(()) } else { Err(HeaderError::Version { major, minor }) }
}

/// Compresses blocks.
pub struct BlockWriter(zstd::bulk::Compressor<'static>);

impl std::fmt::Debug for BlockWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BlockWriter")
    }
}

impl BlockWriter {
    pub fn new() -> io::Result<Self> {
        zstd::bulk::Compressor::new(COMPRESSION_LEVEL).map(Self)
    }

    /// Returns a whole block, to be written with one call. Fails if it exceeds [`BLOCK_BYTES_MAX`].
    pub fn block(&mut self, kind: Kind, goes_on: bool, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let stored = self.0.compress(bytes)?;
        let large = || io::Error::new(io::ErrorKind::InvalidInput, BlockError::Large.to_string());
        let length =
            |bytes: &[u8]| u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= BLOCK_BYTES_MAX).ok_or_else(large);
        let mut block = Vec::with_capacity(BLOCK_HEADER_BYTES + stored.len());
        block.extend(kind.to_wire().to_le_bytes());
        block.extend((if goes_on { GOES_ON } else { 0 }).to_le_bytes());
        block.extend(length(&stored)?.to_le_bytes());
        block.extend(length(bytes)?.to_le_bytes());
        let checksum = checksum(&block, &stored);
        block.extend(checksum.to_le_bytes());
        block.extend(stored);
        Ok(block)
    }
}

fn checksum(before: &[u8], behind: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(before);
    hasher.update(behind);
    hasher.finalize()
}

/// Reads the next block; `None` at the end of the file. Blocks of unknown kinds are not decompressed.
pub fn read_block(file: &mut impl Read) -> Result<Option<Block>, BlockError> {
    let mut header = [0; BLOCK_HEADER_BYTES];
    match fill(file, &mut header)? {
        0 => return Ok(None),
        BLOCK_HEADER_BYTES => {}
        _ => return Err(BlockError::Cut),
    }
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let length =
        |at: usize| usize::try_from(word(at)).ok().filter(|&length| length <= BLOCK_BYTES_MAX).ok_or(BlockError::Large);
    let (stored_bytes, raw_bytes) = (length(4)?, length(8)?);
    let mut stored = Vec::new();
    // Grows with what is read, not with the length in the header.
    file.take(stored_bytes as u64).read_to_end(&mut stored)?;
    if stored.len() < stored_bytes {
        return Err(BlockError::Cut);
    }
    if checksum(&header[..12], &stored) != word(12) {
        return Err(BlockError::Checksum);
    }
    let kind = Kind::from_wire(half(0));
    let bytes = match kind {
        Kind::Unknown(_) => Vec::new(),
        _ => unpack(&stored, raw_bytes)?,
    };
    let goes_on = half(2) & GOES_ON != 0;
    Ok(Some(Block { kind, goes_on, bytes, stored_bytes: (BLOCK_HEADER_BYTES + stored_bytes) as u64 }))
}

fn unpack(stored: &[u8], raw_bytes: usize) -> Result<Vec<u8>, BlockError> {
    let bytes = zstd::bulk::decompress(stored, raw_bytes).map_err(|_| BlockError::Compression)?;
    if bytes.len() == raw_bytes { Ok(bytes) } else { Err(BlockError::Compression) }
}

/// Reads until the buffer is full or the file ends, and returns the number of bytes.
fn fill(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
