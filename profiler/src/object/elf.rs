//! ELF headers. Finds tables that can be large (symbols, unwind information), which are read elsewhere.

use heapbpf_base::address::{FileOffset, LinkAddr, TargetAddr};
use heapbpf_base::shown;
use object::LittleEndian as LE;
use object::elf::{self, Dyn64, FileHeader64, ProgramHeader64, SectionHeader64};
use object::pod::{from_bytes, slice_from_all_bytes};
use object::read::elf::NoteIterator;
use serde::{Deserialize, Serialize};

use super::ObjectError;
use super::image::Image;

/// Real files have a few hundred.
const SECTION_NAMES_BYTES_MAX: u64 = 1 << 20;
/// Linked files have about forty.
const SECTIONS_MAX: u64 = 4096;
const SECTION_NAME_BYTES_MAX: usize = 128;
const NOTES_BYTES_MAX: u64 = 1 << 16;
const NOTES_MAX: usize = 64;
const DYNAMIC_BYTES_MAX: u64 = 1 << 16;
/// The linkers' longest is a SHA-1 of 20.
const BUILD_ID_BYTES_MAX: usize = 64;
/// Of x86-64 and aarch64.
const PAGE_SIZES: [u64; 3] = [4 << 10, 16 << 10, 64 << 10];

/// Loadable (`PT_LOAD`) unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    pub offset: FileOffset,
    pub size_bytes: u64,
    pub address: LinkAddr,
    pub executable: bool,
}

impl Segment {
    pub fn contains(&self, address: LinkAddr) -> bool {
        self.file_offset(address).is_some()
    }

    pub(super) fn link_addr(&self, offset: FileOffset) -> Option<LinkAddr> {
        let inside = offset.0.checked_sub(self.offset.0).filter(|&inside| inside < self.size_bytes)?;
        self.address.0.checked_add(inside).map(LinkAddr)
    }

    pub(super) fn file_offset(&self, address: LinkAddr) -> Option<FileOffset> {
        let inside = address.0.checked_sub(self.address.0).filter(|&inside| inside < self.size_bytes)?;
        self.offset.0.checked_add(inside).map(FileOffset)
    }
}

/// Not validated against the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub name: Box<str>,
    /// `SHT_…`
    pub kind: u32,
    /// `SHF_…`
    pub flags: u64,
    pub offset: FileOffset,
    /// In the file (in memory, for `SHT_NOBITS`).
    pub size_bytes: u64,
    /// 0 if it is not loaded.
    pub address: LinkAddr,
    /// Index of an associated section, such as a symbol table's strings.
    pub link: u32,
}

impl Section {
    pub fn contains(&self, address: LinkAddr) -> bool {
        address.0.checked_sub(self.address.0).is_some_and(|inside| inside < self.size_bytes)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BuildId(Box<[u8]>);

impl BuildId {
    pub fn recorded(bytes: &[u8]) -> Option<Self> {
        (1..=BUILD_ID_BYTES_MAX).contains(&bytes.len()).then(|| Self(bytes.into()))
    }

    /// At least one byte.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Display for BuildId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elf {
    pub segments: Vec<Segment>,
    /// Empty if they were stripped or are malformed.
    pub sections: Vec<Section>,
    pub build_id: Option<BuildId>,
    /// `EM_…`
    pub machine: u16,
    /// `ET_…`
    pub kind: u16,
    pub entry: LinkAddr,
    /// The index of `.eh_frame` (`PT_GNU_EH_FRAME`).
    pub eh_frame_index: Option<Segment>,
    /// The dynamic section (`PT_DYNAMIC`).
    pub dynamic: Option<Segment>,
    /// No interpreter, and not a shared object (static-pie counts as static).
    pub is_static: bool,
    /// Built by the Go toolchain, whose code allocates without malloc.
    pub is_go: bool,
}

impl Elf {
    /// Malformed section headers are ignored, because code runs without them.
    pub fn read(image: &Image) -> Result<Self, ObjectError> {
        let header_bytes = image.read(FileOffset(0), 64, 64).map_err(|_| ObjectError::NotElf)?;
        let (header, _) = from_bytes::<FileHeader64<LE>>(&header_bytes).map_err(|()| ObjectError::NotElf)?;
        let ident = &header.e_ident;
        if ident.magic == elf::ELFMAG && ident.class == elf::ELFCLASS32 {
            return Err(ObjectError::Is32Bit);
        }
        if ident.magic != elf::ELFMAG || ident.class != elf::ELFCLASS64 || ident.data != elf::ELFDATA2LSB {
            return Err(ObjectError::NotElf);
        }
        let count = u64::from(header.e_phnum.get(LE));
        let programs_bytes = image.read(FileOffset(header.e_phoff.get(LE)), count * 56, u64::MAX)?;
        let programs = slice_from_all_bytes::<ProgramHeader64<LE>>(&programs_bytes)
            .map_err(|()| ObjectError::Malformed("program headers"))?;
        let sections = read_sections(image, header).unwrap_or_default();
        let (build_id, has_go_note) = read_notes(image, programs, &sections);
        let of_kind = |kind| programs.iter().filter(move |program| program.p_type.get(LE) == kind).map(segment);
        let has = |kind| of_kind(kind).next().is_some();
        let dynamic = of_kind(elf::PT_DYNAMIC).next();
        let flags = dynamic.map(|dynamic| Dynamic::read(image, &dynamic).get(elf::DT_FLAGS_1));
        let is_pie = flags.unwrap_or(0) & u64::from(elf::DF_1_PIE) != 0;
        Ok(Self {
            segments: of_kind(elf::PT_LOAD).collect(),
            machine: header.e_machine.get(LE),
            kind: header.e_type.get(LE),
            entry: LinkAddr(header.e_entry.get(LE)),
            eh_frame_index: of_kind(elf::PT_GNU_EH_FRAME).next(),
            dynamic,
            is_static: !has(elf::PT_INTERP) && (dynamic.is_none() || is_pie),
            is_go: has_go_note
                || sections.iter().any(|section| matches!(&*section.name, ".go.buildinfo" | ".gopclntab")),
            build_id,
            sections,
        })
    }

    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| &*section.name == name)
    }

