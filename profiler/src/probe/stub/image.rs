//! The file with the stubs: an ELF image without sections, so that unwinders find the stubs' rules as they find those of
//! any module. Its header page lists the stubs for a later heapbpf.

use std::ops::Range;

use gimli::write::{Address, CallFrameInstruction, EhFrame, EndianVec, FrameDescriptionEntry, FrameTable};
use gimli::{Encoding, Format, LittleEndian, constants};
use object::LittleEndian as LE;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::endian::{U16, U32, U64};
use object::pod::bytes_of;
use profiler_common::limits::PAGE_BYTES;

use crate::probe::arch::stub::{StubError, StubSet};

/// Size of the page before the code.
pub(crate) const HEADER_BYTES: u64 = PAGE_BYTES;
/// Offset of the list of stubs: a first word, and pairs of a stub's and its function's address.
const ENTRIES: usize = 256;
const MAGIC: u64 = u64::from_le_bytes(*b"hbstubs2");
/// Maximum number of stubs in the list.
pub(crate) const ENTRIES_MAX: usize = (PAGE - ENTRIES) / 16 - 1;
const PAGE: usize = 4096;

const _: () = assert!(PAGE as u64 == PAGE_BYTES);

/// Stubs and their functions, from a header page.
pub(crate) fn entries(header: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let (words, _) = header.get(ENTRIES..).unwrap_or_default().as_chunks::<8>();
    let is_valid = words.first().is_some_and(|first| *first == MAGIC.to_ne_bytes());
    let pairs = words.get(1..).unwrap_or_default().as_chunks::<2>().0;
    let pairs = pairs.iter().map(|[stub, function]| (u64::from_ne_bytes(*stub), u64::from_ne_bytes(*function)));
    pairs.take(ENTRIES_MAX).take_while(move |&(stub, _)| is_valid && stub != 0)
}

/// The list of stubs in an image, and its offset.
pub(crate) fn list(image: &[u8]) -> (u64, &[u8]) {
    let size_bytes = 8 + 16 * entries(image).count();
    (ENTRIES as u64, image.get(ENTRIES..ENTRIES + size_bytes).unwrap_or_default())
}

/// Unwind rules of a routine.
#[derive(Debug)]
pub(super) struct Frames {
    /// Range of the routine's code, from the beginning of the image.
    pub(super) code: Range<usize>,
    /// Offsets in the code from which on the changes apply.
    pub(super) changes: Vec<(u32, CallFrameInstruction)>,
}

/// Completes an image of code that begins behind its header page and is padded, in whole pages. `entries` are stubs and their
/// functions: entries beyond a page are not found later.
pub(super) fn complete<S: StubSet>(
    mut image: Vec<u8>,
    routines: Vec<Frames>,
    entries: &[[u64; 2]],
) -> Result<Vec<u8>, StubError> {
    let index = image.len();
    let frames = frames::<S>(routines, (index + INDEX_BYTES) as u64)?;
    // Version, encodings of the pointer (relative, 4 bytes) and of the table (none), and the distance from here to the frames.
    image.extend([1, constants::DW_EH_PE_pcrel.0 | constants::DW_EH_PE_sdata4.0, 0xff, 0xff, 4, 0, 0, 0]);
    image.extend_from_slice(&frames);
    let end = image.len();
    image.resize(end.next_multiple_of(PAGE), 0);
    let size = image.len() as u64;
    let programs = [(elf::PT_LOAD, 0, size), (elf::PT_GNU_EH_FRAME, index as u64, (end - index) as u64)];
    let headers = programs.map(|(kind, offset, size)| program_header(kind, offset, size));
    let header = [bytes_of(&file_header(S::MACHINE, headers.len())), bytes_of(&headers)].concat();
    image[..header.len()].copy_from_slice(&header);
    let words = [MAGIC].into_iter().chain(entries.iter().take(ENTRIES_MAX).flatten().copied());
    for (at, word) in image[ENTRIES..].as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *at = word.to_ne_bytes();
    }
    Ok(image)
}

/// Size of `.eh_frame_hdr` without a table.
const INDEX_BYTES: usize = 8;

/// `.eh_frame` of all routines, for this offset in the image.
fn frames<S: StubSet>(routines: Vec<Frames>, offset: u64) -> Result<Vec<u8>, StubError> {
    let encoding = Encoding { format: Format::Dwarf32, version: 1, address_size: 8 };
    let mut common = S::common_information(encoding);
    common.fde_address_encoding = constants::DW_EH_PE_pcrel | constants::DW_EH_PE_sdata4;
    let mut table = FrameTable::default();
    let common = table.add_cie(common);
    for Frames { code, changes } in routines {
        // The address is relative to the frames, because addresses are written relative to themselves.
        let address = Address::Constant((code.start as u64).wrapping_sub(offset));
        let length = u32::try_from(code.len()).unwrap_or(u32::MAX);
        let mut routine = FrameDescriptionEntry::new(address, length);
        for (at, change) in changes {
            routine.add_instruction(at, change);
        }
        table.add_fde(common, routine);
    }
    let mut section = EhFrame(EndianVec::new(LittleEndian));
    table.write_eh_frame(&mut section).map_err(|error| StubError::Encode(error.to_string()))?;
    let mut bytes = section.0.into_vec();
    bytes.extend([0; 4]);
    Ok(bytes)
}

fn file_header(machine: u16, programs: usize) -> FileHeader64<LE> {
    let size = |bytes: usize| U16::new(LE, u16::try_from(bytes).unwrap_or(u16::MAX));
    FileHeader64 {
        e_ident: elf::Ident {
            magic: elf::ELFMAG,
            class: elf::ELFCLASS64,
            data: elf::ELFDATA2LSB,
            version: elf::EV_CURRENT,
            os_abi: elf::ELFOSABI_NONE,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: U16::new(LE, elf::ET_DYN),
        e_machine: U16::new(LE, machine),
        e_version: U32::new(LE, elf::EV_CURRENT.into()),
        e_entry: U64::new(LE, 0),
        e_phoff: U64::new(LE, size_of::<FileHeader64<LE>>() as u64),
        e_shoff: U64::new(LE, 0),
        e_flags: U32::new(LE, 0),
        e_ehsize: size(size_of::<FileHeader64<LE>>()),
        e_phentsize: size(size_of::<ProgramHeader64<LE>>()),
        e_phnum: size(programs),
        e_shentsize: size(0),
        e_shnum: size(0),
        e_shstrndx: size(0),
    }
}

fn program_header(kind: u32, offset: u64, size_bytes: u64) -> ProgramHeader64<LE> {
    let word = |value| U64::new(LE, value);
    ProgramHeader64 {
        p_type: U32::new(LE, kind),
        p_flags: U32::new(LE, elf::PF_R | if kind == elf::PT_LOAD { elf::PF_X } else { 0 }),
        p_offset: word(offset),
        p_vaddr: word(offset),
        p_paddr: word(offset),
        p_filesz: word(size_bytes),
        p_memsz: word(size_bytes),
        p_align: word(PAGE_BYTES),
    }
}

#[cfg(test)]
mod tests;
