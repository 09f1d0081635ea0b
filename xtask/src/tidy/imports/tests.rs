//! What may be imported, and every way to write an import.

use super::super::found;
use super::*;

fn check_found(path: &str, text: &str, expected: &[&str]) {
    let messages: Vec<_> = found(check, path, text)
        .iter()
        .map(|finding| finding.split(':').next().unwrap_or_default().to_owned() + " " + used(finding))
        .collect();
    assert_eq!(messages, expected, "{path}: {text}");
}

/// The path that a finding names.
fn used(finding: &str) -> &str {
    finding.split("may not use `").nth(1).and_then(|rest| rest.split('`').next()).unwrap_or(finding)
}

#[test]
fn allowed_imports() {
    check_found("profiler/src/snapshot/live.rs", "use crate::object::Image;\nuse crate::process::Process;\n", &[]);
    check_found("profiler/src/snapshot/live.rs", "use super::totals::Totals;\nuse crate::snapshot::totals;\n", &[]);
    check_found("profiler/src/symbolize/mod.rs", "use crate::snapshot::{Frame, Profile};\n", &[]);
    check_found("profiler/src/session.rs", "use crate::{bpf, snapshot::live::*, probe::Prober};\n", &[]);
    check_found("profiler/src/main.rs", "fn main() { heapbpf::cli::run() }\n", &[]);
    check_found("xtask/src/main.rs", "use crate::anything;\n", &[]);
}

#[test]
fn forbidden_imports() {
    check_found("profiler/src/snapshot/live.rs", "use std::fs;\nuse crate::bpf::load;\n", &["2 bpf::load"]);
    check_found("profiler/src/snapshot/mod.rs", "fn f() -> crate::bpf::Map { todo() }\n", &["1 bpf::Map"]);
    check_found(
        "profiler/src/http/json.rs",
        "use crate::{http::Client, bpf::{load, maps}};\n",
        &["1 bpf::load", "1 bpf::maps"],
    );
    check_found("profiler/src/http/json.rs", "m! { x(crate::bpf::f()) }\n", &["1 bpf::f"]);
    check_found("profiler/src/symbolize/mod.rs", "use crate::top::json::Json;\n", &["1 top::json::Json"]);
    check_found("profiler/src/symbolize/mod.rs", "use crate::top;\n", &["1 top"]);
    check_found("profiler/src/session.rs", "use crate::cli::Args;\n", &["1 cli::Args"]);
    check_found("profiler/src/bpf/mod.rs", "use crate::probe::*;\n", &["1 probe"]);
}

#[test]
fn ways_up() {
    check_found("profiler/src/snapshot/live.rs", "use super::super::bpf::load;\n", &["1 bpf::load"]);
    check_found("profiler/src/snapshot/mod.rs", "use super::bpf::load;\n", &["1 bpf::load"]);
    check_found("profiler/src/snapshot/mod.rs", "mod a { use super::super::bpf; use super::b; }\n", &["1 bpf"]);
}

#[test]
fn paths_of_others_are_theirs() {
    check_found("profiler/src/snapshot/mod.rs", "use other::bpf::crate_name;\nuse object::read;\n", &[]);
    check_found("profiler/src/snapshot/mod.rs", "fn f(x: Option<crate::bpf::Map>) {}\n", &["1 bpf::Map"]);
    check_found("profiler/src/snapshot/mod.rs", "fn f(x: std::vec::Vec<crate::bpf::Map>) {}\n", &["1 bpf::Map"]);
}

#[test]
fn tests_import_anything() {
    check_found("profiler/src/snapshot/tests.rs", "use crate::bpf;\n", &[]);
    check_found(
        "profiler/src/snapshot/mod.rs",
        "#[cfg(test)]\nmod tests { use crate::bpf; }\nuse crate::bpf;\n",
        &["3 bpf"],
    );
}