    pub fn link_addr(&self, offset: FileOffset) -> Option<LinkAddr> {
        self.code().find_map(|segment| segment.link_addr(offset))
    }

    pub fn file_offset(&self, address: LinkAddr) -> Option<FileOffset> {
        self.code().find_map(|segment| segment.file_offset(address))
    }

    /// As [`file_offset`](Self::file_offset), also of data.
    pub(crate) fn data_offset(&self, address: LinkAddr) -> Option<FileOffset> {
        self.segments.iter().find_map(|segment| segment.file_offset(address))
    }

    pub fn bias(&self, start: TargetAddr, offset: FileOffset) -> Option<u64> {
        bias(self.code(), start, offset)
    }

    /// Offset of the code at these addresses, if it is that of one segment; `bias` is the distance of addresses from those in the
    /// file, wrapping.
    pub(crate) fn code_at(&self, bias: u64, start: TargetAddr, end: TargetAddr) -> Option<FileOffset> {
        // Whole pages, which may be huge ones.
        const SLACK_BYTES: u64 = 1 << 16;
        let [first, last] = [start.0.wrapping_sub(bias), end.0.wrapping_sub(bias)];
        let segment = self.code().find(|segment| {
            let segment_end = segment.address.0.saturating_add(segment.size_bytes);
            first.saturating_add(SLACK_BYTES) > segment.address.0
                && first < segment_end
                && last <= segment_end.saturating_add(SLACK_BYTES)
                && first < last
        })?;
        Some(FileOffset(segment.offset.0.wrapping_add(first).wrapping_sub(segment.address.0)))
    }

    pub fn code(&self) -> impl Iterator<Item = &Segment> + Clone {
        self.segments.iter().filter(|segment| segment.executable)
    }
}

/// Target addresses minus link addresses (wrapping) of a mapping of code. `None` if no segment contains that mapping.
pub(crate) fn bias<'a>(
    code: impl Iterator<Item = &'a Segment> + Clone,
    start: TargetAddr,
    offset: FileOffset,
) -> Option<u64> {
    // The kernel maps whole pages, so a mapping may begin before its segment does. A recording may be of another machine.
    let segment = PAGE_SIZES.into_iter().find_map(|page_bytes| {
        let mapped = |segment: &&Segment| {
            let first_page = segment.offset.0 / page_bytes * page_bytes;
            (first_page..segment.offset.0.saturating_add(segment.size_bytes)).contains(&offset.0)
        };
        code.clone().find(mapped)
    })?;
    let linked = segment.address.0.wrapping_add(offset.0).wrapping_sub(segment.offset.0);
    Some(start.0.wrapping_sub(linked))
}

