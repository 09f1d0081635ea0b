//! Modules of files and processes.

use std::fs;
use std::io::{Read as _, Seek as _};

use heapbpf_linux::proc::maps::executable_mappings;

use super::*;
use crate::object::symbols::{Search, defined_functions};
use crate::reader::Mapped;
use heapbpf_base::testing::{Running, Workshop};

fn own_pid() -> Pid {
    Pid(std::process::id())
}

fn vdso_of(pid: Pid) -> Mapping {
    let mappings = executable_mappings(pid).expect("readable");
    let vdso = MappingName::Special("[vdso]".to_owned());
    mappings.into_iter().find(|mapping| mapping.name == vdso).expect("every process has one")
}

#[test]
fn a_file_is_one_module_under_all_its_names() {
    let workshop = Workshop::new();
    fs::copy("/bin/true", workshop.path("first")).expect("copied");
    fs::hard_link(workshop.path("first"), workshop.path("second")).expect("linked");
    fs::copy("/bin/true", workshop.path("third")).expect("copied");
    let mut modules = ModuleStore::default();
    let ids = ["first", "second", "third"].map(|name| modules.intern_path(&workshop.path(name)).expect("it opens"));
    assert_eq!(ids, [ModuleId(0), ModuleId(0), ModuleId(1)]);
    assert_eq!(&**modules.get(ids[1]).path(), workshop.path("first").to_str().expect("UTF-8"));
    assert_eq!(modules.iter().count(), 2);
}

/// A copy of a library that exports `answer`, whose table of symbols has this size in a sparse file.
fn library_with_table(workshop: &Workshop, library: &Path, name: &str, size_bytes: u64) -> PathBuf {
    let mut bytes = fs::read(library).expect("ours");
    let number = |bytes: &[u8], at: usize, length: usize| {
        bytes[at..at + length].iter().rev().fold(0_usize, |number, &byte| number << 8 | usize::from(byte))
    };
    let (headers, count) = (number(&bytes, 40, 8), number(&bytes, 60, 2));
    // `SHT_DYNSYM`
    let header = (0..count).map(|index| headers + 64 * index).find(|&at| number(&bytes, at + 4, 4) == 11);
    let header = header.expect("it exports a function");
    let (offset, size) = (number(&bytes, header + 24, 8), number(&bytes, header + 32, 8));
    let end = bytes.len();
    bytes.extend_from_within(offset..offset + size);
    bytes[header + 24..header + 32].copy_from_slice(&end.to_le_bytes());
    bytes[header + 32..header + 40].copy_from_slice(&size_bytes.to_le_bytes());
    let path = workshop.path(name);
    fs::write(&path, &bytes).expect("ours");
    fs::File::options().write(true).open(&path).and_then(|file| file.set_len(end as u64 + size_bytes)).expect("sparse");
    path
}

#[test]
fn symbol_tables_are_read_up_to_a_size_and_up_to_a_size_of_all_of_a_process() {
    const MIB: u64 = 1 << 20;
    let workshop = Workshop::new();
    let source = "int answer(void) { return 42; }";
    let library = workshop.compile("gcc", "library.c", source, &["-shared", "-fPIC"]);
    let mut modules = ModuleStore::default();
    let mut finds = |name: &str, size_bytes: u64| {
        let path = library_with_table(&workshop, &library, name, size_bytes);
        let module = modules.intern_path(&path).expect("it opens");
        defined_functions(modules.get(module), &["answer"], Search::Exported).expect("readable").len() == 1
    };
    assert!(!finds("too-large", 64 * MIB + 24));
    for name in ["first", "second", "third"] {
        assert!(finds(name, 64 * MIB), "{name}");
    }
    assert!(finds("fourth", 60 * MIB));
    assert!(!finds("fifth", 60 * MIB), "more than 256 MiB in all");
    assert!(finds("small", MIB / 2), "small ones are read in any case");
}

#[test]
fn a_rewritten_file_is_another_module() {
    let workshop = Workshop::new();
    let path = workshop.path("library");
    fs::copy("/bin/true", &path).expect("copied");
    let mut modules = ModuleStore::default();
    let before = modules.intern_path(&path).expect("it opens");
    assert!(modules.get(before).image().expect("open").unchanged());
    fs::File::options().write(true).open(&path).and_then(|file| file.set_len(100)).expect("truncated");
    assert!(!modules.get(before).image().expect("open").unchanged());
    assert_ne!(modules.intern_path(&path).expect("it opens"), before);
}

