//! Targets with one or several allocators.

use proptest::prelude::*;

use super::fixture::{candidate, executable, linked, local};
use super::*;
use crate::allocator::custom::CustomHook;
use crate::process::link_map::LinkPosition;

fn found(candidates: &[Candidate]) -> Vec<ResolvedHook> {
    resolve(candidates, &HookSet::default(), &HeapSelection::default()).expect("an allocator is there")
}

/// Checks function, offset, heap and `reached_by_default` of each hook.
fn check(candidates: &[Candidate], expected: &[(&str, u64, &str, bool)]) {
    let hooks = found(candidates);
    let got: Vec<_> = hooks
        .iter()
        .map(|hook| (hook.spec.function, hook.offset.0, hook.heap.as_str(), hook.reached_by_default))
        .collect();
    assert_eq!(got, expected);
}

const LIBC: &[(&str, u64)] = &[("malloc", 0x10), ("free", 0x20), ("reallocarray", 0x30), ("__libc_malloc", 0x10)];
const JEMALLOC: &[(&str, u64)] = &[("malloc", 1), ("free", 2), ("mallocx", 3)];

fn libc_so() -> Candidate {
    candidate(1, "/lib/libc.so.6", LIBC)
}

fn jemalloc_so() -> Candidate {
    candidate(2, "/lib/libjemalloc.so.2", JEMALLOC)
}

#[test]
fn libc_is_hooked_if_nothing_replaces_it() {
    check(
        &[executable("/usr/bin/app", &[]), libc_so()],
        &[("free", 0x20, "libc", true), ("malloc", 0x10, "libc", true), ("reallocarray", 0x30, "libc", true)],
    );
}

#[test]
fn an_allocator_library_precedes_libc_and_both_are_hooked() {
    // libc's reallocarray calls the first realloc in the linker's order.
    check(
        &[libc_so(), jemalloc_so()],
        &[
            ("free", 2, "jemalloc", true),
            ("malloc", 1, "jemalloc", true),
            ("mallocx", 3, "jemalloc", true),
            ("free", 0x20, "libc", false),
            ("malloc", 0x10, "libc", false),
        ],
    );
}

#[test]
fn the_linkers_order_determines_the_default_allocator() {
    let program = linked(executable("/usr/bin/app", &[]), 0);
    let hooks = found(&[linked(jemalloc_so(), 2), program, linked(libc_so(), 1)]);
    let default: Vec<_> = hooks.iter().filter(|hook| hook.reached_by_default).map(|hook| &*hook.heap).collect();
    assert_eq!(default, ["libc", "libc", "libc"]);
    assert!(hooks.iter().any(|hook| hook.heap == "jemalloc"), "a plug-in may call its own");
}

#[test]
fn other_namespaces_follow_the_programs() {
    let other = Candidate { link: Some(LinkPosition { namespace: 1, index: 0 }), ..jemalloc_so() };
    let hooks = found(&[other, linked(executable("/usr/bin/app", &[]), 0), linked(libc_so(), 1)]);
    assert_eq!(hooks[0].heap, "libc");
    assert!(hooks[0].reached_by_default && !hooks.last().expect("several").reached_by_default);
}

#[test]
fn the_executable_precedes_all_libraries() {
    let program = executable("/usr/bin/rustc", &[("malloc", 7), ("mallocx", 8)]);
    let hooks = found(&[candidate(2, "/lib/libtcmalloc.so.4", &[("malloc", 1)]), program, libc_so()]);
    assert_eq!((hooks[0].spec.function, &*hooks[0].heap, hooks[0].reached_by_default), ("malloc", "jemalloc", true));
    assert!(hooks[2..].iter().all(|hook| !hook.reached_by_default));
}

#[test]
fn one_function_under_two_names_is_hooked_once() {
    let libc = candidate(1, "/lib/libc.so.6", &[("malloc", 1), ("aligned_alloc", 2), ("memalign", 2)]);
    check(std::slice::from_ref(&libc), &[("malloc", 1, "libc", true), ("aligned_alloc", 2, "libc", true)]);
    assert_eq!(found(&[libc])[1].aliases, ["memalign"]);
}

