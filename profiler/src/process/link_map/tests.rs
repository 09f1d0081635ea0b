//! Tests with link maps of real processes, and with arbitrary memory.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use heapbpf_base::ids::ModuleId;
use proptest::prelude::*;

use super::*;
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;
use heapbpf_base::testing::{Running, Workshop};

const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";

/// A program that loads and unloads modules on command, and confirms it.
const LOADER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    char line[512];
    void *last = 0;
    puts("up"); fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        line[__builtin_strlen(line) - 1] = 0;
        if (line[0] == '+') last = dlopen(line + 1, RTLD_NOW | RTLD_LOCAL);
        else if (line[0] == '=') last = dlmopen(LM_ID_NEWLM, line + 1, RTLD_NOW);
        else { dlclose(last); last = main; }
        puts(last ? "done" : dlerror()); fflush(stdout);
    }
}
"#;

/// A program that sleeps in the system call that tests wait for; musl's `sleep` uses another.
const SLEEPER: &str = r"
    #include <stdlib.h>
    #include <time.h>
    int main(int count, char **arguments) {
        struct timespec time = { atoi(arguments[1]), 0 };
        return clock_nanosleep(CLOCK_MONOTONIC, 0, &time, 0);
    }
";

struct Loader(Child);

impl Loader {
    fn start(program: &Path, preload: &str) -> Self {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", preload).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut loader = Self(command.spawn().expect("it starts"));
        assert_eq!(loader.answer(), "up\n");
        loader
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id())
    }

    fn answer(&mut self) -> String {
        let mut line = Vec::new();
        let output = self.0.stdout.as_mut().expect("piped");
        let mut byte = [0];
        while line.last() != Some(&b'\n') {
            std::io::Read::read_exact(output, &mut byte).expect("it answers");
            line.push(byte[0]);
        }
        String::from_utf8(line).expect("text")
    }

    fn command(&mut self, command: &str) {
        let input = self.0.stdin.as_mut().expect("piped");
        std::io::Write::write_all(input, format!("{command}\n").as_bytes()).expect("it reads");
        assert_eq!(self.answer(), "done\n", "{command}");
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Returns the positions of the modules whose file names begin with these.
fn positions(pid: Pid, map: &LinkMap, names: &[&str]) -> Vec<Option<LinkPosition>> {
    let mut modules = ModuleStore::default();
    let mut space = AddressSpace::new(pid);
    space.refresh(&mut modules).expect("readable");
    let position = |id: ModuleId| {
        let first = space.mappings().iter().find(|mapped| mapped.module == Some(id)).expect("it is mapped");
        map.position(modules.get(id).bias(first.mapping.start, first.mapping.offset)?)
    };
    let named = |name: &&str| {
        let is = |id: &ModuleId| {
            Path::new(&**modules.get(*id).path())
                .file_name()
                .is_some_and(|file| file.to_str().is_some_and(|file| file.starts_with(name)))
        };
        position(space.modules().into_iter().find(is).unwrap_or_else(|| panic!("`{name}` is mapped")))
    };
    names.iter().map(named).collect()
}

fn at(index: u16) -> Option<LinkPosition> {
    Some(LinkPosition { namespace: 0, index })
}

#[test]
fn a_preloaded_allocator_comes_before_libc() {
    let workshop = Workshop::new();
    for arguments in [&["-pie", "-fPIE"][..], &["-no-pie"]] {
        let program = workshop.compile("gcc", "loader.c", LOADER, arguments);
        let loader = Loader::start(&program, JEMALLOC);
        let map = LinkMap::read(loader.pid()).expect("it has one");
        let found = positions(loader.pid(), &map, &["loader", "libjemalloc", "libc.so"]);
        assert_eq!(found[0], at(0), "{arguments:?}");
        assert!(found[0] < found[1] && found[1] < found[2], "{arguments:?}: {found:?}");
        assert!(!map.changed() && map.namespaces.iter().any(|nodes| !nodes.is_empty()));
    }
}

#[test]
fn later_loading_and_unloading_is_noticed() {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "loader.c", LOADER, &[]);
    let plugin =
        workshop.compile("gcc", "plugin.c", "int plugin;\nint use(void) { return plugin; }\n", &["-shared", "-fPIC"]);
    let plugin = plugin.to_str().expect("ASCII");
    let mut loader = Loader::start(&program, "");
    let before = LinkMap::read(loader.pid()).expect("it has one");
    loader.command(&format!("+{plugin}"));
    assert!(before.changed());
    let loaded = LinkMap::read(loader.pid()).expect("it has one");
    let found = positions(loader.pid(), &loaded, &["libc.so", "plugin"]);
    assert!(found[0] < found[1], "{found:?}");
    loader.command("-");
    assert!(loaded.changed());
    loader.command(&format!("={plugin}"));
    let map = LinkMap::read(loader.pid()).expect("it has one");
    let found = positions(loader.pid(), &map, &["plugin"]);
    assert_eq!(found, [Some(LinkPosition { namespace: 1, index: 0 })], "{map:?}");
}