#[test]
fn pipes_and_devices_are_not_opened() {
    let workshop = Workshop::new();
    workshop.run("mkfifo", &["pipe"]);
    let mut modules = ModuleStore::default();
    // Opening a pipe without a writer would block.
    assert_eq!(modules.intern_path(&workshop.path("pipe")), Err(ObjectError::NotRegular));
    assert_eq!(modules.intern_path("/dev/zero".as_ref()), Err(ObjectError::NotRegular));
    assert_eq!(modules.intern_path(&workshop.path("nothing")), Err(ObjectError::Gone));
}

#[test]
fn the_vdso_is_a_module_with_symbols_and_shared_between_processes() {
    let child = Running::sleep("/bin/sleep".as_ref());
    let mut modules = ModuleStore::default();
    let id = modules.intern_mapping(child.pid(), &vdso_of(child.pid())).expect("a module");
    assert_eq!(modules.intern_mapping(own_pid(), &vdso_of(own_pid())), Some(id));
    let module = modules.get(id);
    assert_eq!(&**module.path(), "[vdso]");
    let found = defined_functions(module, &["__vdso_clock_gettime"], Search::Exported).expect("an ELF image");
    assert_eq!(found.len(), 1, "{found:?}");
}

fn read(module: &Module) -> Vec<u8> {
    let image = module.image().expect("it is open");
    image.read(FileOffset(0), image.identity().size_bytes, u64::MAX).expect("readable")
}

#[test]
fn a_deleted_file_is_opened_through_its_mapping() {
    let workshop = Workshop::new();
    let path = workshop.path("sleeper");
    fs::copy("/bin/sleep", &path).expect("copied");
    let child = Running::sleep(&path);
    fs::remove_file(&path).expect("deleted");
    fs::write(&path, "something else has the name now").expect("writable");
    let mapping = executable_mappings(child.pid()).expect("readable").remove(0);
    assert_eq!(mapping.name, MappingName::File { path: path.clone(), deleted: true });

    let mut modules = ModuleStore::default();
    let id = modules.intern_mapping(child.pid(), &mapping).expect("a module");
    let reached = read(modules.get(id));
    assert!(reached == fs::read("/bin/sleep").expect("readable"), "another file was opened");
    assert_eq!(&**modules.get(id).path(), path.to_str().expect("UTF-8"));

    // Without the mapping's entry, the path leads to another file, which is rejected.
    let moved = Mapping { end: TargetAddr(mapping.end.0 + 0x1000), ..mapping };
    let id = modules.intern_mapping(child.pid(), &moved).expect("a module");
    assert_eq!(modules.get(id).elf(), Err(&ObjectError::Gone));
}

#[test]
fn without_the_mappings_entry_the_file_is_opened_by_its_path() {
    let workshop = Workshop::new();
    let path = workshop.path("sleeper");
    fs::copy("/bin/sleep", &path).expect("copied");
    let child = Running::sleep(&path);
    let mapping = executable_mappings(child.pid()).expect("readable").remove(0);
    let mut modules = ModuleStore::default();
    let by_entry = modules.intern_mapping(child.pid(), &mapping).expect("a module");
    let moved = Mapping { end: TargetAddr(mapping.end.0 + 0x1000), ..mapping };
    assert_eq!(modules.intern_mapping(child.pid(), &moved), Some(by_entry));
}

#[test]
fn files_of_other_file_systems_are_read_in_copies_or_parts() {
    // Not in the list of file systems that answer by themselves.
    let path = Path::new("/sys/kernel/notes");
    let bytes = fs::read(path).expect("the kernel has a build id");
    let copy = image::open_recorded(path).expect("it is readable");
    let root = fs::File::open("/").expect("it is readable");
    let parts = image::open_by_reader(None, Mapped::At(&root, path)).expect("it is readable");
    assert_eq!((copy.is_whole(), parts.is_whole()), (true, false));
    assert_eq!(copy.identity(), parts.identity());
    for image in [copy, parts] {
        assert!(image.is_distant() && image.unchanged());
        let last = bytes.len() as u64 - 4;
        for offset in [0, 4, last, 8] {
            let found = image.read(FileOffset(offset), 4, 4).expect("in the file");
            let start = usize::try_from(offset).expect("small");
            assert_eq!(found, bytes[start..start + 4], "at {offset}");
        }
        assert_eq!(image.read(FileOffset(last), 5, 5), Err(ObjectError::Malformed("a range ends behind the file")));
        let mut sealed = Vec::new();
        let mut copy = image.sealed_copy(1 << 20).expect("it is small");
        copy.rewind().expect("memory");
        copy.read_to_end(&mut sealed).expect("memory");
        assert_eq!(sealed, bytes);
        // Closing what is not opened asks no file system.
        let flags = rustix::fs::fcntl_getfl(image.original()).expect("open");
        assert!(flags.contains(rustix::fs::OFlags::PATH));
    }
}
