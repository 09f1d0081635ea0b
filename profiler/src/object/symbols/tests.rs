//! Functions of real and of malformed files.

use super::*;
use crate::object::module::ModuleStore;
use heapbpf_base::testing::Workshop;

/// Functions of one distinct byte each, so that the byte at an offset identifies the function.
const LIBRARY: &str = r#"
    .macro function name, byte
    .type \name, @function
    \name: .byte \byte
    .size \name, 1
    .endm
    .text
    .nops 64
    .globl plain, twice_old, twice_new, gone, chosen, weak_one
    .weak weak_one
    function plain, 0x11
    function twice_old, 0x12
    function twice_new, 0x13
    function gone, 0x14
    function weak_one, 0x15
    function hidden_away, 0x16
    .type chosen, @gnu_indirect_function
    chosen: .byte 0x17
    .size chosen, 1
    .symver twice_old, twice@V1
    .symver twice_new, twice@@V2
    .symver gone, gone@V1, remove
    call imported@PLT
    .data
    .globl table, bogus
    .type table, @object
    table: .quad 0
    .size table, 8
    .type bogus, @function
    bogus: .quad 0
    .size bogus, 8
    .section .note.GNU-stack,"",@progbits
"#;

const VERSIONS: &str = "V1 { global: plain; weak_one; chosen; table; bogus; twice; gone; local: *; }; V2 { } V1;";

const NAMES: [&str; 10] =
    ["plain", "twice", "gone", "chosen", "weak_one", "hidden_away", "table", "bogus", "imported", "absent"];

/// Name, byte of code, source, indirect, global.
type Facts = (String, u8, SymbolSource, bool, bool);

fn facts(path: &std::path::Path, names: &[&str], search: Search) -> Vec<Facts> {
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(path).expect("it opens");
    let image = modules.get(id).image().expect("it is open");
    let functions = defined_functions(modules.get(id), names, search).expect("an ELF file");
    functions
        .into_iter()
        .map(|function| {
            let code = image.read(function.offset, 1, 1).expect("its code is in the file")[0];
            (function.name, code, function.source, function.indirect, function.global)
        })
        .collect()
}

fn library(workshop: &Workshop) -> std::path::PathBuf {
    std::fs::write(workshop.path("versions"), VERSIONS).expect("writable");
    let arguments = ["-shared", "-nostdlib", "-Wl,--version-script=versions"];
    workshop.compile("gcc", "library.s", LIBRARY, &arguments)
}

#[test]
fn exported_functions_are_found_at_their_default_version() {
    use SymbolSource::Dynamic;
    let workshop = Workshop::new();
    let expected = [
        ("chosen".to_owned(), 0x17, Dynamic, true, true),
        // It has no default version: the old one is found.
        ("gone".to_owned(), 0x14, Dynamic, false, true),
        ("plain".to_owned(), 0x11, Dynamic, false, true),
        ("twice".to_owned(), 0x13, Dynamic, false, true),
        ("weak_one".to_owned(), 0x15, Dynamic, false, true),
    ];
    assert_eq!(facts(&library(&workshop), &NAMES, Search::Exported), expected);
}

#[test]
fn local_functions_are_found_on_request() {
    let workshop = Workshop::new();
    let library = library(&workshop);
    let expected = [("hidden_away".to_owned(), 0x16, SymbolSource::Static, false, false)];
    assert_eq!(facts(&library, &["hidden_away"], Search::Everything), expected);
    assert_eq!(facts(&library, &["hidden_away"], Search::Exported), []);
    workshop.run("strip", &["library"]);
    assert_eq!(facts(&library, &["hidden_away"], Search::Everything), []);
    assert_eq!(facts(&library, &["twice"], Search::Everything)[0].1, 0x13);
}

/// A program of one function, and its name.
const PROGRAM: &str = r#"
    .text
    .globl _start, plain
    _start: jmp _start
    .type plain, @function
    plain: .byte 0x11
    .size plain, 1
    .section .note.GNU-stack,"",@progbits
"#;

#[test]
fn functions_of_a_stripped_static_program_are_those_of_its_debug_file() {
    let expected = [("plain".to_owned(), 0x11, SymbolSource::Static, false, true)];
    for (of_debug_file, is_found) in [("0x1234", true), ("0x5678", false)] {
        let workshop = Workshop::new();
        let compile = |build_id: &str| {
            let build_id = format!("-Wl,--build-id={build_id}");
            workshop.compile("gcc", "program.s", PROGRAM, &["-static", "-nostdlib", &build_id])
        };
        compile(of_debug_file);
        workshop.run("objcopy", &["--only-keep-debug", "program", "program.debug"]);
        let program = compile("0x1234");
        workshop.run("strip", &["program"]);
        assert_eq!(facts(&program, &["plain"], Search::Exported), [], "it is stripped");
        workshop.run("objcopy", &["--add-gnu-debuglink=program.debug", "program"]);
        let found = facts(&program, &["plain"], Search::Exported);
        assert_eq!(found, if is_found { &expected[..] } else { &[] }, "build id {of_debug_file}");
    }
}

