//! CPython as Debian 12 has it.

use std::path::Path;
use std::process::{Command, Stdio};

use heapbpf_linux::process_memory::read_words;
use profiler_common::interpreter::FrameChain;

use super::*;
use crate::object::module::ModuleStore;

const PYTHON: &str = "/usr/bin/python3";

fn of(path: &str) -> Option<Cpython> {
    let mut modules = ModuleStore::default();
    // A link leads to the file whose name has the version.
    let path = Path::new(path).canonicalize().expect("the tests install it");
    let id = modules.intern_path(&path).expect("it opens");
    Cpython::of(modules.get(id)).expect("it is an ELF file")
}

#[test]
fn the_loop_and_its_cold_part_are_found() {
    let python = of(PYTHON).expect("it is CPython");
    assert_eq!(python.version.as_ref().map(ToString::to_string), Ok("3.11".to_owned()));
    let [hot, cold] = python.loops.as_slice() else { panic!("{:#x?}", python.loops) };
    assert!(hot.end - hot.start > 10_000 && cold.end - cold.start > 1000, "{:#x?}", python.loops);
    assert!(hot.end <= cold.start || cold.end <= hot.start);
}

#[test]
fn other_programs_are_no_interpreters() {
    assert_eq!(of("/bin/sh"), None);
}

#[test]
fn a_running_interpreter_is_described() {
    let mut child = Command::new(PYTHON)
        .args(["-c", "import sys; print(flush=True); sys.stdin.read()"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the tests install it");
    let mut first = [0];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut first).expect("it prints a line");
    let python = of(PYTHON).expect("it is CPython");
    // Debian's program is not relocated.
    let pid = Pid(child.id());
    let interpreter = python.in_process(pid, 0, false, Some(0)).expect("it is supported");
    assert_eq!(interpreter.chain, FrameChain::Entry as u8);
    assert_eq!(interpreter.loops[0].start, python.loops[0].start);
    let word = |address: u64| read_words(pid, &[address])[0].expect("it is mapped");
    let key = word(interpreter.key & !7);
    let key = u32::try_from((key >> ((interpreter.key & 7) * 8)) & 0xffff_ffff).expect("masked");
    assert!(key < 1024, "{key}");
    drop(child.stdin.take());
    child.wait().expect("it is ours");
}