#[test]
fn aliases_are_hooked_if_their_code_differs() {
    let same = candidate(1, "/lib/a.so", &[("malloc", 1), ("__libc_malloc", 1)]);
    assert_eq!(found(&[same])[0].aliases, [""; 0]);
    let other = candidate(1, "/lib/a.so", &[("malloc", 1), ("__libc_malloc", 2)]);
    check(&[other], &[("malloc", 1, "a.so", true), ("__libc_malloc", 2, "a.so", true)]);
}

#[test]
fn a_prefixed_allocator_is_hooked_beside_libc() {
    let functions = [("_rjem_malloc", 1), ("_rjem_sdallocx", 2), ("_rjem_mallocx", 3)];
    for program in [executable("/usr/bin/app", &functions), local(executable("/usr/bin/app", &functions))] {
        let hooks = found(&[program, candidate(1, "/lib/libc.so.6", &[("malloc", 0x10)])]);
        let got: Vec<_> = hooks.iter().map(|hook| (hook.spec.function, &*hook.heap, hook.required)).collect();
        let expected = [
            ("_rjem_sdallocx", "jemalloc", true),
            ("_rjem_malloc", "jemalloc", true),
            ("_rjem_mallocx", "jemalloc", true),
            ("malloc", "libc", true),
        ];
        assert_eq!(got, expected);
    }
}

#[test]
fn the_hidden_malloc_of_a_program_is_hooked_beside_libc() {
    let libc = candidate(1, "/lib/libc.so.6", &[("malloc", 0x10)]);
    let libcs = ("malloc", 0x10, "libc", true);
    let program = local(executable("/usr/bin/app", &[("malloc", 1), ("free", 2), ("calloc", 3)]));
    let hidden = [("free", 2, "app", false), ("malloc", 1, "app", false), ("calloc", 3, "app", false)];
    check(&[program, libc.clone()], &[&hidden[..], &[libcs]].concat());
    // Functions with these names that belong to no family, or to libraries whose own calls may reach other functions.
    for functions in [&[("malloc", 1)][..], &[("free", 2)], &[("malloc", 1), ("malloc", 3), ("free", 2)]] {
        check(&[local(executable("/usr/bin/app", functions)), libc.clone()], &[libcs]);
    }
    check(&[local(candidate(2, "/lib/a.so", &[("malloc", 1), ("free", 2)])), libc], &[libcs]);
}

#[test]
fn operators_are_hooked_only_if_they_are_the_allocators_own() {
    let operators = [("malloc", 1), ("_Znwm", 2), ("_ZdlPv", 3), ("__libc_malloc", 1), ("gnu_get_libc_version", 4)];
    let names =
        |candidates: &[Candidate]| -> Vec<&str> { found(candidates).iter().map(|hook| hook.spec.function).collect() };
    let library = executable("/usr/lib/chromium/chromium", &operators[..3]);
    assert_eq!(names(&[library]), ["_ZdlPv", "malloc", "_Znwm"]);
    let libstdcxx = candidate(3, "/lib/libstdc++.so.6", &operators[1..3]);
    assert_eq!(names(&[libstdcxx, candidate(1, "/lib/libc.so.6", &[("malloc", 9)])]), ["malloc"]);
    let with_libstdcxx = Candidate { is_static: true, ..executable("/opt/app", &operators) };
    assert_eq!(names(&[with_libstdcxx]), ["malloc"]);
}

#[test]
fn folded_code_may_throw_if_one_of_its_names_may() {
    let library = candidate(1, "/lib/a.so", &[("malloc", 1), ("_Znwm", 1), ("free", 2), ("_ZdlPv", 2)]);
    let hooks = found(&[library]);
    let facts: Vec<_> = hooks.iter().map(|hook| (hook.spec.function, &*hook.aliases, hook.spec.may_throw)).collect();
    assert_eq!(facts, [("free", &["_ZdlPv"][..], false), ("malloc", &["_Znwm"], true)]);
}

