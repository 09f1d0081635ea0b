//! Unwind sections, their addresses, and code ranges of an ELF image.
//!
//! Reads headers within fixed limits and sections up to a maximum size; code only for samples.

use gimli::{BaseAddresses, EhFrameHdr, LittleEndian as GimliLittle, Pointer};
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{LittleEndian, ReadRef};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::arch;

/// Maximum unwind section, in bytes. The largest of 2,139 modules on one machine, rustc's, has 9.6 MB.
pub(crate) const SECTION_BYTES_MAX: u64 = 64 << 20;

/// Maximum table of section names, in bytes.
const NAMES_BYTES_MAX: u64 = 1 << 20;

/// Maximum address range of a module's code, in bytes. Bounds the table's pages.
pub(crate) const CODE_SPAN_MAX: u64 = 1 << 30;

/// Why an image has no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ImageError {
    /// The magic, class or byte order is wrong.
    #[error("not a 64-bit little-endian ELF file")]
    NotElf,
    /// For another CPU, or neither an executable nor a shared object.
    #[error("not an x86-64 executable or shared object")]
    OtherKind,
    /// The program headers are not in the file.
    #[error("ELF headers are malformed")]
    Malformed,
    #[error("no executable segment")]
    NoCode,
    /// Code spans more addresses than tables support.
    #[error("code spans more than {CODE_SPAN_MAX} bytes of addresses")]
    TooWide,
}

/// An executable segment, by link address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// First link address.
    pub start: u64,
    pub end: u64,
    pub file_offset: u64,
}

/// The parts of an ELF image that tables are built from.
#[derive(Debug)]
pub struct Image<'data, R: ReadRef<'data>> {
    data: R,
    /// The bytes of `.eh_frame`, if any; its address is in `bases`.
    pub eh_frame: Option<&'data [u8]>,
    /// The bytes of `.debug_frame`, if present and not compressed.
    pub debug_frame: Option<&'data [u8]>,
    /// Bases of relative pointers in the unwind sections.
    pub bases: BaseAddresses,
    /// Executable segments by address, without overlap.
    pub code: Vec<Code>,
    /// Entry point of the process or the loader, if in code.
    pub entry: Option<u64>,
}

