//! Unwind sections, their addresses, and code ranges of an ELF file.

use gimli::{BaseAddresses, DebugFrame, EhFrame, EhFrameHdr, LittleEndian, Pointer};
use heapbpf_base::address::FileOffset;
use object::elf as abi;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::arch::{Bytes, Processor};
use crate::object::ObjectError;
use crate::object::elf::{Elf, Section};
use crate::object::golang::GoFunctions;
use crate::object::image::Image as File;
use crate::object::symbols;

/// The largest of 2,139 modules on one machine, rustc's, has 9.6 MB.
pub(crate) const SECTION_BYTES_MAX: u64 = 64 << 20;
/// Address range of a module's code. Bounds the table's pages.
pub(crate) const CODE_SPAN_MAX: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ImageError {
    #[error("not a 64-bit little-endian ELF file")]
    NotElf,
    #[error("not an executable or shared object for this processor")]
    OtherKind,
    #[error("ELF headers are malformed")]
    Malformed,
    #[error("no executable segment")]
    NoCode,
    #[error("code spans more than {CODE_SPAN_MAX} bytes of addresses")]
    TooWide,
}

/// Functions that do not return and receive the result of a thread's first function.
const EXITS: [&[u8]; 4] = [b"exit", b"pthread_exit", b"__pthread_exit", b"thrd_exit"];

/// The first function of greenlets, `greenlet::UserGreenlet::inner_bootstrap` of 2.0, and of 3.0 and later. All builds export it.
const GREENLETS: [&[u8]; 2] = [
    b"_ZN8greenlet12UserGreenlet15inner_bootstrapERNS_4refs14_OwnedGreenletI9_greenletXadL_ZNS1_15GreenletCheckerEPvEEEERNS1_14OwnedReferenceI7_objectXadL_ZNS1_11NoOpCheckerES4_EEEE",
    b"_ZN8greenlet12UserGreenlet15inner_bootstrapEP9_greenletP7_object",
];
/// Modules with larger tables are not that of greenlets, which has 300 to 650 symbols.
const GREENLETS_SYMBOLS_BYTES_MAX: u64 = 2048 * 24;

/// An executable segment, by link address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    pub start: u64,
    pub end: u64,
    pub file_offset: u64,
}

#[derive(Debug)]
pub struct Image<'a> {
    file: &'a File,
    pub(super) processor: Processor,
    /// Its address is in `bases`.
    pub eh_frame: Option<Vec<u8>>,
    /// `None` also if compressed.
    pub debug_frame: Option<Vec<u8>>,
    pub bases: BaseAddresses,
    /// Executable segments by address, without overlap.
    pub code: Vec<Code>,
    /// Entry point of the process or the loader, if in code.
    pub entry: Option<u64>,
    /// Link addresses of functions that end a thread or the process; of C libraries and static executables.
    pub exits: Vec<u64>,
    /// Link addresses of functions that are the first ones of greenlets.
    pub greenlets: Vec<u64>,
}

impl<'a> Image<'a> {
    /// Missing or malformed unwind sections are no error: they are `None`.
    pub fn parse(file: &'a File) -> Result<Self, ImageError> {
        Self::parse_for(file, Processor::NATIVE)
    }

    /// As [`parse`](Self::parse), for another processor.
    pub(super) fn parse_for(file: &'a File, processor: Processor) -> Result<Self, ImageError> {
        let elf = Elf::read(file).map_err(|error| match error {
            ObjectError::NotElf | ObjectError::Is32Bit => ImageError::NotElf,
            _ => ImageError::Malformed,
        })?;
        if elf.machine != processor.elf_machine() || !matches!(elf.kind, abi::ET_EXEC | abi::ET_DYN) {
            return Err(ImageError::OtherKind);
        }
        let code = code_of(&elf)?;
        let entry = Some(elf.entry.0).filter(|&entry| code_at(&code, entry).is_some());
        // Only files that can be executed: a static executable, or musl's library, which is its loader.
        let exits = entry.map_or_else(Vec::new, |_| symbols::addresses(file, &elf, &EXITS));
        let greenlets = greenlets(file, &elf);
        let bases = BaseAddresses::default();
        let mut image =
            Self { file, processor, eh_frame: None, debug_frame: None, bases, code, entry, exits, greenlets };
        image.find_sections(&elf);
        if image.eh_frame.is_none() {
            image.find_by_segment(&elf);
        }
        Ok(image)
    }

