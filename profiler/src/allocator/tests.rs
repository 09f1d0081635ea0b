//! Tests that compare the tables with each other and with the libraries of distributions.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use profiler_common::hook::CallShape;

use super::functions;
use super::hook_set::HookSet;
use super::resolve::{ALLOCATORS, resolve, symbols};
use super::selection::HeapSelection;
use super::spec::HookSpec;
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;
use crate::process::definitions::Definitions;
use crate::process::link_map::LinkMap;
use heapbpf_base::testing::{Running, Workshop};

fn tables() -> Vec<(&'static str, HookSpec)> {
    let mut tables = vec![
        ("libc", functions::C),
        ("libc's aliases", functions::C_ALIASES),
        ("C++", functions::OPERATORS),
        ("Rust", functions::RUST),
    ];
    for allocator in ALLOCATORS {
        tables.push((allocator.title, allocator.plain_functions));
        tables.extend(allocator.own_functions.iter().map(|table| (allocator.title, *table)));
    }
    tables.into_iter().flat_map(|(name, table)| table.iter().map(move |spec| (name, spec))).collect()
}

#[test]
fn shapes_have_the_arguments_they_need() {
    for (table, spec) in tables() {
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
    for (table, spec) in tables() {
        if let Some(before) = seen.insert(spec.function, table) {
            panic!("`{}` is in {before} and in {table}", spec.function);
        }
    }
}

#[test]
fn operators_are_marked_as_throwing() {
    for spec in functions::OPERATORS.iter() {
        let is_new = spec.function.starts_with("_Znw") || spec.function.starts_with("_Zna");
        assert_eq!(spec.may_throw, is_new && !spec.function.contains("nothrow"), "{}", spec.function);
        assert_eq!(spec.shape == CallShape::Alloc, is_new, "{}", spec.function);
    }
}

/// Parts of names that suggest that a function allocates or frees.
const SUSPICIOUS: &[&str] =
    &["alloc", "free", "new", "delete", "_Zn", "_Zd", "dup", "memalign", "realpath", "expand", "destroy"];

/// Functions with a suspicious name that are not hooked, by reason.
const NOT_HOOKED: &[(&str, &[&str])] = &[
    (
        "returns a size, an owner or statistics, or sets an option",
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
    ("creates a heap, in memory that is not counted", &["mi_heap_new", "mi_heap_new_in_arena"]),
    ("calls mi_aligned_alloc, which is hooked", &["_aligned_malloc"]),
    ("calls mi_reallocarray, which is hooked", &["reallocarr", "mi_reallocarr"]),
    (
        "allocates a size that is not an argument: not recorded",
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
    ("frees all blocks of a heap at once: not recorded", &["mi_heap_destroy"]),
    ("moves the blocks of a heap to another", &["mi_heap_delete"]),
];

/// Returns whether a function belongs to gperftools' extension interface, or is a C++ function other than an operator.
fn is_elsewhere(function: &str) -> bool {
    let is_operator = ["_Znw", "_Zna", "_Zdl", "_Zda"].iter().any(|start| function.starts_with(start));
    ["MallocExtension_", "MallocHook_"].iter().any(|start| function.starts_with(start))
        || function.starts_with("_Z") && !is_operator
}

#[test]
fn every_allocating_function_is_hooked_or_listed_as_not_hooked() {
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
        let suspicious =
            |function: &&str| SUSPICIOUS.iter().any(|part| function.contains(part)) && !is_elsewhere(function);
        let known = |function: &str| {
            hooked.binary_search(&function).is_ok() || NOT_HOOKED.iter().any(|(_, names)| names.contains(&function))
        };
        let unknown: Vec<&str> = functions.into_iter().filter(suspicious).filter(|function| !known(function)).collect();
        assert_eq!(unknown, [""; 0], "{library}");
    }
}

#[test]
fn functions_listed_as_not_hooked_are_in_no_table() {
    let hooked = symbols(&HookSet::default());
    for name in NOT_HOOKED.iter().flat_map(|(_, names)| names.iter()) {
        assert!(hooked.binary_search(name).is_err(), "{name}");
    }
}

/// Sleeps in the one system call that the tests wait for; musl's `sleep` uses another.
const SLEEPER: &str = r"
    #include <stdlib.h>
    #include <time.h>
    int main(int count, char **arguments) {
        struct timespec time = { atoi(arguments[1]), 0 };
        free(malloc(count));
        return clock_nanosleep(CLOCK_MONOTONIC, 0, &time, 0);
    }
";

/// Checks the default heap of a program built with these arguments, and the names of its hooked functions.
fn check_program(tool: &str, source: &str, text: &str, arguments: &[&str], heap: &str, functions: &[&str]) {
    let workshop = Workshop::new();
    let running = Running::sleep(&workshop.compile(tool, source, text, arguments));
    let mut modules = ModuleStore::default();
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
fn musl_programs_use_musls_malloc() {
    let functions = ["malloc", "free", "calloc", "realloc"];
    check_program("musl-gcc", "program.c", SLEEPER, &[], "musl", &functions);
    check_program("musl-gcc", "program.c", SLEEPER, &["-static"], "musl", &functions[..2]);
}