#[test]
fn calls_of_unknown_builds_are_followed_to_their_return() {
    let delegates = |module: Candidate| found(&[module])[0].spec.delegates;
    assert!(!delegates(candidate(1, "/lib/libc.so.6", &[("malloc", 1)])));
    assert!(delegates(candidate(1, "/lib/wrapper.so", &[("malloc", 1)])));
    // jemalloc in a program is known; mimalloc in a program depends on its build.
    assert!(!delegates(executable("/opt/app", &[("malloc", 1), ("mallocx", 2)])));
    assert!(delegates(executable("/opt/app", &[("mi_malloc", 1)])));
}

#[test]
fn the_old_dynamic_linkers_malloc_is_ignored() {
    let linker = candidate(4, "/lib/x86_64-linux-gnu/ld-2.28.so", &[("malloc", 5), ("free", 6)]);
    assert!(found(&[linker, libc_so()]).iter().all(|hook| hook.heap == "libc"));
}

#[test]
fn rusts_functions_are_hooked_if_no_other_allocator_is_found() {
    let program = local(executable("/opt/app", &[("__rust_alloc", 1), ("__rust_dealloc", 2)]));
    check(std::slice::from_ref(&program), &[("__rust_dealloc", 2, "rust", true), ("__rust_alloc", 1, "rust", true)]);
    assert!(found(&[program, libc_so()]).iter().all(|hook| hook.heap == "libc"));
}

fn set(hooks: &[&str]) -> HookSet {
    let mut set = HookSet::default();
    hooks.iter().for_each(|text| set.add(text.parse::<CustomHook>().expect("well formed")));
    set
}

#[test]
fn user_defined_functions_precede_known_ones() {
    let hooks = set(&["mine=libc.so.6:malloc(size=arg2,ptr=ret)", "arena=*:arena_alloc(size=arg1,ptr=ret)"]);
    let program = executable("/opt/app", &[("arena_alloc", 5)]);
    let found = resolve(&[program, libc_so()], &hooks, &HeapSelection::default()).expect("several");
    let got: Vec<_> = found.iter().map(|hook| (hook.spec.function, &*hook.heap, hook.spec.size)).collect();
    let expected =
        [("arena_alloc", "arena", 0), ("free", "libc", 0), ("malloc", "mine", 1), ("reallocarray", "libc", 1)];
    assert_eq!(got, expected);
}

#[test]
fn only_selected_heaps_are_hooked() {
    let heaps = |selection: &HeapSelection| -> Result<Vec<String>, NoAllocator> {
        let hooks = resolve(&[jemalloc_so(), libc_so()], &HookSet::default(), selection)?;
        let mut heaps: Vec<String> = hooks.into_iter().map(|hook| hook.heap).collect();
        heaps.dedup();
        Ok(heaps)
    };
    let without = HeapSelection { excluded: vec!["jemalloc".to_owned()], ..HeapSelection::default() };
    assert_eq!(heaps(&without), Ok(vec!["libc".to_owned()]));
    let other = HeapSelection { only: vec!["cuda".to_owned()], ..HeapSelection::default() };
    let error = heaps(&other).expect_err("no heap is selected");
    assert_eq!(
        error,
        NoAllocator::NotSelected {
            program: None,
            selected: "`cuda`".into(),
            heaps: vec!["jemalloc".into(), "libc".into()]
        }
    );
    let expected = "the program has none of the selected heaps (`cuda`); available: `jemalloc`, `libc`; ";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert!(NoAllocator::None(None).to_string().starts_with("no module of the program defines `malloc`; "));
    assert!(NoAllocator::None(Some("/a".into())).to_string().starts_with("no module of `/a` defines `malloc`; "));
}

#[test]
fn the_error_explains_why_no_allocator_was_found() {
    let none = |candidate: Candidate| {
        resolve(&[candidate], &HookSet::default(), &HeapSelection::default()).expect_err("no allocator")
    };
    let plain = executable("/bin/x", &[]);
    let linked_static = Candidate { is_static: true, ..plain.clone() };
    assert_eq!(none(Candidate { is_go: true, ..linked_static.clone() }), NoAllocator::Go("/bin/x".into()));
    assert_eq!(none(linked_static), NoAllocator::Static("/bin/x".into()));
    assert_eq!(none(plain), NoAllocator::None(Some("/bin/x".into())));
}

