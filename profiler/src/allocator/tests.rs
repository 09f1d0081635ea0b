//! The tables, held against each other and against the libraries that distributions ship.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use profiler_common::hook::CallShape;

use super::hook_set::HookSet;
use super::resolve::{resolve, symbols};
use super::selection::HeapSelection;
use super::spec::HookSpec;
use super::{cxx, jemalloc, libc, mimalloc, rust, tcmalloc};
use crate::object::fixture::{Running, Workshop};
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;
use crate::process::definitions::Definitions;
use crate::process::link_map::LinkMap;

fn tables() -> Vec<(&'static str, &'static [HookSpec])> {
    let mut tables = vec![
        ("libc", libc::FUNCTIONS),
        ("libc's second names", libc::SECOND_NAMES),
        ("C++", cxx::FUNCTIONS),
        ("jemalloc", jemalloc::FUNCTIONS),
        ("gperftools", tcmalloc::FUNCTIONS),
        ("Google's tcmalloc", tcmalloc::GOOGLE_FUNCTIONS),
        ("mimalloc", mimalloc::FUNCTIONS),
        ("Rust", rust::FUNCTIONS),
    ];
    tables.extend(jemalloc::PREFIXED.iter().map(|table| ("jemalloc with a prefix", *table)));
    tables
}

#[test]
fn shapes_have_the_arguments_they_need() {
    for (table, spec) in tables().iter().flat_map(|(table, specs)| specs.iter().map(move |spec| (table, spec))) {
        assert_eq!(spec.pointer.is_some(), spec.shape != CallShape::Alloc, "{table}: {}", spec.function);
        let arguments = [Some(spec.size).filter(|_| spec.shape != CallShape::Free), spec.count, spec.pointer];
        let given: Vec<usize> = arguments.into_iter().flatten().collect();
        let distinct: BTreeSet<usize> = given.iter().copied().collect();
        assert_eq!(distinct.len(), given.len(), "{table}: {} uses an argument twice", spec.function);
        assert!(given.iter().all(|&argument| argument < 6), "{table}: {}", spec.function);
    }
}

#[test]
fn a_function_is_in_one_table() {
    let mut seen = BTreeMap::new();
    for (table, spec) in tables().into_iter().flat_map(|(table, specs)| specs.iter().map(move |spec| (table, spec))) {
        if let Some(before) = seen.insert(spec.function, table) {
            panic!("`{}` is in {before} and in {table}", spec.function);
        }
    }
}

#[test]
fn operators_that_throw_are_told_from_those_that_do_not() {
    for spec in cxx::FUNCTIONS {
        let is_new = spec.function.starts_with("_Znw") || spec.function.starts_with("_Zna");
        assert_eq!(spec.may_throw, is_new && !spec.function.contains("nothrow"), "{}", spec.function);
        assert_eq!(spec.shape == CallShape::Alloc, is_new, "{}", spec.function);
    }
}

/// Parts of the names of functions that allocate or free.
const TELLING: &[&str] =
    &["alloc", "free", "new", "delete", "_Zn", "_Zd", "dup", "memalign", "realpath", "expand", "destroy"];

/// Functions that have such a part in their names, and are not hooked; and why.
const NOT_HOOKED: &[(&str, &[&str])] = &[
    (
        "tells a size, an owner or statistics, or sets an option",
        &[
            "sallocx",
            "nallocx",
            "tc_nallocx",
            "malloc_usable_size",
            "malloc_stats",
            "malloc_stats_print",
            "malloc_size",
            "malloc_good_size",
            "mallopt",
            "mallinfo",
            "mallctl",
            "tc_malloc_size",
            "tc_malloc_stats",
            "tc_mallopt",
            "tc_mallinfo",
            "tc_set_new_mode",
            "tc_query_new_mode",
            "mi_malloc_size",
            "mi_malloc_good_size",
            "mi_malloc_usable_size",
            "mi_register_deferred_free",
        ],
    ),
    ("reads the environment", &["TCMallocGetenvSafe"]),
    ("makes a heap, in memory that is not counted", &["mi_heap_new", "mi_heap_new_in_arena"]),
    ("calls mi_aligned_alloc, which is hooked", &["_aligned_malloc"]),
    ("calls mi_reallocarray, which is hooked", &["reallocarr", "mi_reallocarr"]),
    (
        "allocates, but no argument tells how much: not seen",
        &[
            "mi_strdup",
            "mi_strndup",
            "mi_heap_strdup",
            "mi_heap_strndup",
            "mi_realpath",
            "mi_heap_realpath",
            "mi_mbsdup",
            "mi_wcsdup",
            "mi_dupenv_s",
            "mi_wdupenv_s",
        ],
    ),
    ("frees all blocks of a heap at once: not seen", &["mi_heap_destroy"]),
    ("gives a heap's blocks to another", &["mi_heap_delete"]),
];

/// Whether it is gperftools' own interface for other programs, or a C++ function that is no operator.
fn is_elsewhere(function: &str) -> bool {
    let is_operator = ["_Znw", "_Zna", "_Zdl", "_Zda"].iter().any(|start| function.starts_with(start));
    ["MallocExtension_", "MallocHook_"].iter().any(|start| function.starts_with(start))
        || function.starts_with("_Z") && !is_operator
}

