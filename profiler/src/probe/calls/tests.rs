//! Tests with functions of a compiled library, and of the C library.

use std::path::{Path, PathBuf};

use super::*;
use crate::allocator::functions;
use crate::object::symbols::{Search, defined_functions};
use heapbpf_base::testing::Workshop;

/// A library whose protected functions call each other directly.
const LIBRARY: &str = r#"
    #include <stddef.h>
    #include <string.h>
    #pragma GCC visibility push(protected)
    #define APART __attribute__((noinline, noclone))
    static char pool[1 << 20];
    static size_t used;
    void *(*volatile chosen)(size_t);
    extern void *elsewhere(size_t) __attribute__((visibility("default")));

    APART void free(void *block) { used -= block != 0; }
    APART void *malloc(size_t size) { used += size; return pool + used; }
    APART void *calloc(size_t count, size_t size) { used += count * size; return memset(pool + used, 0, count * size); }
    APART static void *inner(size_t size) { used = (used + 15) & ~15ul; return malloc(size); }
    APART static void *counted(size_t size) { void *block = inner(size); used++; return block; }

    void *realloc(void *block, size_t size) {
        if (block == 0) return malloc(size);
        void *moved = malloc(size);
        if (moved == 0) return 0;
        memcpy(moved, block, size);
        free(block);
        return moved;
    }
    int posix_memalign(void **out, size_t alignment, size_t size) {
        void *block = inner(size + alignment);
        *out = block;
        return block == 0;
    }
    void *aligned_alloc(size_t alignment, size_t size) { return inner(size + alignment); }
    void *memalign(size_t alignment, size_t size) { char *block = chosen(size); return block + alignment; }
    void *valloc(size_t size) { char *block = counted(size); return block + 1; }
    void *pvalloc(size_t size) { char *block = elsewhere(size); return block + 1; }
"#;

/// The hooks of a module, after the analysis.
struct Refined(Vec<ResolvedHook>, Vec<u8>);

impl Refined {
    fn of(path: &Path, calls_known: bool) -> Self {
        let mut modules = ModuleStore::default();
        let id = modules.intern_path(path).expect("it opens");
        let module = modules.get(id);
        let mut hooks: Vec<ResolvedHook> = Vec::new();
        for spec in functions::C.iter() {
            let found = defined_functions(module, &[spec.function], Search::Exported).expect("an ELF file");
            let Some(function) = found.first() else { continue };
            if hooks.iter().any(|hook| hook.offset == function.offset) {
                continue;
            }
            hooks.push(ResolvedHook {
                spec,
                module: id,
                path: path.display().to_string(),
                is_go: false,
                is_custom: false,
                offset: function.offset,
                size_bytes: function.size_bytes,
                heap: "pool".to_owned(),
                aliases: Vec::new(),
                calls_known,
                nested_returns: Vec::new(),
                reached_by_default: true,
                required: false,
            });
        }
        let mut calls = Calls::default();
        let mut again = hooks.clone();
        calls.refine(&mut hooks, &modules);
        calls.refine(&mut again, &modules);
        assert_eq!(again, hooks, "the second target of a session");
        Self(hooks, std::fs::read(path).expect("it is there"))
    }

    fn hook(&self, function: &str) -> &ResolvedHook {
        self.0.iter().find(|hook| hook.spec.function == function).expect("it is defined")
    }

    /// Returns whether unsampled calls are followed: calls for any block, and calls for null.
    fn followed(&self, function: &str) -> (bool, bool) {
        let spec = self.hook(function).spec;
        (spec.delegates, spec.delegates || spec.delegates_null)
    }

    /// Functions that contain the return addresses of the nested calls of `function`, each of which follows a call of 5 bytes.
    fn nested_in(&self, function: &str) -> Vec<&str> {
        let called = self.hook(function);
        let caller = |distance: &i64| {
            let offset = called.offset.0.wrapping_add_signed(*distance);
            assert_eq!(self.1[usize::try_from(offset).expect("in the file") - 5], 0xe8, "{offset:#x}");
            let contains = |hook: &&ResolvedHook| (hook.offset.0..hook.offset.0 + hook.size_bytes).contains(&offset);
            self.0.iter().find(contains).expect("a hooked function").spec.function
        };
        let mut callers: Vec<&str> = called.nested_returns.iter().map(caller).collect();
        callers.sort_unstable();
        callers
    }
}

fn library() -> (Workshop, PathBuf) {
    let workshop = Workshop::new();
    let flags = ["-shared", "-fPIC", "-O2", "-fno-builtin", "-fcf-protection=none"];
    let path = workshop.compile("gcc", "library.c", LIBRARY, &flags);
    (workshop, path)
}

const FOLLOWED: (bool, bool) = (true, true);
const NOT_FOLLOWED: (bool, bool) = (false, false);
const FOLLOWED_IF_NULL: (bool, bool) = (false, true);

#[test]
fn functions_that_reach_no_hooked_one_are_not_followed() {
    let (_workshop, path) = library();
    let refined = Refined::of(&path, false);
    assert_eq!(refined.followed("malloc"), NOT_FOLLOWED);
    assert_eq!(refined.followed("calloc"), NOT_FOLLOWED, "it calls `memset`, which allocates nothing");
}

#[test]
fn calls_from_a_hooked_functions_own_code_are_identified_by_their_return_addresses() {
    let (_workshop, path) = library();
    let refined = Refined::of(&path, false);
    assert_eq!(refined.followed("posix_memalign"), NOT_FOLLOWED);
    assert_eq!(refined.followed("realloc"), FOLLOWED_IF_NULL, "with null, it jumps to `malloc`");
    // That in `posix_memalign` is the call of a function that jumps to `malloc`.
    assert_eq!(refined.nested_in("malloc"), ["posix_memalign", "realloc"]);
}

#[test]
fn functions_are_followed_if_they_jump_to_hooked_ones_or_call_them_elsewhere_or_are_unknown() {
    let (_workshop, path) = library();
    let refined = Refined::of(&path, false);
    for (function, reason) in [
        ("aligned_alloc", "jumps to a function that jumps to `malloc`"),
        ("memalign", "calls through a pointer"),
        ("valloc", "calls a function that calls `malloc`"),
        ("pvalloc", "calls another module"),
    ] {
        assert_eq!(refined.followed(function), FOLLOWED, "{reason}");
    }
    let known = Refined::of(&path, true);
    for function in ["aligned_alloc", "valloc"] {
        assert_eq!(known.followed(function), FOLLOWED, "direct calls count also where pointers are known");
    }
    assert_eq!([known.followed("memalign"), known.followed("pvalloc")], [NOT_FOLLOWED; 2]);
}

#[test]
fn debians_c_library_is_followed_where_it_jumps_to_malloc() {
    let path = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    let refined = Refined::of(path, true);
    assert_eq!(refined.followed("malloc"), NOT_FOLLOWED);
    assert_eq!(refined.followed("realloc"), FOLLOWED_IF_NULL);
    assert_eq!(refined.followed("posix_memalign"), NOT_FOLLOWED);
    assert_eq!(refined.followed("aligned_alloc"), FOLLOWED);
    assert_eq!(refined.nested_in("malloc"), ["posix_memalign", "realloc", "realloc"]);
}
