//! Tests with code of installed allocators, compared with `objdump`, and with malformed files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::allocator::functions;
use crate::object::module::ModuleStore;
use crate::object::symbols::{Search, defined_functions};
use crate::probe::place::{Class, Emulation, Placement, PlacementMode, place};
use heapbpf_base::testing::Workshop;

/// Directories of libraries.
const FOLDERS: [&str; 4] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/x86_64-linux-musl"];

/// Allocators by the prefix of their file name, with the name of Debian's package.
const ALLOCATORS: [(&str, &str); 5] = [
    ("libc.so.6", "libc6"),
    ("libjemalloc.so.2", "libjemalloc2"),
    ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    ("libmimalloc.so.2", "libmimalloc2.0"),
    ("libc.musl-x86_64.so", "musl"),
];

/// Finds the library, which must be installed.
fn library(start: &str, package: &str) -> PathBuf {
    let musl = Path::new("/lib/ld-musl-x86_64.so.1");
    if package == "musl" && musl.exists() {
        return musl.to_owned();
    }
    let entries = FOLDERS.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let mut found = entries.map(|entry| entry.path()).filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start)) && path.is_file()
    });
    found.next().unwrap_or_else(|| panic!("`{start}` is needed here: apt-get install {package}"))
}

/// Returns the placements of all hooks of a library by function, with the function's address.
fn placements(path: &Path) -> BTreeMap<String, (u64, Placement)> {
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(path).expect("it opens");
    let module = modules.get(id);
    let mut placements = BTreeMap::new();
    for spec in functions::C.iter().chain(functions::MAPPINGS.iter()) {
        let found = defined_functions(module, &[spec.function], Search::Exported).expect("an ELF file");
        let Some(function) = found.first() else { continue };
        let code = Code::of(module, function).expect("its code can be read");
        let placement = place(&code, &spec, PlacementMode::Auto, Emulation::default());
        let placement = placement.unwrap_or_else(|error| panic!("{}: {}: {error}", path.display(), spec.function));
        placements.insert(spec.function.to_owned(), (code.address.0, placement));
    }
    placements
}

/// Returns the instruction at an address as GNU objdump prints it, without comments and with single spaces.
fn objdump(path: &Path, address: u64) -> String {
    let range = [format!("--start-address={address}"), format!("--stop-address={}", address + 16)];
    let output = Command::new("objdump").args(["-d", "--no-show-raw-insn"]).args(range).arg(path).output();
    let output = output.expect("`objdump` is needed here: apt-get install binutils");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{address:x}:")));
    let line = line.unwrap_or_else(|| panic!("objdump has no instruction at {address:#x}: {text}"));
    let words: Vec<&str> = line.split_whitespace().take_while(|word| !word.starts_with(['<', '#'])).collect();
    words.join(" ")
}

#[test]
fn malloc_and_free_of_all_allocators_are_probed_without_single_steps() {
    for (start, package) in ALLOCATORS {
        let path = library(start, package);
        let placements = placements(&path);
        for function in ["malloc", "free", "calloc", "realloc"] {
            let (_, placement) = placements.get(function).unwrap_or_else(|| panic!("{start}: no `{function}`"));
            assert_eq!(placement.class, Class::Emulated, "{start}: {function}: {placement:?}");
        }
    }
}

#[test]
fn probed_instructions_match_objdump() {
    for (start, package) in ALLOCATORS {
        let path = library(start, package);
        for (function, (address, placement)) in placements(&path) {
            let expected = objdump(&path, address + placement.offset_in_function);
            // objdump prints the targets of jumps without 0x.
            let got = placement.instruction.replacen(" 0x", " ", usize::from(placement.instruction.starts_with('j')));
            assert_eq!(got, expected, "{start}: {function}: {placement:?}");
        }
    }
}

