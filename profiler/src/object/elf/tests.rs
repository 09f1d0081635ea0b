//! ELF headers of real, synthetic and malformed files.

use proptest::prelude::*;

use super::*;
use crate::object::module::ModuleStore;
use crate::object::symbols::{Search, defined_functions};
use heapbpf_base::testing::Workshop;

const PROGRAM: &str = "int main(void) { return 0; }\n";

fn read(path: &std::path::Path) -> Elf {
    Elf::read(&crate::object::image::open_regular(path).expect("it opens")).expect("an ELF file")
}

#[test]
fn kinds_of_programs_are_distinguished() {
    let workshop = Workshop::new();
    for (arguments, is_static) in [
        (&["-pie"][..], false),
        (&["-no-pie"], false),
        (&["-static"], true),
        (&["-static-pie"], true),
        (&["-shared", "-fPIC"], false),
    ] {
        let elf = read(&workshop.compile("gcc", "program.c", PROGRAM, arguments));
        assert_eq!((elf.is_static, elf.is_go), (is_static, false), "{arguments:?}");
        assert!(elf.segments.iter().any(|segment| segment.executable), "{arguments:?}");
        assert!(elf.section(".text").is_some(), "{arguments:?}");
    }
}

#[test]
fn the_build_id_is_read() {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "program.c", PROGRAM, &["-Wl,--build-id=0x0123456789abcdef"]);
    assert_eq!(read(&program).build_id.expect("a build id").to_string(), "0123456789abcdef");
    let program = workshop.compile("gcc", "program.c", PROGRAM, &["-Wl,--build-id=none"]);
    assert_eq!(read(&program).build_id, None);
}

#[test]
fn go_programs_are_recognised_by_their_sections() {
    let workshop = Workshop::new();
    workshop.compile("gcc", "program.c", PROGRAM, &[]);
    std::fs::write(workshop.path("info"), "go1.26").expect("writable");
    workshop.run("objcopy", &["--add-section", ".go.buildinfo=info", "program", "gopher"]);
    assert!(read(&workshop.path("gopher")).is_go);
}

#[test]
fn a_program_without_section_headers_keeps_its_segments_and_build_id() {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "program.c", PROGRAM, &["-Wl,--build-id=0xfeed"]);
    let whole = read(&program);
    let mut bytes = std::fs::read(&program).expect("readable");
    // e_shoff far behind the end of the file.
    bytes[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
    let cut = Elf::read(&Image::from_bytes(&bytes).expect("memory")).expect("still an ELF file");
    assert_eq!((&cut.segments, &cut.build_id), (&whole.segments, &whole.build_id));
    assert_eq!(cut.sections, []);
}

#[test]
fn offsets_and_addresses_convert_within_code_only() {
    let elf = Elf {
        segments: vec![
            Segment { offset: FileOffset(0), size_bytes: 0x600, address: LinkAddr(0x40_0000), executable: false },
            Segment { offset: FileOffset(0x640), size_bytes: 0x100, address: LinkAddr(0x40_1640), executable: true },
        ],
        sections: Vec::new(),
        build_id: None,
        machine: elf::EM_X86_64,
        kind: elf::ET_DYN,
        entry: LinkAddr(0),
        eh_frame_index: None,
        dynamic: None,
        is_static: false,
        is_go: false,
    };
    assert_eq!(elf.link_addr(FileOffset(0x650)), Some(LinkAddr(0x40_1650)));
    assert_eq!(elf.file_offset(LinkAddr(0x40_173f)), Some(FileOffset(0x73f)));
    for offset in [0x500, 0x63f, 0x740] {
        assert_eq!(elf.link_addr(FileOffset(offset)), None, "{offset:#x}");
    }
    assert_eq!(elf.file_offset(LinkAddr(0x40_1740)), None);
    // The kernel maps the page in which the segment begins.
    assert_eq!(elf.bias(TargetAddr(0x7000_0000), FileOffset(0)), Some(0x7000_0000 - 0x40_1000));
    assert_eq!(elf.bias(TargetAddr(0x7000_0000), FileOffset(0x1000)), None);
}

#[test]
fn other_files_are_rejected() {
    for bytes in [&b""[..], b"#!/bin/sh\n", &[0x7f, b'E', b'L', b'F'], &[0; 64]] {
        assert_eq!(Elf::read(&Image::from_bytes(bytes).expect("memory")), Err(ObjectError::NotElf));
    }
    let mut header = [0; 64];
    header[..6].copy_from_slice(b"\x7fELF\x01\x01");
    assert_eq!(Elf::read(&Image::from_bytes(&header).expect("memory")), Err(ObjectError::Is32Bit));
}

/// Inspects a file as the agent does. Nothing may panic.
fn inspect(bytes: &[u8]) {
    let workshop = Workshop::new();
    std::fs::write(workshop.path("hostile"), bytes).expect("writable");
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(&workshop.path("hostile")).expect("a regular file");
    let module = modules.get(id);
    drop(defined_functions(module, &["malloc", "main", "free"], Search::Everything));
    let offsets: Vec<FileOffset> = (0..bytes.len() as u64).step_by(509).map(FileOffset).collect();
    for &offset in &offsets {
        if let Some(address) = module.elf().ok().and_then(|elf| elf.link_addr(offset)) {
            let _ = module.elf().map(|elf| elf.file_offset(address));
        }
        let _ = module.bias(TargetAddr(u64::MAX), offset);
    }
    let resolver = crate::symbolize::resolver::Resolver::in_process();
    let answers = crate::symbolize::Resolve::resolve(&resolver, id, module, &offsets);
    assert_eq!(answers.len(), offsets.len());
}

fn real_program() -> Vec<u8> {
    std::fs::read("/bin/true").expect("every system has it")
}

#[test]
fn truncated_programs_do_not_panic() {
    let bytes = real_program();
    for length in (0..256).chain((256..bytes.len()).step_by(397)) {
        inspect(&bytes[..length]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn corrupted_headers_do_not_panic(
        changes in proptest::collection::vec((0.0..1.0f64, any::<u8>(), 0..3usize), 1..8),
    ) {
        let mut bytes = real_program();
        let section_headers = u64::from_le_bytes(*bytes[40..].first_chunk().expect("a header"));
        let sections_at = usize::try_from(section_headers).expect("a small file");
        for (place, value, part) in changes {
            // The file header and the program headers, the dynamic symbols behind them, the section headers.
            let range = [0..0x400, 0x400..0x1400, sections_at..bytes.len()][part].clone();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss,
                reason = "a share of a small length")]
            let at = range.start + (range.len() as f64 * place) as usize;
            bytes[at] = value;
        }
        inspect(&bytes);
    }
}
