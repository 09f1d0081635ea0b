//! Stripping, on an object small enough to be written here.

use object::read::elf::{ElfFile64, FileHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _};

use super::*;

/// An object for BPF with code, a map section, BTF, and DWARF whose relocations refer to section symbols.
fn linked(debug_text: &[u8]) -> Vec<u8> {
    use object::write::{Object, Relocation, Symbol, SymbolSection};
    use object::{Architecture, BinaryFormat, RelocationFlags, SectionKind, SymbolFlags, SymbolKind, SymbolScope};

    let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, object::Endianness::Little);
    let code = object.add_section(Vec::new(), b"uprobe".to_vec(), SectionKind::Text);
    object.append_section_data(code, &[0x95, 0, 0, 0, 0, 0, 0, 0], 8);
    object.add_symbol(Symbol {
        name: b"alloc".to_vec(),
        value: 0,
        size: 8,
        kind: SymbolKind::Text,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Section(code),
        flags: SymbolFlags::None,
    });
    let btf = object.add_section(Vec::new(), b".BTF".to_vec(), SectionKind::Other);
    object.append_section_data(btf, b"types", 1);
    let text = object.add_section(Vec::new(), b".debug_str".to_vec(), SectionKind::Debug);
    object.append_section_data(text, debug_text, 1);
    let text_symbol = object.section_symbol(text);
    let info = object.add_section(Vec::new(), b".debug_info".to_vec(), SectionKind::Debug);
    object.append_section_data(info, &[0; 16], 1);
    let flags = RelocationFlags::Elf { r_type: object::elf::R_BPF_64_64 };
    object.add_relocation(info, Relocation { offset: 0, symbol: text_symbol, addend: 0, flags }).expect("is in range");
    object.write().expect("is complete")
}

#[test]
fn dwarf_goes_and_the_rest_stays() {
    let stripped = publish(&linked(b"some/file.rs\0"), &[]).expect("nothing private");
    let file = ElfFile64::<Endianness>::parse(&*stripped).expect("is an object");
    let names: Vec<_> = file.sections().filter_map(|section| section.name().ok().map(String::from)).collect();
    assert!(names.iter().any(|name| name == "uprobe") && names.iter().any(|name| name == ".BTF"), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("debug")), "{names:?}");
    let machine = file.elf_header().e_machine(Endianness::Little);
    assert_eq!(machine, object::elf::EM_BPF);
    let code = file.section_by_name("uprobe").expect("seen above");
    assert_eq!(code.data().expect("has bytes"), [0x95, 0, 0, 0, 0, 0, 0, 0]);
    let program = file.symbol_by_name("alloc").expect("the loader finds programs by name");
    assert_eq!((program.section_index(), program.size()), (Some(code.index()), 8));
}

#[test]
fn private_paths_count_only_where_they_stay() {
    let private = ["/somebodys/folder".to_owned()];
    assert!(publish(&linked(b"/somebodys/folder/main.rs\0"), &private).is_ok(), "was in the DWARF");
    let error = publish(&linked(b""), &["uprobe".to_owned()]).expect_err("is the name of a section");
    assert!(error.to_string().contains("`uprobe`"), "{error}");
}

#[test]
fn each_architecture_has_an_object_and_flags_of_its_own() {
    let root = command::root().expect("the repository is there");
    for architecture in ARCHITECTURES {
        let object = fs::read(root.join(committed(architecture))).expect("is committed");
        let file = ElfFile64::<Endianness>::parse(&*object).expect("is an object");
        assert_eq!(file.elf_header().e_machine(Endianness::Little), object::elf::EM_BPF);
        let flag = format!("--cfg=bpf_target_arch=\"{}\"", architecture.name());
        assert!(rustflags(architecture).split('\u{1f}').any(|given| given == flag), "{flag}");
    }
}

fn check(given: &str, package: Option<(&str, &str)>, expected: &str) {
    let package = package.map(|(name, folder)| (format!("{name}-0.2.1"), folder.to_owned()));
    let remaps = [Remap::new(Path::new("/repo"), ".."), Remap::new(Path::new("/home/.cargo"), "cargo")];
    let given: Vec<_> = given.split_whitespace().map(String::from).collect();
    assert_eq!(arguments(&given, package, &remaps).join(" "), expected);
}

#[test]
fn folders_are_removed_for_the_bpf_target() {
    check(
        "--crate-name aya_ebpf -C metadata=abc -C extra-filename=-abc --target bpfel-unknown-none",
        Some(("aya-ebpf", "/home/.cargo/registry/src/index-1/aya-ebpf-0.2.1")),
        "--crate-name aya_ebpf -C metadata=aya-ebpf-0.2.1 -C extra-filename=-abc --target bpfel-unknown-none \
         --remap-path-prefix=/home/.cargo=cargo \
         --remap-path-prefix=/home/.cargo/registry/src/index-1/aya-ebpf-0.2.1=cargo/aya-ebpf-0.2.1 \
         --remap-path-prefix=/repo=..",
    );
}

#[test]
fn other_arguments_are_not_changed() {
    let host = "--crate-name syn -C metadata=abc --target x86_64-unknown-linux-gnu";
    check(host, Some(("syn", "/home/.cargo/registry/src/index-1/syn-0.2.1")), host);
    check("-vV", None, "-vV");
    check("--print cfg --target bpfel-unknown-none", None, "--print cfg --target bpfel-unknown-none");
}

#[test]
fn remaps_are_passed_by_the_environment() {
    let remaps = vec![Remap::new(Path::new("/a b"), ".."), Remap::new(Path::new("/c"), "rust")];
    let mut command = Command::new("true");
    install(&mut command, &remaps).expect("a test has a path");
    let value = command.get_envs().find_map(|(name, value)| value.filter(|_| name == VARIABLE)).expect("just set");
    assert_eq!(parse(value.to_str().expect("UTF-8")), remaps);
}