/// A library with symbols that can be mistaken for functions.
const LIBRARY: &str = r#"
    .text
    .globl plain, sizeless, cut, chosen, long
    .type plain, @function
    plain: test %rdi,%rdi; je 1f; nop
    1: ret
    .size plain, . - plain
    .type sizeless, @function
    sizeless: test %rdi,%rdi; je 1f; nop
    1: ret
    .type chosen, @gnu_indirect_function
    chosen: ret
    .size chosen, 1
    .type long, @function
    long: test %rdi,%rdi; je 1f; nop
    1: ret
    .size long, 0x100000
    .type cut, @function
    cut: test %rdi,%rdi; je 1f; nop
    1: ret
    .size cut, 0x7fffffffffffffff
    call imported@PLT
    .section .note.GNU-stack,"",@progbits
"#;

/// Places a free's hook on a function of the synthetic library.
fn offset_in(path: &Path, function: &str) -> Result<u64, PlaceError> {
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(path).expect("it opens");
    let found = defined_functions(modules.get(id), &[function], Search::Exported).expect("an ELF file");
    let code = Code::of(modules.get(id), found.first().expect("it is defined"))?;
    let free = functions::C.iter().find(|spec| spec.function == "free").expect("in the table");
    place(&code, &free, PlacementMode::Auto, Emulation::default()).map(|found| found.offset_in_function)
}

#[test]
fn unknown_or_wrong_sizes_keep_the_probe_at_the_entry() {
    let workshop = Workshop::new();
    let path = workshop.compile("gcc", "library.s", LIBRARY, &["-shared", "-nostdlib"]);
    assert_eq!(offset_in(&path, "plain"), Ok(3));
    assert_eq!(offset_in(&path, "sizeless"), Ok(0));
    assert_eq!(offset_in(&path, "long"), Ok(0));
    assert_eq!(offset_in(&path, "cut"), Ok(0));
    assert_eq!(offset_in(&path, "chosen"), Err(PlaceError::Indirect("chosen".to_owned())));
}

#[test]
fn code_is_read_from_executable_segments_and_not_from_linkage_tables() {
    let workshop = Workshop::new();
    let path = workshop.compile("gcc", "library.s", LIBRARY, &["-shared", "-nostdlib"]);
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(&path).expect("it opens");
    let module = modules.get(id);
    let elf = module.elf().expect("an ELF file");
    let plt = elf.section(".plt").expect("there is an imported function");
    let error = Code::read(module, plt.offset, 16).expect_err("it is a linkage table");
    assert_eq!(error, PlaceError::Linkage(plt.address.0, ".plt".to_owned()));

    for offset in [0, u64::MAX, u64::MAX - 15, module.file().expect("open").metadata().expect("open").len()] {
        let error = Code::read(module, FileOffset(offset), 16).expect_err("there is no code");
        assert!(matches!(error, PlaceError::Unreadable(_)), "{offset:#x}: {error}");
    }
    let text = elf.section(".text").expect("there is code");
    let last = FileOffset(text.offset.0 + text.size_bytes - 1);
    assert_eq!(Code::read(module, last, 1).map(|code| code.bytes.len()), Ok(1));
    assert_eq!(Code::read(module, last, u64::MAX).map(|code| code.whole), Ok(false));
}

#[test]
fn an_initial_jump_is_followed() {
    let check = |bytes: &[u8], expected: Option<u64>| {
        let code = Code { bytes: bytes.to_vec(), whole: true, address: LinkAddr(0xadf10) };
        assert_eq!(code.jumps_to(), expected.map(LinkAddr), "{bytes:x?}");
    };
    check(&[0xe9, 0x1b, 0xff, 0xff, 0xff, 0x66], Some(0xade30));
    check(&[0xf3, 0x0f, 0x1e, 0xfa, 0xe9, 0x17, 0xff, 0xff, 0xff], Some(0xade30));
    check(&[0xeb, 0x0e], Some(0xadf20));
    check(&[0x53, 0xe9, 0, 0, 0, 0], None);
    check(&[0xe9, 0, 0], None);
    check(&[], None);
}
