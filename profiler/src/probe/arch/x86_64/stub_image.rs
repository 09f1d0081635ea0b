//! The file with the stubs: an ELF image without sections, so that unwinders find the stubs' rules as they find those of
//! any module. Its header page lists the stubs for a later heapbpf.

use gimli::write::{
    Address, CallFrameInstruction, CommonInformationEntry, EhFrame, EndianVec, FrameDescriptionEntry, FrameTable,
};
use gimli::{Encoding, Format, LittleEndian, X86_64, constants};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, IcedError, Register};
use object::LittleEndian as LE;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::endian::{U16, U32, U64};
use object::pod::bytes_of;
use profiler_common::limits::PAGE_BYTES;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StubError {
    #[error("it cannot be executed elsewhere: {0}")]
    Prefix(&'static str),
    #[error("cannot be encoded: {0}")]
    Encode(String),
}

impl From<IcedError> for StubError {
    fn from(error: IcedError) -> Self {
        Self::Encode(error.to_string())
    }
}

/// Size of the page before the code.
pub(crate) const HEADER_BYTES: u64 = PAGE_BYTES;
/// Where the list of stubs begins: a first word, and pairs of a stub's and its function's address.
const ENTRIES: usize = 256;
const MAGIC: u64 = u64::from_le_bytes(*b"hbstubs1");
const ENTRIES_MAX: usize = (PAGE - ENTRIES) / 16 - 1;
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

/// Completes an image of code that begins behind its header page, in whole pages. `routines` are the offsets of its
/// routines' beginnings and ends; `entries` are stubs and their functions: those beyond a page are not found later.
pub(super) fn complete(
    mut image: Vec<u8>,
    routines: &[(usize, usize)],
    entries: &[[u64; 2]],
) -> Result<Vec<u8>, StubError> {
    image.resize(image.len().next_multiple_of(8), 0xcc);
    let index = image.len();
    let frames = frames(&image, routines, (index + INDEX_BYTES) as u64)?;
    // Version, encodings of the pointer (relative, 4 bytes) and of the table (none), and the distance from here to the frames.
    image.extend([1, constants::DW_EH_PE_pcrel.0 | constants::DW_EH_PE_sdata4.0, 0xff, 0xff, 4, 0, 0, 0]);
    image.extend_from_slice(&frames);
    let end = image.len();
    image.resize(end.next_multiple_of(PAGE), 0xcc);
    let size = image.len() as u64;
    let programs = [(elf::PT_LOAD, 0, size), (elf::PT_GNU_EH_FRAME, index as u64, (end - index) as u64)];
    let headers = programs.map(|(kind, offset, size)| program_header(kind, offset, size));
    let header = [bytes_of(&file_header(headers.len())), bytes_of(&headers)].concat();
    image[..header.len()].copy_from_slice(&header);
    let words = [MAGIC].into_iter().chain(entries.iter().take(ENTRIES_MAX).flatten().copied());
    for (at, word) in image[ENTRIES..].as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *at = word.to_ne_bytes();
    }
    Ok(image)
}

/// Of `.eh_frame_hdr` without a table.
const INDEX_BYTES: usize = 8;

/// `.eh_frame` of all routines, for this offset in the image.
fn frames(image: &[u8], routines: &[(usize, usize)], offset: u64) -> Result<Vec<u8>, StubError> {
    let encoding = Encoding { format: Format::Dwarf32, version: 1, address_size: 8 };
    let mut common = CommonInformationEntry::new(encoding, 1, -8, X86_64::RA);
    common.fde_address_encoding = constants::DW_EH_PE_pcrel | constants::DW_EH_PE_sdata4;
    common.add_instruction(CallFrameInstruction::Cfa(X86_64::RSP, RETURN_ADDRESS_BYTES));
    common.add_instruction(CallFrameInstruction::Offset(X86_64::RA, -RETURN_ADDRESS_BYTES));
    let mut table = FrameTable::default();
    let common = table.add_cie(common);
    for &(start, end) in routines {
        // Relative to the frames, because addresses are written relative to themselves.
        let address = Address::Constant((start as u64).wrapping_sub(offset));
        let length = u32::try_from(end - start).unwrap_or(u32::MAX);
        let mut routine = FrameDescriptionEntry::new(address, length);
        for (at, size) in frame_sizes(&image[start..end]) {
            routine.add_instruction(at, CallFrameInstruction::CfaOffset(size));
        }
        table.add_fde(common, routine);
    }
    let mut section = EhFrame(EndianVec::new(LittleEndian));
    table.write_eh_frame(&mut section).map_err(|error| StubError::Encode(error.to_string()))?;
    let mut bytes = section.0.into_vec();
    bytes.extend([0; 4]);
    Ok(bytes)
}