#[test]
fn musl_programs_have_a_link_map() {
    let workshop = Workshop::new();
    workshop.compile("musl-gcc", "program.c", SLEEPER, &[]);
    let running = Running::sleep(&workshop.path("program"));
    let map = LinkMap::read(running.pid()).expect("it has one");
    assert_eq!(positions(running.pid(), &map, &["program", "libc.so"]), [at(0), at(1)]);
}

#[test]
fn static_and_exited_programs_have_no_link_map() {
    let workshop = Workshop::new();
    workshop.compile("gcc", "program.c", SLEEPER, &["-static"]);
    let mut running = Running::sleep(&workshop.path("program"));
    assert_eq!(LinkMap::read(running.pid()), None);
    running.end();
    assert_eq!(LinkMap::read(running.pid()), None);
}

/// Memory that consists of these words.
struct Words(HashMap<u64, u64>);

impl Memory for Words {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Option<()> {
        for (number, bytes) in (0..).zip(bytes.chunks_mut(8)) {
            bytes.copy_from_slice(&self.0.get(&address.checked_add(number * 8)?)?.to_le_bytes()[..bytes.len()]);
        }
        Some(())
    }
}

fn words(at: u64, words: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    (at..).step_by(8).zip(words.to_vec())
}

#[test]
fn inconsistent_lists_count_as_none() {
    let check = |nodes: &[(u64, [u64; 4])], expected: Option<usize>| {
        let mut memory: HashMap<u64, u64> = words(0x1000, &[1, 0x2000, 0, 0, 0]).collect();
        memory.extend(nodes.iter().flat_map(|(at, node)| words(*at, node)));
        assert_eq!(walk(&Words(memory), 0x1000).map(|namespaces| namespaces[0].len()), expected, "{nodes:x?}");
    };
    check(&[(0x2000, [0, 0, 0, 0x3000]), (0x3000, [1, 0, 0, 0])], Some(2));
    check(&[(0x2000, [0, 0, 0, 0x3000]), (0x3000, [1, 0, 0, 0x2000])], None);
    check(&[(0x2000, [0, 0, 0, 0x3000])], None);
    check(&[(0x2000, [0, 0, 0, u64::MAX])], None);
    assert_eq!(walk(&Words(words(0x1000, &[1, 0, 0, 0, 0]).collect()), 0x1000), None);
    // This namespace is cyclic and has no objects.
    assert_eq!(walk(&Words(words(0x1000, &[2, 0, 0, 0, 0, 0x1000]).collect()), 0x1000), None);
}

proptest! {
    /// The memory has few addresses, so that pointers are often valid.
    #[test]
    fn any_memory_is_walked_without_panic(
        memory in proptest::collection::vec(0u64..64, 64),
        auxv in proptest::collection::vec(any::<u8>(), 0..64),
        headers in 0u64..64,
        at in 0u64..64,
    ) {
        let memory = Words((0..).step_by(8).zip(memory.into_iter().map(|word| word * 8)).collect());
        let _ = walk(&memory, at * 8);
        let _ = Auxv::parse(&auxv).map(|auxv| find_rendezvous(&memory, &auxv));
        let auxv = [libc::AT_PHDR, headers * 8, libc::AT_PHNUM, 3, libc::AT_NULL, 0];
        let auxv: Vec<u8> = auxv.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        let _ = find_rendezvous(&memory, &Auxv::parse(&auxv).expect("it has an end"));
    }
}