#[test]
fn every_function_that_allocates_is_hooked_or_known_not_to_be() {
    let hooked = symbols(&HookSet::default());
    let libraries = ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2.0"];
    for library in libraries {
        let path = format!("/usr/lib/x86_64-linux-gnu/{library}");
        let output =
            Command::new("nm").args(["-D", "--defined-only", "--format=posix", &path]).output().expect("nm is here");
        assert!(output.status.success(), "{library}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("names are ASCII");
        let functions = text.lines().filter_map(|line| {
            let mut fields = line.split(' ');
            let (name, kind) = (fields.next()?, fields.next()?);
            matches!(kind, "T" | "W" | "i").then(|| name.split('@').next().unwrap_or(name))
        });
        let functions: Vec<&str> = functions.collect();
        assert!(functions.contains(&"malloc"), "{library}: {functions:?}");
        let telling = |function: &&str| TELLING.iter().any(|part| function.contains(part)) && !is_elsewhere(function);
        let known = |function: &str| {
            hooked.binary_search(&function).is_ok() || NOT_HOOKED.iter().any(|(_, names)| names.contains(&function))
        };
        let unknown: Vec<&str> = functions.into_iter().filter(telling).filter(|function| !known(function)).collect();
        assert_eq!(unknown, [""; 0], "{library}");
    }
}

#[test]
fn what_is_not_hooked_is_in_no_table() {
    let hooked = symbols(&HookSet::default());
    for name in NOT_HOOKED.iter().flat_map(|(_, names)| names.iter()) {
        assert!(hooked.binary_search(name).is_err(), "{name}");
    }
}

/// Sleeps in the one system call that tests wait for; musl's `sleep` has another.
const SLEEPER: &str = r"
    #include <stdlib.h>
    #include <time.h>
    int main(int count, char **arguments) {
        struct timespec time = { atoi(arguments[1]), 0 };
        free(malloc(count));
        return clock_nanosleep(CLOCK_MONOTONIC, 0, &time, 0);
    }
";

/// The default heap of a program that is built like this, and the functions that are hooked in it under all their names.
fn check_program(tool: &str, source: &str, text: &str, arguments: &[&str], heap: &str, functions: &[&str]) {
    let workshop = Workshop::new();
    let running = Running::sleep(&workshop.compile(tool, source, text, arguments));
    let mut modules = ModuleStore::new();
    let mut space = AddressSpace::new(running.pid());
    space.refresh(&mut modules).expect("readable");
    let mut definitions = Definitions::new(symbols(&HookSet::default()), Vec::new());
    let candidates = definitions.candidates(&space, &modules, LinkMap::read(running.pid()).as_ref());
    let hooks = resolve(&candidates, &HookSet::default(), &HeapSelection::default()).expect("an allocator is there");
    let default = hooks.iter().filter(|hook| hook.reached_by_default && hook.heap == heap);
    let found: BTreeSet<&str> =
        default.clone().flat_map(|hook| hook.aliases.iter().copied().chain([hook.spec.function])).collect();
    for function in functions {
        assert!(found.contains(function), "{tool} {arguments:?}: no `{function}` of {heap} in {hooks:#?}");
    }
    let others: Vec<_> = hooks.iter().filter(|hook| hook.reached_by_default && hook.heap != heap).collect();
    assert!(others.is_empty(), "{tool} {arguments:?}: {others:#?}");
    assert!(default.clone().any(|hook| hook.required && hook.spec.function == "malloc"));
}

#[test]
fn programs_reach_the_allocator_that_they_are_linked_with() {
    let libc = ["malloc", "free", "calloc", "realloc", "posix_memalign", "aligned_alloc"];
    let operators = ["malloc", "free", "_Znwm", "_ZdlPv", "_ZnamSt11align_val_t"];
    let check = |arguments: &[&str], heap: &str, functions: &[&str]| {
        check_program("gcc", "program.c", SLEEPER, arguments, heap, functions);
    };
    check(&[], "libc", &libc);
    check(&["-static"], "libc", &libc);
    check(&["-static-pie", "-fPIE"], "libc", &libc);
    let linked = |library: &'static str| ["-Wl,--no-as-needed", library, "-lstdc++", "-lpthread", "-lm", "-ldl"];
    check(&linked("-ljemalloc"), "jemalloc", &[&operators[..], &["mallocx", "xallocx"]].concat());
    check(&linked("-ltcmalloc_minimal"), "tcmalloc", &[&operators[..], &["tc_malloc", "tc_delete_sized"]].concat());
    check(&linked("-lmimalloc"), "mimalloc", &[&operators[..], &["mi_malloc", "mi_heap_malloc", "mi_free"]].concat());
    let jemalloc = "/usr/lib/x86_64-linux-gnu/libjemalloc.a";
    check(&linked(jemalloc), "jemalloc", &["malloc", "free", "calloc"]);
    check(&["-static", jemalloc, "-lstdc++", "-lm", "-lpthread"], "jemalloc", &["malloc", "free", "calloc"]);
}

#[test]
fn musl_programs_reach_musls() {
    let functions = ["malloc", "free", "calloc", "realloc"];
    check_program("musl-gcc", "program.c", SLEEPER, &[], "musl", &functions);
    check_program("musl-gcc", "program.c", SLEEPER, &["-static"], "musl", &functions[..2]);
}
