//! Invalid hooks, and hooks that are not found.

use std::fs;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, text};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::Target;

use super::{POOL, heapbpf, hooks, linked};

const WRONG_USAGE: i32 = 2;

#[track_caller]
fn check(arguments: &[&str], parts: &[&str]) {
    let mut heapbpf = Heapbpf::new(["--pid", "1"].iter().chain(arguments));
    let text = heapbpf.run().expect_error(WRONG_USAGE);
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing from:\n{text}");
    }
    assert_eq!(heapbpf.files(), Vec::<String>::new());
}

#[test]
fn errors_in_hooks_are_reported() {
    let check = |hook: &str, parts: &[&str]| check(&["--hook", hook], &[&[hook], parts].concat());
    check("x.so:f", &["missing `(`"]);
    check("f(size=arg1, ptr=ret)", &["`f` specifies no module"]);
    check(":f(size=arg1, ptr=ret)", &["module is missing"]);
    check("x.so:f(size=arg1, ptr=ret", &["missing `)`"]);
    check("x.so:f(size=arg7, ptr=ret)", &["`arg7` is not a valid argument", "^^^^"]);
    check("x.so:f(size=arg0, ptr=ret)", &["`arg0` is not a valid argument"]);
    check("x.so:f(length=arg1, ptr=ret)", &["unknown key `length`", "^^^^^^"]);
    check("x.so:f(size=arg1, size=arg2, ptr=ret)", &["duplicate `size`"]);
    check("x.so:f(size=arg1)", &["missing block"]);
    check("x.so:f(ptr=ret)", &["missing `size`"]);
    check("x.so:f(size=arg1, ptr=arg2)", &["`ptr=arg2` requires `entry`", "`ptr=*arg2`"]);
    check("x.so:f(size=arg1, ptr=*arg9)", &["`arg9` is not a valid argument"]);
    check("x.so:f(size=arg1, ptr=ret, fast)", &["`fast` is neither"]);
    check("x.so:f(old=arg1, size=arg2)", &["a function that frees has only `old`"]);
    check("x.so:operator new(size=arg1, ptr=ret)", &["`operator new` is not a function's symbol"]);
    check("mmap=x.so:f(size=arg1, ptr=ret)", &["`mmap` is reserved"]);
    check("a b=x.so:f(size=arg1, ptr=ret)", &["`a b` is not a valid heap name"]);
    check("x.so:f(size=arg1, ptr=ret)@lots", &["`lots` is not an interval"]);
    check("x.so:f(size=arg1, ptr=ret) twice", &["unexpected `twice` after the function"]);
    check("x.so:f(old=arg1, frees-on-failure)", &["`frees-on-failure` requires"]);
}

#[test]
fn errors_in_files_are_reported() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let path = folder.path().join("hooks.toml");
    let name = path.display().to_string();
    let check = |text: &str, parts: &[&str]| {
        fs::write(&path, text).expect("the folder is ours");
        check(&["--hooks", &name], &[&[name.as_str()], parts].concat());
    };
    let heap = "[[heap]]\nname = \"x\"\nmodules = [\"x.so\"]\n";
    check("heap = [", &["line 1"]);
    check("", &["heap"]);
    check("[[heap]]\nname = \"x\"\n", &["modules"]);
    check(heap, &["functions"]);
    check(&format!("{heap}functions = []\n"), &["at least one of each"]);
    check(
        &format!("{heap}functions = [\"f(size=arg8, ptr=ret)\"]\n"),
        &["heap `x`", "`arg8` is not a valid argument", "^^^^"],
    );
    check(&format!("{heap}functions = [\"f(old=arg1)\"]\ncolour = 1\n"), &["line 5", "colour"]);
    check(&format!("{heap}functions = [\"f(old=arg1)\"]\ninterval = \"0\"\n"), &["`0` is not an interval"]);
    check("[[heap]]\nname = \"all\"\nmodules = [\"*\"]\nfunctions = [\"f(old=arg1)\"]\n", &["`all` is reserved"]);
}

#[test]
fn missing_files_and_invalid_intervals_are_reported() {
    check(&["--hooks", "cudart"], &["`cudart` is neither a built-in spec", "cpython, cuda"]);
    check(&["--hooks", "/nowhere/pool.toml"], &["`/nowhere/pool.toml`", "No such file"]);
    check(&["--heap-interval", "pool"], &["`pool` is not `NAME=BYTES`"]);
    check(&["--heap-interval", "pool=0"], &["`0` is not an interval"]);
}

/// Profiles a target without such functions. Expects exit code 3 and these lines in the summary.
#[track_caller]
fn incomplete(target: &mut Target, hooks: &[String], lines: &[String]) {
    let mut heapbpf = heapbpf(target.pid(), "--interval 1", hooks);
    let session = heapbpf.start();
    target.work("go");
    let outcome = session.interrupt().expect_code(3);
    assert!(outcome.stderr.contains("no function `"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("health: incomplete: "), "{}", outcome.stdout);
    for line in lines {
        assert!(outcome.stdout.lines().any(|said| said.trim() == line), "no `{line}` in\n{}", outcome.stdout);
    }
    let report = text(&heapbpf.file("out.json"));
    assert!(report.contains("\"unfound\":[{\"heap\":\"pool\""), "{report:.2000}");
}

#[test]
fn missing_functions_are_reported_and_the_profile_is_incomplete() {
    let mut target = Target::spawn(&mut Command::new(linked().build()));
    let pid = target.pid();
    let mut all = hooks("pool", "");
    all.extend(["--hook".to_owned(), "pool=pool:pool_steal(old=arg1)".to_owned()]);
    let line = format!("pool: no function `pool_steal` in any module `pool` of process {pid}");
    incomplete(&mut target, &all, &[line]);
    let any = ["--hook".to_owned(), "pool=*:pool_steal(old=arg1)".to_owned()];
    let line = format!("pool: no function `pool_steal` in any module of process {pid}");
    incomplete(&mut target, &any, &[line]);
    let line = format!("pool: no function `pool_get` in any module `libpool.so*` of process {pid}");
    incomplete(&mut target, &hooks("libpool.so*", ""), &[line]);
}

#[test]
fn missing_functions_of_a_stripped_program_are_reported() {
    let mut target = Target::spawn(&mut Command::new(Recipe::of("pooled.c").flags("-DINSIDE -s").build()));
    let pid = target.pid();
    let lines = POOL.map(|function| {
        let name = function.split('(').next().unwrap_or_default();
        format!("pool: no function `{name}` in any module `pooled` of process {pid}")
    });
    incomplete(&mut target, &hooks("pooled", ""), &lines);
}

#[test]
fn a_missing_heap_that_is_the_only_one_selected_is_an_error() {
    let target = Target::spawn(&mut Command::new(linked().build()));
    let text = heapbpf(target.pid(), "--heap pool", &hooks("libpool.so*", "")).run().expect_error(1);
    assert!(text.contains("available: `libc`") && text.contains("--heap"), "{text}");
}
