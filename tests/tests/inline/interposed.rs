//! Allocators in front of the C library's: linked, preloaded, and in a library or namespace of its own. No block may be freed by
//! another allocator than the one that made it; the programs verify that, and abort otherwise.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::{Target, copy_program};

use super::{EXACT, assert_unharmed, start};

const PRELOADED: [&str; 3] = ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2.0"];

fn wrapper() -> PathBuf {
    Recipe::of("wrapping.c").flags("-shared -fPIC -O2").libraries("-ldl").build()
}

/// The values of `LD_PRELOAD`.
fn preloaded() -> Vec<String> {
    PRELOADED.map(str::to_owned).into_iter().chain([wrapper().display().to_string()]).collect()
}

/// Runs a command through heapbpf, with its interval, and fails unless the command exits with 0 and prints the text.
#[track_caller]
fn check_launched(interval: &str, words: &[&str], printed: &str) {
    let arguments = ["--engine", "inline", "--interval", interval, "-o", "out.json", "--"];
    let outcome = Heapbpf::new(arguments.iter().chain(words)).run().expect_code(0);
    assert!(outcome.stdout.contains(printed), "{words:?}: {outcome:?}");
}

#[track_caller]
fn check_preloaded(libraries: &[String], words: &[&str], printed: &str) {
    for library in libraries {
        let preload = format!("LD_PRELOAD={library}");
        let words: Vec<&str> = ["env", &preload].iter().chain(words).copied().collect();
        check_launched("64KiB", &words, printed);
    }
}

#[test]
fn a_launched_program_linked_with_an_allocator() {
    for library in ["-ljemalloc", "-ltcmalloc_minimal", "-lmimalloc"] {
        let program = Recipe::of("interposed.c").libraries(&format!("-Wl,--no-as-needed {library}")).build();
        for interval in ["1", "512KiB"] {
            check_launched(interval, &[&program.display().to_string(), "100"], "interposed: 100 rounds");
        }
    }
}

#[test]
fn a_launched_program_with_a_preloaded_allocator() {
    let program = Recipe::of("interposed.c").build();
    check_preloaded(&preloaded(), &[&program.display().to_string(), "100"], "interposed: 100 rounds");
}

#[test]
fn launched_python_with_a_preloaded_allocator() {
    check_preloaded(
        &preloaded(),
        &["/usr/bin/python3", "-c", "print('sum', sum(len(str(i) * 9) for i in range(9999)))"],
        "sum 349974",
    );
}

/// Without the wrapper, which has no posix_memalign: Node.js does not run with it.
#[test]
fn launched_node_with_a_preloaded_allocator() {
    let script = "let s = 0; for (let i = 0; i < 9999; i++) s += Buffer.alloc(1000, i & 63)[5]; console.log('sum', s)";
    check_preloaded(&PRELOADED.map(str::to_owned), &["node", "-e", script], "sum 314601");
}

/// heapbpf finds the process as soon as it exists, before its modules are loaded.
#[test]
fn a_program_found_by_its_name_with_a_preloaded_allocator() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    for (number, library) in preloaded().into_iter().enumerate() {
        let program = folder.path().join(format!("interposed-{number}-{}", std::process::id()));
        copy_program(Recipe::of("interposed.c").build(), &program);
        let name = program.file_name().and_then(|name| name.to_str()).expect("plain");
        let arguments = ["--engine", "inline", "--interval", "1", "-o", "out.json", "--cmdline", name];
        let mut heapbpf = Heapbpf::new(arguments);
        let session = heapbpf.start();
        for _ in 0..3 {
            let mut command = Command::new(&program);
            let output = command.arg("100").env("LD_PRELOAD", &library).stdin(Stdio::null()).output();
            let output = output.expect("it was built");
            assert!(output.status.success(), "{library}: {output:?}");
        }
        let outcome = session.interrupt();
        assert!(matches!(outcome.status.code(), Some(0 | 3)), "{outcome:?}");
    }
}

/// Blocks of both allocators are made before, during and after the recording, and freed later.
#[track_caller]
fn check_separate(how: &str, libraries: &str) {
    let program = Recipe::of("separate.c").libraries("-ldl").build();
    // An allocator's thread-local variables need room that the loader reserves for initial libraries.
    let tunables = "glibc.rtld.optional_static_tls=8192";
    let mut target = Target::spawn(Command::new(program).env("GLIBC_TUNABLES", tunables));
    let library = Recipe::of("separated.c").flags("-shared -fPIC -Wl,-z,lazy").libraries(libraries).build();
    target.work(&format!("{how} {}", library.display()));
    target.work("keep 3000 200");
    for _ in 0..2 {
        let (_heapbpf, session) = start(&target, EXACT);
        target.work("free");
        target.work("keep 500 200");
        let _ = session.interrupt().expect_counted();
        target.work("free");
        target.work("keep 100 200");
    }
    target.work("free");
    assert_unharmed(&mut target);
    target.exit(0);
}

#[test]
fn a_library_bound_to_its_own_allocator() {
    check_separate("deep", "-Wl,--no-as-needed -ljemalloc");
}

#[test]
fn a_library_in_a_namespace_of_its_own() {
    check_separate("namespace", "");
}