#[test]
fn versions_in_symtab_are_read() {
    let workshop = Workshop::new();
    library(&workshop);
    // Only `.symtab` is used.
    let bytes = std::fs::read(workshop.path("library")).expect("readable");
    let elf = Elf::read(&Image::from_bytes(&bytes).expect("memory")).expect("an ELF file");
    let table = Table::read(&Image::from_bytes(&bytes).expect("memory"), &elf, SymbolSource::Static).expect("a table");
    let symbols = slice_from_all_bytes::<Sym64<LE>>(&table.symbols).expect("whole symbols");
    let named: Vec<_> = symbols
        .iter()
        .filter_map(|symbol| table.name(symbol.st_name.get(LE), 10))
        .filter(|(name, _)| matches!(*name, b"twice" | b"gone"))
        .map(|(name, default)| (String::from_utf8_lossy(name).into_owned(), default))
        .collect();
    for expected in [("twice", true), ("twice", false), ("gone", false)] {
        assert!(named.contains(&(expected.0.to_owned(), expected.1)), "{expected:?} in {named:?}");
    }
}

#[test]
fn undefined_symbols_are_imports() {
    let workshop = Workshop::new();
    let source = "#include <stdio.h>\nint listed(void) { return puts(\"\"); }\nint main(void) { return listed(); }\n";
    let program = workshop.compile("gcc", "program.c", source, &["-rdynamic"]);
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(&program).expect("it is there");
    for (names, expected) in [(&["gets", "puts"][..], true), (&["gets"], false), (&["listed"], false), (&[], false)] {
        let symbols = Symbols::of(modules.get(id), &["listed"], names, Search::Exported).expect("an ELF file");
        assert_eq!((symbols.imports, symbols.functions.len()), (expected, 1), "{names:?}");
    }
}

#[test]
fn symtab_of_a_static_program_is_always_searched() {
    let workshop = Workshop::new();
    let source = "#include <stdlib.h>\nint main(int n, char **v) { free(malloc(n)); return v == 0; }\n";
    let program = workshop.compile("gcc", "program.c", source, &["-static"]);
    let found = facts(&program, &["malloc", "free", "main"], Search::Exported);
    let names: Vec<&str> = found.iter().map(|facts| &*facts.0).collect();
    assert_eq!(names, ["free", "main", "malloc"]);
    assert!(found.iter().all(|facts| facts.2 == SymbolSource::Static && facts.4));
}

#[test]
fn the_c_library_defines_malloc() {
    let mut modules = ModuleStore::default();
    let id = modules.intern_path("/lib/x86_64-linux-gnu/libc.so.6".as_ref()).expect("glibc is here");
    let found = defined_functions(modules.get(id), &["malloc", "free", "memcpy"], Search::Exported).expect("readable");
    let facts: Vec<(&str, bool)> = found.iter().map(|function| (&*function.name, function.indirect)).collect();
    assert_eq!(facts, [("free", false), ("malloc", false), ("memcpy", true)]);
    assert!(found.iter().all(|function| function.size_bytes > 0));
}

#[test]
fn mangled_names_of_the_rust_compiler_are_recognised() {
    let check = |mangled: &str, expected: Option<&str>| {
        let name = plain_name(mangled.as_bytes()).map(|name| std::str::from_utf8(name).expect("ASCII"));
        assert_eq!(name, expected, "{mangled}");
    };
    check("_RNvCsgl0yn9Ytt7z_7___rustc12___rust_alloc", Some("__rust_alloc"));
    check("_RNvCs5QKde7ScR4_7___rustc19___rust_alloc_zeroed", Some("__rust_alloc_zeroed"));
    check("_RNvCs5QKde7ScR4_7___rustc12___rust_alloc.llvm.1", None);
    check("_RNvCs5QKde7ScR4_5other12___rust_alloc", None);
    check("_RNvC7___rustc99999999999999999999999x", None);
    check("__rust_alloc", None);
}

#[test]
fn a_rust_program_defines_the_compilers_functions() {
    let workshop = Workshop::new();
    let source = "fn main() { println!(\"{:?}\", std::env::args().collect::<Vec<String>>()); }\n";
    let program = workshop.compile("rustc", "program.rs", source, &["--edition=2021"]);
    let found = facts(&program, &["__rust_alloc", "__rust_dealloc"], Search::Everything);
    let names: Vec<&str> = found.iter().map(|facts| &*facts.0).collect();
    assert_eq!(names, ["__rust_alloc", "__rust_dealloc"]);
}
