//! Sections with debug information of a file, decompressed: as ELF compresses sections (zlib and zstd), and as older tools do
//! (`.zdebug_info`).
//!
//! <https://gabi.xinuos.com/elf/03-sheader.html#compressed-sections>

use std::io::Read;
use std::ops::Range;

use addr2line::gimli::SectionId;
use flate2::read::ZlibDecoder;
use heapbpf_linux::file_map::FileMap;
use object::LittleEndian as LE;
use object::elf::{CompressionHeader64, ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD, SHF_COMPRESSED, SHT_NOBITS};
use object::pod::from_bytes;

use super::Defect;
use super::partial_units::without_lines;
use crate::object::elf::{Elf, Section};
use crate::object::image::Image;

/// Limit for all decompressed sections of a file together.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;

/// The sections that names and lines are read from, of modules.
const WANTED: [SectionId; 11] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugTypes,
];

/// Those of files for split debug information. Not all are read, but an index has places in them.
const WANTED_SPLIT: [SectionId; 12] = [
    SectionId::DebugAbbrev,
    SectionId::DebugCuIndex,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
    SectionId::DebugMacro,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugTuIndex,
    SectionId::DebugTypes,
];

#[derive(Debug)]
pub(super) struct Sections {
    map: FileMap,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    id: SectionId,
    is_split: bool,
    contents: Contents,
}

#[derive(Debug)]
enum Contents {
    Mapped(Range<usize>),
    Unpacked(Vec<u8>),
}

impl Sections {
    /// Fails if a section is malformed or exceeds the limit, so that others would be misread.
    pub(super) fn read(image: &Image, elf: &Elf) -> Result<Self, Defect> {
        let map = FileMap::of(image.file()).map_err(|_| Defect::Malformed)?;
        let mut left = UNPACKED_BYTES_MAX;
        let mut parts = Vec::new();
        let own = WANTED.into_iter().map(|id| (id, false, Some(id.name())));
        let split = WANTED_SPLIT.into_iter().map(|id| (id, true, id.dwo_name()));
        for (id, is_split, name) in own.chain(split) {
            let Some(name) = name else { continue };
            if let Some(contents) = read(&map, elf, name, &mut left)? {
                parts.push(Part { id, is_split, contents });
            }
        }
        let mut sections = Self { map, parts };
        if let Some(changed) = without_lines(sections.get(SectionId::DebugAbbrev, false)) {
            let is_it = |part: &&mut Part| part.id == SectionId::DebugAbbrev && !part.is_split;
            sections
                .parts
                .iter_mut()
                .filter(is_it)
                .for_each(|part| part.contents = Contents::Unpacked(changed.clone()));
        }
        Ok(sections)
    }

    /// Whether it describes units.
    pub(super) fn has_units(&self) -> bool {
        !self.get(SectionId::DebugInfo, false).is_empty()
    }

    /// A section of the file, or one for split debug information (`.debug_info.dwo`); empty if there is none.
    pub(super) fn get(&self, id: SectionId, is_split: bool) -> &[u8] {
        let found = self.parts.iter().find(|part| part.id == id && part.is_split == is_split);
        match found.map(|part| &part.contents) {
            Some(Contents::Mapped(range)) => self.map.get(range.clone()).unwrap_or_default(),
            Some(Contents::Unpacked(bytes)) => bytes,
            None => &[],
        }
    }
}

fn read(map: &FileMap, elf: &Elf, name: &str, left: &mut u64) -> Result<Option<Contents>, Defect> {
    let of_name = |name: &str| elf.section(name).filter(|section| section.kind != SHT_NOBITS);
    if let Some(section) = of_name(name) {
        let range = range(map, section)?;
        if section.flags & u64::from(SHF_COMPRESSED) == 0 {
            return Ok(Some(Contents::Mapped(range)));
        }
        let (header, packed) = from_bytes::<CompressionHeader64<LE>>(&map[range]).map_err(|()| Defect::Compressed)?;
        let unpacked = unpack(header.ch_type.get(LE), packed, header.ch_size.get(LE), left)?;
        return Ok(Some(Contents::Unpacked(unpacked)));
    }
    let Some(section) = of_name(&name.replacen(".debug_", ".zdebug_", 1)) else { return Ok(None) };
    let bytes = &map[range(map, section)?];
    let (size, packed) =
        bytes.strip_prefix(b"ZLIB").and_then(|rest| rest.split_first_chunk()).ok_or(Defect::Compressed)?;
    unpack(ELFCOMPRESS_ZLIB, packed, u64::from_be_bytes(*size), left).map(Contents::Unpacked).map(Some)
}

fn range(map: &FileMap, section: &Section) -> Result<Range<usize>, Defect> {
    let start = usize::try_from(section.offset.0).map_err(|_| Defect::Malformed)?;
    let size = usize::try_from(section.size_bytes).map_err(|_| Defect::Malformed)?;
    let end = start.checked_add(size).filter(|&end| end <= map.len()).ok_or(Defect::Malformed)?;
    Ok(start..end)
}

/// Fails if the size is not the claimed one, which a target may have forged.
fn unpack(kind: u32, packed: &[u8], claimed: u64, left: &mut u64) -> Result<Vec<u8>, Defect> {
    *left = left.checked_sub(claimed).ok_or(Defect::Compressed)?;
    let reader: Box<dyn Read + '_> = match kind {
        ELFCOMPRESS_ZLIB => Box::new(ZlibDecoder::new(packed)),
        ELFCOMPRESS_ZSTD => Box::new(zstd::Decoder::with_buffer(packed).map_err(|_| Defect::Compressed)?),
        _ => return Err(Defect::UnknownCompression),
    };
    let mut unpacked = Vec::new();
    let count = reader.take(claimed.saturating_add(1)).read_to_end(&mut unpacked).map_err(|_| Defect::Compressed)?;
    if count as u64 == claimed { Ok(unpacked) } else { Err(Defect::Compressed) }
}