const RETURN_ADDRESS_BYTES: i32 = 8;

/// Where the distance of the frame's end from the stack pointer changes. After a jump or a return, the stack is as at the entry.
fn frame_sizes(code: &[u8]) -> Vec<(u32, i32)> {
    let (mut changes, mut size) = (Vec::new(), RETURN_ADDRESS_BYTES);
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let moved = match (instruction.code(), instruction.op0_register()) {
            (Code::Sub_rm64_imm8, Register::RSP) => i32::from(instruction.immediate8().cast_signed()),
            (Code::Add_rm64_imm8, Register::RSP) => -i32::from(instruction.immediate8().cast_signed()),
            _ => match instruction.flow_control() {
                FlowControl::Next => -instruction.stack_pointer_increment(),
                FlowControl::UnconditionalBranch | FlowControl::Return => RETURN_ADDRESS_BYTES - size,
                _ => 0,
            },
        };
        if moved != 0 {
            size += moved;
            changes.push((u32::try_from(decoder.position()).unwrap_or(u32::MAX), size));
        }
    }
    // Behind the last instruction nothing follows.
    changes.retain(|&(at, _)| (at as usize) < code.len());
    changes
}

fn file_header(programs: usize) -> FileHeader64<LE> {
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
        e_machine: U16::new(LE, elf::EM_X86_64),
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
mod tests {
    use profiler_common::hook::CallShape;
    use profiler_common::unwind::Cfa;

    use super::*;
    use crate::address::LinkAddr;
    use crate::object::image::Image;
    use crate::probe::stub::{SlotIndex, StubCode, StubFunction};
    use crate::unwind;

    const ADDRESS: u64 = 0x7000_0000_0000;

    /// Stubs of `malloc`, whose prefix pushes a register, and `free`.
    fn image() -> (Vec<u8>, u64, u64) {
        let mut code = StubCode::new(ADDRESS, ADDRESS + 0x10_0000, SlotIndex::Rseq(-32)).expect("it is encoded");
        let malloc = StubFunction {
            shape: CallShape::Alloc,
            size: 0,
            count: None,
            pointer: None,
            page_rounded: false,
            throw_safe_bytes: None,
            address: ADDRESS + 0x100_0000,
            // push %r12
            prefix: &[0x41, 0x54],
            slots: ADDRESS + 0x8000,
            simpler: None,
        };
        let (first, _) = code.add_stub(&malloc).expect("it is encoded");
        let free = StubFunction { shape: CallShape::Free, pointer: Some(0), prefix: &[], ..malloc };
        let (second, _) = code.add_stub(&free).expect("it is encoded");
        let image = code.finish(&[[first, 1], [second, 2]]).expect("it has unwind rules");
        (image, first, second)
    }

    #[test]
    fn the_list_of_stubs_is_found_again() {
        let (image, first, second) = image();
        assert_eq!(entries(&image).collect::<Vec<_>>(), [(first, 1), (second, 2)]);
        assert_eq!(entries(&image[..ENTRIES + 24]).collect::<Vec<_>>(), [(first, 1)]);
        assert_eq!(entries(&vec![0; 4096]).count() + entries(&[]).count(), 0);
    }

    #[test]
    fn callers_are_found_from_every_instruction() {
        let (image, first, second) = image();
        let table = unwind::build(&Image::from_bytes(&image).expect("a file")).expect("an ELF image with rules");
        for start in [first, second] {
            let (mut depth, mut calls) = (8, 0);
            let code = &image[usize::try_from(start - ADDRESS).expect("small")..];
            let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
            loop {
                let instruction = decoder.decode();
                // Between stubs.
                if instruction.code() == Code::Int3 {
                    break;
                }
                let rule = table.lookup(LinkAddr(instruction.ip() - ADDRESS));
                assert_eq!(rule.cfa(), Some(Cfa::Sp { offset: depth }), "{instruction}");
                depth = match instruction.flow_control() {
                    FlowControl::UnconditionalBranch | FlowControl::Return => 8,
                    FlowControl::Call => depth,
                    _ if instruction.op0_register() == Register::RSP => {
                        let moved = i32::from(instruction.immediate8().cast_signed());
                        if instruction.code() == Code::Sub_rm64_imm8 { depth + moved } else { depth - moved }
                    }
                    _ => depth - instruction.stack_pointer_increment(),
                };
                calls += usize::from(instruction.flow_control() == FlowControl::Call && depth == 16);
            }
            // The call of the function, with an aligned stack.
            assert_eq!(calls, usize::from(start == first));
        }
    }
}
