//! Tests of files with stubs for both processors.

use heapbpf_base::address::LinkAddr;
use profiler_common::hook::{CallShape, Site};
use profiler_common::unwind::{Cfa, ReturnAddress};

use super::*;
use crate::object::image::Image;
use crate::probe::arch::aarch64::Aarch64;
use crate::probe::arch::x86_64::X86_64;
use crate::probe::stub::{SlotIndex, StubCode, StubFunction};
use crate::unwind::{self, Processor, Table};

const ADDRESS: u64 = 0x7000_0000_0000;

struct Made {
    image: Vec<u8>,
    table: Table,
    /// Addresses of the stubs of `malloc` and `free`, and their probes' offsets.
    stubs: [(u64, Vec<(Site, u64)>); 2],
}

/// Builds stubs of `malloc`, with these instructions before the probe, and of `free`.
fn make<S: StubSet>(prefix: &[u8]) -> Made {
    let mut code =
        StubCode::<S>::of(ADDRESS, ADDRESS + 0x10_0000, ADDRESS + 0x8000, SlotIndex::Rseq(-32)).expect("it is encoded");
    let malloc = StubFunction {
        shape: CallShape::Alloc,
        size: 0,
        count: None,
        pointer: None,
        page_rounded: false,
        nothrow: None,
        address: ADDRESS + 0x100_0000,
        prefix,
        heap_offset: 0,
        simpler: None,
    };
    let free = StubFunction { shape: CallShape::Free, pointer: Some(0), prefix: &[], ..malloc };
    let stubs = [malloc, free].map(|function| {
        let (address, sites) = code.add_stub(&function).expect("it is encoded");
        (address, sites.iter().map(|site| (site.site, site.offset)).collect())
    });
    let image = code.finish(&[[stubs[0].0, 1], [stubs[1].0, 2]]).expect("it has unwind rules");
    let file = Image::from_bytes(&image).expect("a file");
    let processor = if S::MACHINE == elf::EM_AARCH64 { Processor::Aarch64 } else { Processor::X86_64 };
    let table = unwind::build_for(&file, processor).expect("an ELF image with rules");
    Made { image, table, stubs }
}

/// Bytes of `push %r12`.
const PUSH: [u8; 2] = [0x41, 0x54];

#[test]
fn the_list_of_stubs_is_found_again() {
    let Made { image, stubs: [(first, _), (second, _)], .. } = make::<X86_64>(&PUSH);
    assert_eq!(entries(&image).collect::<Vec<_>>(), [(first, 1), (second, 2)]);
    assert_eq!(entries(&image[..ENTRIES + 24]).collect::<Vec<_>>(), [(first, 1)]);
    assert_eq!(entries(&vec![0; 4096]).count() + entries(&[]).count(), 0);
}

#[test]
fn callers_are_found_from_every_instruction_of_x86_64() {
    use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Register};

    let Made { image, table, stubs } = make::<X86_64>(&PUSH);
    for (number, (start, _)) in stubs.into_iter().enumerate() {
        let (mut depth, mut calls) = (8, 0);
        let code = &image[usize::try_from(start - ADDRESS).expect("small")..];
        let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        loop {
            let instruction = decoder.decode();
            // The bytes between stubs are `int3`.
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
        // The stub calls the function, with an aligned stack.
        assert_eq!(calls, usize::from(number == 0));
    }
}

fn bytes_of_words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn callers_are_found_from_every_instruction_of_aarch64() {
    const SAVE: u32 = 0xa9bf_7bfd;
    const RESTORE: u32 = 0xa8c1_7bfd;
    // paciasp; stp x19, x30, [sp, #-32]!
    let prefix = bytes_of_words(&[0xd503_233f, 0xa9be_7bf3]);
    let Made { image, table, stubs } = make::<Aarch64>(&prefix);
    for (number, (start, sites)) in stubs.into_iter().enumerate() {
        let offset = usize::try_from(start - ADDRESS).expect("small");
        let code = image[offset..].as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        let (mut depth, mut is_saved, mut calls) = (0, false, 0);
        for (at, word) in (offset as u64..).step_by(4).zip(code.take_while(|&word| word != 0)) {
            let rule = table.lookup(LinkAddr(at));
            assert_eq!(rule.cfa(), Some(Cfa::Sp { offset: depth }), "{at:#x}: {word:#010x}");
            let expected = if is_saved { ReturnAddress::AtCfa(-8) } else { ReturnAddress::Link };
            assert_eq!(rule.return_address(), expected, "{at:#x}: {word:#010x}");
            (depth, is_saved) = match word {
                SAVE => (16, true),
                RESTORE => (0, false),
                0xa9be_7bf3 => (32, false),
                // b
                _ if word >> 26 == 0b00_0101 => (0, false),
                _ => (depth, is_saved),
            };
            // bl
            calls += usize::from(word >> 26 == 0b10_0101);
        }
        assert_eq!(calls, usize::from(number == 0));
        for (_, at) in sites {
            let at = usize::try_from(at).expect("small");
            // nop
            assert_eq!(image[at..at + 4], 0xd503_201f_u32.to_le_bytes());
        }
    }
}