/// A module that defines some of the functions, some at the same offset.
fn any_module(module: u32) -> impl Strategy<Value = Candidate> {
    let names = symbols(&HookSet::default());
    let path = proptest::sample::select(vec!["/lib/libc.so.6", "/lib/libjemalloc.so.2", "/lib/x.so", "/opt/app"]);
    let functions = proptest::collection::vec((proptest::sample::select(names), 0u64..40), 0..30);
    let plain = proptest::sample::subsequence(vec!["malloc", "free", "realloc", "_Znwm"], 0..4);
    (path, functions, plain, any::<[bool; 3]>(), 0u16..4).prop_map(move |(path, mut functions, plain, flags, index)| {
        functions.extend(plain.into_iter().zip(100..));
        functions.sort_unstable_by_key(|(name, _)| *name);
        functions.dedup_by_key(|(name, _)| *name);
        let mut made = candidate(module, path, &functions);
        made.is_executable = flags[0];
        made.link = flags[1].then_some(LinkPosition { namespace: 0, index });
        if flags[2] { local(made) } else { made }
    })
}

proptest! {
    #[test]
    fn no_code_is_hooked_twice_and_modules_are_contiguous(
        modules in (any_module(0), any_module(1), any_module(2)).prop_map(|(a, b, c)| [a, b, c]),
    ) {
        let Ok(hooks) = resolve(&modules, &HookSet::default(), &HeapSelection::default()) else { return Ok(()) };
        let mut places: Vec<_> = hooks.iter().map(|hook| (hook.module, hook.offset)).collect();
        places.sort_unstable();
        places.dedup();
        prop_assert_eq!(places.len(), hooks.len());
        let mut order: Vec<ModuleId> = hooks.iter().map(|hook| hook.module).collect();
        order.dedup();
        let runs = order.len();
        order.sort_unstable();
        order.dedup();
        prop_assert_eq!(order.len(), runs, "the hooks of a module are attached together");
        for pair in hooks.windows(2).filter(|pair| pair[0].module == pair[1].module) {
            prop_assert!(pair[0].spec.shape.allocates() <= pair[1].spec.shape.allocates());
        }
    }

    /// An exported malloc is always hooked, and exactly one module's is the default.
    #[test]
    fn an_exported_malloc_is_always_hooked(
        modules in (any_module(0), any_module(1), any_module(2)).prop_map(|(a, b, c)| [a, b, c]),
    ) {
        let defining: Vec<_> = modules
            .iter()
            .filter_map(|module| Some((module.module, module.exported(DEFINING_FUNCTION)?.offset)))
            .collect();
        let hooks = resolve(&modules, &HookSet::default(), &HeapSelection::default()).unwrap_or_default();
        for &(module, offset) in &defining {
            prop_assert!(hooks.iter().any(|hook| hook.module == module && hook.offset == offset));
        }
        let mut default: Vec<_> =
            hooks.iter().filter(|hook| hook.reached_by_default && hook.heap != functions::RUST_HEAP).map(|hook| hook.module).collect();
        default.sort_unstable();
        default.dedup();
        prop_assert_eq!(default.len(), usize::from(!defining.is_empty()));
    }
}

#[test]
fn with_mmap_every_allocating_call_is_followed() {
    let selection = HeapSelection { only: vec!["all".to_owned(), MMAP.to_owned()], ..HeapSelection::default() };
    let libc = candidate(1, "/lib/libc.so.6", &[("malloc", 1), ("free", 2), ("mmap", 3), ("calloc", 4)]);
    let hooks = resolve(&[libc], &HookSet::default(), &selection).expect("an allocator is there");
    assert_eq!(hooks.len(), 4);
    for hook in hooks {
        assert_eq!(hook.spec.delegates, hook.spec.shape != CallShape::Free, "{}", hook.spec.function);
    }
}

fn check_heap(path: &str, is_executable: bool, symbols: &[&str], heap: &str) {
    let functions: Vec<(&str, u64)> = symbols.iter().map(|symbol| (*symbol, 1)).collect();
    let module = if is_executable { executable(path, &functions) } else { candidate(0, path, &functions) };
    let identity = Identity::of(&module);
    assert_eq!(identity.heap, heap, "{path}");
}