#[test]
fn modules_without_a_line() {
    let findings = found(check, "profiler/src/novelty/mod.rs", "");
    assert_eq!(findings, ["1: `novelty` has no line in xtask/src/tidy/imports.rs"]);
    check_found("profiler/src/snapshot/mod.rs", "use crate::novelty::Thing;\n", &["1 novelty::Thing"]);
    check_found("profiler/src/snapshot/mod.rs", "use crate::Thing;\n", &[]);
}

#[test]
fn the_table_is_ordered_and_complete() {
    for (row, (module, uses)) in LAYERS.iter().enumerate() {
        for used in uses.split_whitespace().filter(|used| *used != ALL_ABOVE) {
            let name = used.split("::").next().unwrap_or_default();
            let used_row = LAYERS.iter().position(|(module, _)| *module == name);
            // A path into a module is the one way to use something of a later line.
            assert!(used_row.is_some_and(|used_row| used_row < row || used.contains("::")), "{module} uses {used}");
        }
    }
}

const LIB: (&str, &str) = ("profiler/src/lib.rs", "mod a; mod b; mod c;");

fn check_cycles(files: &[(&str, &str)], expected: &[&str]) {
    let sources: Vec<_> = [LIB].iter().chain(files).map(|(path, text)| Source::parse(path, text)).collect();
    let sources: Vec<_> = sources.into_iter().map(|source| source.expect("samples parse")).collect();
    let found: Vec<_> = cycles(&sources).into_iter().map(|finding| finding.to_string()).collect();
    assert_eq!(found, expected, "{files:?}");
}

#[test]
fn cycles_between_folders() {
    let a = ("profiler/src/a/mod.rs", "mod x;\npub(crate) use x::X;");
    let x = ("profiler/src/a/x.rs", "use crate::b::B;");
    let to_c = ("profiler/src/b.rs", "fn f() { crate::c::g() }");
    check_cycles(&[a, x, to_c, ("profiler/src/c.rs", "")], &[]);
    let back = ("profiler/src/c.rs", "\nuse crate::a::X;");
    check_cycles(&[a, x, to_c, back], &["profiler/src/a/x.rs:1: cycle between folders: a → b → c → a"]);
    let in_test = ("profiler/src/c.rs", "#[cfg(test)]\nmod tests { use crate::a::X; }");
    check_cycles(&[a, x, to_c, in_test], &[]);
}

#[test]
fn cycles_between_files_of_a_folder() {
    let cycle = &["profiler/src/a/x.rs:1: cycle between files: a/x → a/y → a/x"];
    let a = |text| ("profiler/src/a/mod.rs", text);
    let x = |text| ("profiler/src/a/x.rs", text);
    let y = |text| ("profiler/src/a/y.rs", text);
    check_cycles(&[a("mod x; mod y;"), x("use super::y::Y;"), y("use crate::a::x::X;")], cycle);
    // Through a re-export, and through the name of a module.
    check_cycles(&[a("mod x; mod y; pub(super) use x::X;"), x("use super::y;\nfn f() {}"), y("use super::X;")], &[]);
    check_cycles(&[a("mod x; mod y; pub(super) use x::X;"), x("fn f() { super::y::g() }"), y("use super::X;")], cycle);
    let by_name = ["profiler/src/a/x.rs:2: cycle between files: a/x → a/y → a/x"];
    check_cycles(&[a("mod x; mod y; use x::X;"), x("use super::y;\nfn f() { y::g() }"), y("use super::X;")], &by_name);
}

#[test]
fn parents_and_children() {
    let x = ("profiler/src/a/x.rs", "use super::Shared;");
    check_cycles(&[("profiler/src/a/mod.rs", "mod x;\npub(crate) use x::X;\nstruct Shared;"), x], &[]);
    let parent = ("profiler/src/a/mod.rs", "mod x;\nuse x::X;\nstruct Shared;");
    check_cycles(&[parent, x], &["profiler/src/a/mod.rs:2: cycle between files: a → a/x → a"]);
    let in_tests = ("profiler/src/a/mod.rs", "#[cfg(test)]\nmod x;\nfn f() { x::g() }\nstruct Shared;");
    check_cycles(&[in_tests, x], &[]);
}
