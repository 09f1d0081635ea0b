//! Blocks: what a recording is written and checked in.
//!
//! ```text
//! file     magic 8 · major 2 · minor 2 · crc32 of these 4      then blocks
//! block    kind 2 · flags 2 · stored bytes 4 · raw bytes 4 · crc32 of these and of what is stored 4      then what is stored
//! ```
//!
//! Numbers are little endian; what is stored is zstd's. The length of either is bounded, whatever a file says.

use std::io::{self, Read};

use thiserror::Error;

/// How every recording begins. The first byte is no text, so that nothing takes it for some.
pub(crate) const MAGIC: [u8; 8] = *b"\x89HEAPBPF";
/// A reader refuses another one.
pub(crate) const VERSION_MAJOR: u16 = 2;
/// Raised when something was added that a reader may pass over.
pub(crate) const VERSION_MINOR: u16 = 0;

/// Bytes before the first block.
pub const FILE_HEADER_BYTES: usize = 16;
/// Bytes before what a block stores.
pub(crate) const BLOCK_HEADER_BYTES: usize = 16;
/// The most that a block holds, before and after it was compressed.
pub(crate) const BLOCK_BYTES_MAX: usize = 16 << 20;

/// Compresses at some 500 MB/s; the next levels gain little on what is packed already.
const COMPRESSION_LEVEL: i32 = 1;

/// The next block goes on where this one stops.
const GOES_ON: u16 = 1;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Events, steps and facts.
    Entries,
    /// A part of the state that older blocks led to.
    Fold,
    /// Names of places.
    Names,
    /// The end.
    End,
    /// How the places were named.
    Symbolization,
    /// Something of a later version.
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

/// A block that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What it holds.
    pub kind: Kind,
    /// The next block goes on where this one stops.
    pub goes_on: bool,
    /// What it holds, as it was before it was compressed.
    pub bytes: Vec<u8>,
    /// What it takes in the file.
    pub stored_bytes: u64,
}

/// Why there is no block to be read where one should be.
#[derive(Debug, Error)]
pub enum BlockError {
    /// The file ends within it.
    #[error("the file ends within a block")]
    Cut,
    /// The checksum is of other bytes.
    #[error("checksum")]
    Checksum,
    /// It is larger than blocks are.
    #[error("a block is larger than any is")]
    Large,
    /// What was compressed cannot be had back.
    #[error("what was compressed cannot be had back")]
    Compression,
    /// It cannot be read.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
}

/// Why a file is not read as a recording.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum HeaderError {
    /// It begins in another way.
    #[error("it is no recording of heapbpf's, or its first bytes are damaged")]
    Foreign,
    /// It is of a version that this one does not read.
    #[error(
        "it is of format {major}.{minor}, and this heapbpf reads format {VERSION_MAJOR}; use a heapbpf of the version that wrote it"
    )]
    Version {
        /// Its major version.
        major: u16,
        /// Its minor version.
        minor: u16,
    },
}

/// The bytes before the first block.
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

/// Looks at the bytes before the first block.
///
/// # Errors
///
/// If what follows cannot be understood.
pub(crate) fn check_header(header: &[u8]) -> Result<(), HeaderError> {
    let number = |at: usize| header.get(at..).and_then(<[u8]>::first_chunk).copied().map(u16::from_le_bytes);
    let (Some(major), Some(minor)) = (number(8), number(10)) else { return Err(HeaderError::Foreign) };
    if header != header_of(major, minor) {
        return Err(HeaderError::Foreign);
    }
    if major == VERSION_MAJOR { Ok(()) } else { Err(HeaderError::Version { major, minor }) }
}

/// Makes blocks. Holds what compressing takes.
pub struct BlockWriter(zstd::bulk::Compressor<'static>);

impl std::fmt::Debug for BlockWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BlockWriter")
    }
}

impl BlockWriter {
    /// # Errors
    ///
    /// If there is no memory.
    pub fn new() -> io::Result<Self> {
        zstd::bulk::Compressor::new(COMPRESSION_LEVEL).map(Self)
    }

    /// A whole block, to be written with one call.
    ///
    /// # Errors
    ///
    /// If there is no memory, or these are more bytes than a block may have.
    pub fn block(&mut self, kind: Kind, goes_on: bool, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let stored = self.0.compress(bytes)?;
        let large = || io::Error::new(io::ErrorKind::InvalidInput, "a block is too large");
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

/// Of all that comes before the checksum, and of what comes behind it.
fn checksum(before: &[u8], behind: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(before);
    hasher.update(behind);
    hasher.finalize()
}

/// Reads the next block; `None` where the file ends instead. Blocks of unknown kinds are not unpacked.
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
    // Grows with what is there, not with what is promised.
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

/// Reads until the buffer is full or the file ends. Returns how much was read.
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