#[test]
fn heaps_are_named_after_their_allocator() {
    check_heap("/usr/lib/x86_64-linux-gnu/libc.so.6", false, &["__libc_malloc"], "libc");
    check_heap("/usr/lib/x86_64-linux-gnu/libc-2.31.so", false, &[], "libc");
    check_heap("/lib/ld-musl-x86_64.so.1", false, &[], "musl");
    check_heap("/usr/lib/x86_64-linux-musl/libc.so", false, &[], "musl");
    check_heap("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", false, &["mallocx"], "jemalloc");
    check_heap("/opt/app/lib/alloc.so", false, &["mi_malloc"], "mimalloc");
    check_heap("/opt/app/lib/wrap.so", false, &["malloc"], "wrap.so");
    check_heap("/usr/bin/rustc", true, &["mallocx"], "jemalloc");
    check_heap("/usr/lib/chromium/chromium", true, &["malloc", "__libc_malloc"], "chromium");
    check_heap("/opt/game/engine", true, &[], "engine");
}

#[test]
fn static_programs_use_their_c_librarys_heap() {
    let glibc = [("malloc", 1), ("__libc_malloc", 1), ("gnu_get_libc_version", 2)];
    let heap = |functions: &[(&str, u64)]| {
        Identity::of(&Candidate { is_static: true, ..executable("/opt/app", functions) }).heap
    };
    assert_eq!(heap(&glibc), "libc");
    assert_eq!(heap(&[("malloc", 3), ("__libc_malloc", 1), ("gnu_get_libc_version", 2)]), "app");
    assert_eq!(heap(&[("malloc", 1), ("__libc_malloc_impl", 3)]), "musl");
    assert_eq!(Identity::of(&executable("/opt/app", &glibc)).heap, "app");
}

#[test]
fn only_functions_of_known_builds_are_leaves() {
    let check = |module: &Candidate, leaves: &[&str], others: &[&str]| {
        let identity = Identity::of(module);
        assert!(leaves.iter().all(|function| identity.is_leaf(function)), "{}", module.path);
        assert!(!others.iter().any(|function| identity.is_leaf(function)), "{}", module.path);
    };
    let malloc = [("malloc", 1)];
    check(&candidate(0, "/lib/libc.so.6", &malloc), &["malloc", "calloc"], &["realloc", "memalign"]);
    check(&candidate(0, "/lib/ld-musl-x86_64.so.1", &malloc), &["malloc"], &["calloc"]);
    let jemalloc = candidate(0, "/lib/libjemalloc.so.2", &malloc);
    check(&jemalloc, &["malloc", "_rjem_malloc", "xallocx", "_Znwm"], &["_ZnwmSt11align_val_t"]);
    let tcmalloc = candidate(0, "/lib/libtcmalloc.so.4", &[("malloc", 1), ("tc_malloc", 1)]);
    check(&tcmalloc, &["malloc", "tc_new", "_ZnamSt11align_val_t"], &["tc_valloc", "posix_memalign"]);
    let debug = candidate(
        0,
        "/lib/libtcmalloc_minimal_debug.so.4",
        &[("malloc", 1), ("tc_malloc", 1), ("_ZN11MallocBlock8AllocateEmi", 2)],
    );
    check(&debug, &[], &["malloc", "tc_malloc"]);
    let mimalloc = [("malloc", 1), ("mi_malloc", 1)];
    check(&candidate(0, "/lib/libmimalloc.so.2.0", &mimalloc), &["malloc", "mi_new"], &["realloc", "mi_mallocn"]);
    check(&candidate(0, "/lib/libmimalloc-debug.so.2", &mimalloc), &[], &["malloc"]);
    check(&executable("/opt/app", &mimalloc), &[], &["malloc", "mi_malloc"]);
    check(&candidate(0, "/lib/wrapper.so", &malloc), &[], &["malloc"]);
}

#[test]
fn messages_list_all_allocators() {
    assert_eq!(supported(), "glibc, musl, mimalloc, tcmalloc, jemalloc");
}