impl<'data, R: ReadRef<'data>> Image<'data, R> {
    /// Finds the parts. Missing or malformed unwind sections are no error: they are `None`.
    pub fn parse(data: R) -> Result<Self, ImageError> {
        let header = FileHeader64::<LittleEndian>::parse(data).map_err(|_| ImageError::NotElf)?;
        let endian = header.endian().map_err(|_| ImageError::NotElf)?;
        let kind = header.e_type(endian);
        if header.e_machine(endian) != arch::ELF_MACHINE || !(kind == elf::ET_EXEC || kind == elf::ET_DYN) {
            return Err(ImageError::OtherKind);
        }
        // More program headers than 16 bits can count would take gigabytes; no linker writes them for a loadable file.
        if header.e_phnum(endian) == elf::PN_XNUM {
            return Err(ImageError::Malformed);
        }
        let segments = header.program_headers(endian, data).map_err(|_| ImageError::Malformed)?;
        let code = code_of(segments)?;
        let entry = Some(header.e_entry(endian)).filter(|&entry| code_at(&code, entry).is_some());
        let mut image = Self { data, eh_frame: None, debug_frame: None, bases: BaseAddresses::default(), code, entry };
        image.find_sections(header, endian);
        if image.eh_frame.is_none() {
            image.find_by_segment(segments);
        }
        Ok(image)
    }

    /// Total size of executable segments.
    pub fn code_bytes(&self) -> u64 {
        self.code.iter().map(|code| code.end - code.start).sum()
    }

    /// The executable segment that contains this link address.
    pub fn code_at(&self, address: u64) -> Option<&Code> {
        code_at(&self.code, address)
    }

    /// Reads up to `length` bytes of code at a link address from the file.
    pub fn read_code(&self, code: &Code, address: u64, length: u64) -> Option<&'data [u8]> {
        let length = length.min(code.end.checked_sub(address)?);
        let offset = code.file_offset.checked_add(address.checked_sub(code.start)?)?;
        self.data.read_bytes_at(offset, length).ok()
    }

    /// Reads code at a link address; empty if it cannot be read.
    pub(super) fn read_code_at(&self, address: u64, length: u32) -> &'data [u8] {
        let code = self.code_at(address);
        code.and_then(|code| self.read_code(code, address, length.into())).unwrap_or_default()
    }

    fn find_sections(&mut self, header: &FileHeader64<LittleEndian>, endian: LittleEndian) {
        if header.e_shnum(endian) == 0 {
            return;
        }
        let Ok(sections) = header.section_headers(endian, self.data) else { return };
        let Some(names) = header
            .shstrndx(endian, self.data)
            .ok()
            .and_then(|index| sections.get(usize::try_from(index).ok()?))
            .filter(|names| names.sh_size(endian) <= NAMES_BYTES_MAX)
            .and_then(|names| names.data(endian, self.data).ok())
        else {
            return;
        };
        for section in sections {
            let compressed = section.sh_flags(endian) & u64::from(elf::SHF_COMPRESSED) != 0;
            let bytes = || {
                let fits = !compressed && section.sh_size(endian) <= SECTION_BYTES_MAX;
                fits.then(|| section.data(endian, self.data).ok()).flatten().filter(|bytes| !bytes.is_empty())
            };
            let address = section.sh_addr(endian);
            match name_at(names, section.sh_name(endian)) {
                b".eh_frame" if self.eh_frame.is_none() => {
                    self.eh_frame = bytes();
                    self.bases = self.bases.clone().set_eh_frame(address);
                }
                b".eh_frame_hdr" => self.bases = self.bases.clone().set_eh_frame_hdr(address),
                b".debug_frame" if self.debug_frame.is_none() => self.debug_frame = bytes(),
                b".text" => self.bases = self.bases.clone().set_text(address),
                b".got" => self.bases = self.bases.clone().set_got(address),
                _ => {}
            }
        }
    }

    /// Files without section headers still locate the index of `.eh_frame` by a segment, for the C++ runtime. The section is then
    /// assumed to extend to the end of its segment; its own terminator ends it earlier.
    fn find_by_segment(&mut self, segments: &[ProgramHeader64<LittleEndian>]) {
        let endian = LittleEndian;
        let Some(index) = segments.iter().find(|segment| segment.p_type(endian) == elf::PT_GNU_EH_FRAME) else {
            return;
        };
        let bases = BaseAddresses::default().set_eh_frame_hdr(index.p_vaddr(endian));
        let Ok(bytes) = self.data.read_bytes_at(index.p_offset(endian), index.p_filesz(endian).min(16)) else {
            return;
        };
        let Ok(Pointer::Direct(address)) =
            EhFrameHdr::new(bytes, GimliLittle).parse(&bases, 8).map(|parsed| parsed.eh_frame_ptr())
        else {
            return;
        };
        let section = segments.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD).find_map(|segment| {
            let skipped = address.checked_sub(segment.p_vaddr(endian))?;
            let length = segment.p_filesz(endian).checked_sub(skipped)?.min(SECTION_BYTES_MAX);
            self.data.read_bytes_at(segment.p_offset(endian).checked_add(skipped)?, length).ok()
        });
        self.eh_frame = section.filter(|bytes| !bytes.is_empty());
        self.bases = bases.set_eh_frame(address);
    }
}

fn code_of(segments: &[ProgramHeader64<LittleEndian>]) -> Result<Vec<Code>, ImageError> {
    let endian = LittleEndian;
    let mut code: Vec<Code> = segments
        .iter()
        .filter(|s| s.p_type(endian) == elf::PT_LOAD && s.p_flags(endian) & elf::PF_X != 0 && s.p_filesz(endian) > 0)
        .filter_map(|s| {
            let start = s.p_vaddr(endian);
            Some(Code { start, end: start.checked_add(s.p_filesz(endian))?, file_offset: s.p_offset(endian) })
        })
        .collect();
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

fn code_at(code: &[Code], address: u64) -> Option<&Code> {
    let index = code.partition_point(|code| code.start <= address).checked_sub(1)?;
    code.get(index).filter(|code| address < code.end)
}

fn name_at(names: &[u8], offset: u32) -> &[u8] {
    let name = usize::try_from(offset).ok().and_then(|offset| names.get(offset..)).unwrap_or_default();
    name.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Sampled code, to compare a cached table with the image.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Samples {
    /// Link addresses and lengths in bytes.
    pub(super) ranges: Vec<(u64, u32)>,
    /// SHA-256 of these bytes.
    pub(super) digest: [u8; 32],
}

impl Samples {
    pub(super) fn of<'data, R: ReadRef<'data>>(image: &Image<'data, R>, ranges: Vec<(u64, u32)>) -> Self {
        let mut hash = Sha256::new();
        for &(address, length) in &ranges {
            hash.update(image.read_code_at(address, length));
        }
        Self { ranges, digest: hash.finalize().into() }
    }

    /// Whether this image has the same code in these ranges.
    pub fn matches<'data, R: ReadRef<'data>>(&self, image: &Image<'data, R>) -> bool {
        Self::of(image, self.ranges.clone()).digest == self.digest
    }
}
