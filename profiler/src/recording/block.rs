//! Blocks: the units in which a recording is written and checked.
//!
//! ```text
//! file     magic 8 · major 2 · minor 2 · crc32 of these 4      then blocks
//! block    kind 2 · flags 2 · stored bytes 4 · raw bytes 4 · crc32 of these and of the stored bytes 4      then the stored bytes
//! ```
//!
//! Numbers are little endian; stored bytes are compressed with zstd. Both lengths are bounded, whatever a file contains.

use std::io::{self, Read};

use thiserror::Error;

/// Start of every recording. The first byte is not text, so that the file is not taken for a text file.
pub(crate) const MAGIC: [u8; 8] = *b"\x89HEAPBPF";
pub(crate) const VERSION_MAJOR: u16 = 2;
/// Minor version, which is incremented for additions that a reader may skip.
pub(crate) const VERSION_MINOR: u16 = 6;

pub const FILE_HEADER_BYTES: usize = 16;
pub(crate) const BLOCK_HEADER_BYTES: usize = 16;
/// Maximum size of a block's contents, before and after compression.
pub(crate) const BLOCK_BYTES_MAX: usize = 16 << 20;
/// Level of zstd. This one compresses about 500 MB/s; higher levels gain little on packed entries.
const COMPRESSION_LEVEL: i32 = 1;
/// Flag of a block that the next block continues.
const GOES_ON: u16 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(pub u16);

impl Kind {
    pub const ENTRIES: Self = Self(1);
    /// Part of the state that replaces older blocks.
    pub const FOLD: Self = Self(2);
    pub const NAMES: Self = Self(3);
    pub const END: Self = Self(4);
    pub const SYMBOLIZATION: Self = Self(5);
    /// Starts of functions that have no names.
    pub const FUNCTION_STARTS: Self = Self(6);

    fn is_known(self) -> bool {
        (Self::ENTRIES.0..=Self::FUNCTION_STARTS.0).contains(&self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub kind: Kind,
    pub goes_on: bool,
    pub bytes: Vec<u8>,
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

pub struct BlockWriter(zstd::bulk::Compressor<'static>);

impl BlockWriter {
    pub fn new() -> io::Result<Self> {
        zstd::bulk::Compressor::new(COMPRESSION_LEVEL).map(Self)
    }

    pub fn block(&mut self, kind: Kind, goes_on: bool, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let stored = self.0.compress(bytes)?;
        let large = || io::Error::new(io::ErrorKind::InvalidInput, BlockError::Large.to_string());
        let length =
            |bytes: &[u8]| u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= BLOCK_BYTES_MAX).ok_or_else(large);
        let mut block = Vec::with_capacity(BLOCK_HEADER_BYTES + stored.len());
        block.extend(kind.0.to_le_bytes());
        block.extend((if goes_on { GOES_ON } else { 0 }).to_le_bytes());
        block.extend(length(&stored)?.to_le_bytes());
        block.extend(length(bytes)?.to_le_bytes());
        let checksum = checksum(&block, &stored);
        block.extend(checksum.to_le_bytes());
        block.extend(stored);
        Ok(block)
    }
}

fn checksum(header: &[u8], stored: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header);
    hasher.update(stored);
    hasher.finalize()
}

/// Reads the next block; `None` at the end of the file. Blocks of unknown kinds are not decompressed.
pub fn read_block(file: &mut impl Read) -> Result<Option<Block>, BlockError> {
    let header = read_up_to(file, BLOCK_HEADER_BYTES)?;
    if header.is_empty() {
        return Ok(None);
    }
    let header = <[u8; BLOCK_HEADER_BYTES]>::try_from(header).map_err(|_| BlockError::Cut)?;
    let half = |index: usize| u16::from_le_bytes(header.as_chunks().0[index]);
    let word = |index: usize| u32::from_le_bytes(header.as_chunks().0[index]);
    let length = |index: usize| {
        usize::try_from(word(index)).ok().filter(|&length| length <= BLOCK_BYTES_MAX).ok_or(BlockError::Large)
    };
    let (kind, goes_on, stored_bytes, raw_bytes) = (Kind(half(0)), half(1) & GOES_ON != 0, length(1)?, length(2)?);
    let stored = read_up_to(file, stored_bytes)?;
    if stored.len() < stored_bytes {
        return Err(BlockError::Cut);
    }
    if checksum(&header[..12], &stored) != word(3) {
        return Err(BlockError::Checksum);
    }
    let mut bytes = Vec::new();
    if kind.is_known() {
        bytes = zstd::bulk::decompress(&stored, raw_bytes).map_err(|_| BlockError::Compression)?;
        if bytes.len() != raw_bytes {
            return Err(BlockError::Compression);
        }
    }
    Ok(Some(Block { kind, goes_on, bytes, stored_bytes: (BLOCK_HEADER_BYTES + stored_bytes) as u64 }))
}

/// Reads this many bytes, or fewer if the file ends. The buffer grows with the bytes that are read: lengths in files may be
/// wrong.
pub(super) fn read_up_to(file: &mut impl Read, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(count as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}