fn segment(program: &ProgramHeader64<LE>) -> Segment {
    Segment {
        offset: FileOffset(program.p_offset.get(LE)),
        size_bytes: program.p_filesz.get(LE),
        address: LinkAddr(program.p_vaddr.get(LE)),
        executable: program.p_flags.get(LE) & elf::PF_X != 0,
    }
}

fn read_sections(image: &Image, header: &FileHeader64<LE>) -> Result<Vec<Section>, ObjectError> {
    let count = u64::from(header.e_shnum.get(LE));
    let bytes = image.read(FileOffset(header.e_shoff.get(LE)), count * 64, SECTIONS_MAX * 64)?;
    let headers =
        slice_from_all_bytes::<SectionHeader64<LE>>(&bytes).map_err(|()| ObjectError::Malformed("section headers"))?;
    let names = headers.get(usize::from(header.e_shstrndx.get(LE))).ok_or(ObjectError::Malformed("section names"))?;
    let names = image.read(FileOffset(names.sh_offset.get(LE)), names.sh_size.get(LE), SECTION_NAMES_BYTES_MAX)?;
    let name = |at: u32| {
        let tail = names.get(at as usize..).unwrap_or_default();
        let name = tail[..tail.len().min(SECTION_NAME_BYTES_MAX)].split(|&byte| byte == 0).next();
        shown::text(name.unwrap_or_default()).into()
    };
    Ok(headers
        .iter()
        .map(|section| Section {
            name: name(section.sh_name.get(LE)),
            kind: section.sh_type.get(LE),
            flags: section.sh_flags.get(LE),
            offset: FileOffset(section.sh_offset.get(LE)),
            size_bytes: section.sh_size.get(LE),
            address: LinkAddr(section.sh_addr.get(LE)),
            link: section.sh_link.get(LE),
        })
        .collect())
}

/// Entries of the dynamic section; none if it is malformed.
#[derive(Clone, Debug, Default)]
pub(super) struct Dynamic(Vec<(i64, u64)>);

impl Dynamic {
    pub(super) fn read(image: &Image, section: &Segment) -> Self {
        let bytes = image.read(section.offset, section.size_bytes, DYNAMIC_BYTES_MAX).unwrap_or_default();
        let entries = slice_from_all_bytes::<Dyn64<LE>>(&bytes).unwrap_or_default();
        let entries = entries.iter().map(|entry| (entry.d_tag.get(LE), entry.d_val.get(LE)));
        Self(entries.take_while(|&(tag, _)| tag != elf::DT_NULL).collect())
    }

    /// 0 if it is missing.
    pub(super) fn get(&self, tag: i64) -> u64 {
        self.all(tag).next().unwrap_or(0)
    }

    pub(super) fn all(&self, tag: i64) -> impl Iterator<Item = u64> {
        self.0.iter().filter(move |(its, _)| *its == tag).map(|(_, value)| *value)
    }
}

/// The build id, and whether Go has left a note. Segments are read first: they exist without section headers, and in
/// the vDSO.
fn read_notes(image: &Image, programs: &[ProgramHeader64<LE>], sections: &[Section]) -> (Option<BuildId>, bool) {
    let (mut build_id, mut is_go) = (None, false);
    let segments = programs
        .iter()
        .filter(|program| program.p_type.get(LE) == elf::PT_NOTE)
        .map(|program| (true, FileOffset(program.p_offset.get(LE)), program.p_filesz.get(LE), program.p_align.get(LE)));
    let of_notes = sections.iter().filter(|section| section.kind == elf::SHT_NOTE);
    let sections = of_notes.map(|section| (false, section.offset, section.size_bytes, 4));
    for (is_segment, offset, size_bytes, align) in segments.take(NOTES_MAX).chain(sections.take(NOTES_MAX)) {
        if !is_segment && build_id.is_some() {
            break;
        }
        let Ok(bytes) = image.read(offset, size_bytes, NOTES_BYTES_MAX) else { continue };
        let Ok(mut entries) = NoteIterator::<FileHeader64<LE>>::new(LE, align, &bytes) else { continue };
        while let Ok(Some(note)) = entries.next() {
            match (note.name(), note.n_type(LE)) {
                (b"GNU", elf::NT_GNU_BUILD_ID) => build_id = build_id.or_else(|| BuildId::recorded(note.desc())),
                // ELF_NOTE_GOBUILDID_TAG of cmd/internal/buildid.
                (b"Go", 4) => is_go = true,
                _ => {}
            }
        }
    }
    (build_id, is_go)
}

#[cfg(test)]
mod tests;