    /// Empty without `.eh_frame`.
    pub(super) fn eh_frame(&self) -> EhFrame<Bytes<'_>> {
        let mut section = EhFrame::new(self.eh_frame.as_deref().unwrap_or_default(), LittleEndian);
        section.set_vendor(self.processor.vendor());
        section
    }

    pub(super) fn debug_frame(&self) -> DebugFrame<Bytes<'_>> {
        let mut section = DebugFrame::new(self.debug_frame.as_deref().unwrap_or_default(), LittleEndian);
        section.set_vendor(self.processor.vendor());
        section
    }

    pub fn code_bytes(&self) -> u64 {
        self.code.iter().map(|code| code.end - code.start).sum()
    }

    /// Of a Go program. Read on demand: they are many, and cached tables do not need them.
    pub(super) fn go_functions(&self) -> Option<GoFunctions> {
        GoFunctions::read(self.file, &Elf::read(self.file).ok()?)
    }

    pub(super) fn read_code(&self, address: u64, length: u32) -> Vec<u8> {
        let read = || {
            let code = code_at(&self.code, address)?;
            let length = u64::from(length).min(code.end - address);
            let offset = code.file_offset.checked_add(address - code.start)?;
            self.file.read(FileOffset(offset), length, length).ok()
        };
        read().unwrap_or_default()
    }

    fn find_sections(&mut self, elf: &Elf) {
        let bytes = |section: &Section| {
            let compressed = section.flags & u64::from(abi::SHF_COMPRESSED) != 0;
            if compressed || section.kind == abi::SHT_NOBITS {
                return None;
            }
            self.file.read(section.offset, section.size_bytes, SECTION_BYTES_MAX).ok().filter(|bytes| !bytes.is_empty())
        };
        for section in &elf.sections {
            let bases = self.bases.clone();
            self.bases = match &*section.name {
                ".eh_frame" if self.eh_frame.is_none() => {
                    self.eh_frame = bytes(section);
                    bases.set_eh_frame(section.address.0)
                }
                ".debug_frame" if self.debug_frame.is_none() => {
                    self.debug_frame = bytes(section);
                    bases
                }
                ".eh_frame_hdr" => bases.set_eh_frame_hdr(section.address.0),
                ".text" => bases.set_text(section.address.0),
                ".got" => bases.set_got(section.address.0),
                _ => bases,
            };
        }
    }

    /// Without section headers, a segment still locates the index of `.eh_frame`. The section is assumed to extend to
    /// the end of its segment; its own terminator ends it earlier.
    fn find_by_segment(&mut self, elf: &Elf) {
        let Some(index) = &elf.eh_frame_index else { return };
        let bases = BaseAddresses::default().set_eh_frame_hdr(index.address.0);
        let Ok(bytes) = self.file.read(index.offset, index.size_bytes.min(16), 16) else { return };
        let header = EhFrameHdr::new(&bytes, LittleEndian).parse(&bases, 8);
        let Ok(Pointer::Direct(address)) = header.map(|header| header.eh_frame_ptr()) else { return };
        let section = elf.segments.iter().find_map(|segment| {
            let skipped = address.checked_sub(segment.address.0)?;
            let length = segment.size_bytes.checked_sub(skipped)?.min(SECTION_BYTES_MAX);
            self.file.read(FileOffset(segment.offset.0.checked_add(skipped)?), length, SECTION_BYTES_MAX).ok()
        });
        self.eh_frame = section.filter(|bytes| !bytes.is_empty());
        self.bases = bases.set_eh_frame(address);
    }
}

fn greenlets(file: &File, elf: &Elf) -> Vec<u64> {
    let is_small = |section: &Section| section.size_bytes <= GREENLETS_SYMBOLS_BYTES_MAX;
    let is_candidate = !elf.is_static && elf.section(".dynsym").is_some_and(is_small);
    if is_candidate { symbols::addresses(file, elf, &GREENLETS) } else { Vec::new() }
}

fn code_of(elf: &Elf) -> Result<Vec<Code>, ImageError> {
    let segments = elf.code().filter(|segment| segment.size_bytes > 0);
    let code = segments.filter_map(|segment| {
        let start = segment.address.0;
        Some(Code { start, end: start.checked_add(segment.size_bytes)?, file_offset: segment.offset.0 })
    });
    let mut code: Vec<Code> = code.collect();
    code.sort_by_key(|code| code.start);
    let (Some(first), Some(last)) = (code.first(), code.iter().map(|code| code.end).max()) else {
        return Err(ImageError::NoCode);
    };
    if last - first.start > CODE_SPAN_MAX {
        return Err(ImageError::TooWide);
    }
    if code.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Err(ImageError::Malformed);
    }
    Ok(code)
}

pub(super) fn code_at(code: &[Code], address: u64) -> Option<&Code> {
    let index = code.partition_point(|code| code.start <= address).checked_sub(1)?;
    code.get(index).filter(|code| address < code.end)
}

/// Sampled code, to compare a cached table with the image.
#[derive(Clone, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Samples {
    /// Link addresses and lengths in bytes.
    pub(super) ranges: Vec<(u64, u32)>,
    /// SHA-256 of these bytes.
    pub(super) digest: [u8; 32],
}

impl Samples {
    pub(super) fn of(image: &Image<'_>, ranges: Vec<(u64, u32)>) -> Self {
        let mut hash = Sha256::new();
        for &(address, length) in &ranges {
            hash.update(image.read_code(address, length));
        }
        Self { ranges, digest: hash.finalize().into() }
    }

    pub(super) fn extend(&mut self, image: &Image<'_>, ranges: Vec<(u64, u32)>) {
        if !ranges.is_empty() {
            *self = Self::of(image, self.ranges.drain(..).chain(ranges).collect());
        }
    }

    pub fn matches(&self, image: &Image<'_>) -> bool {
        Self::of(image, self.ranges.clone()).digest == self.digest
    }
}
