//! Tests with compiled libraries that reach their allocator through pointers.

use super::*;
use crate::object::symbols::{Search, defined_functions};
use heapbpf_base::testing::Workshop;

/// A library in which `COPIES` functions contain a copy of `pool_get`, unless it is not to be inlined.
const LIBRARY: &str = r#"
    #include <stddef.h>
    static void *take(void *context, size_t size) { return (char *)context + size; }
    static void drop(void *context, void *block) { *(void **)context = block; }
    static struct { void *context; void *(*take)(void *, size_t); void (*drop)(void *, void *); } pool = { &pool, take, drop };
    void set_pool(void *(*take)(void *, size_t), void (*drop)(void *, void *)) { pool.take = take; pool.drop = drop; }
    KIND void *get(size_t size) { return size > 1 << 30 ? NULL : pool.take(pool.context, size); }
    void *pool_get(size_t size) { return get(size); }
    void pool_put(void *block) { pool.drop(pool.context, block); }
    #define COPY(name) void *use_##name(size_t size) { void **block = get(size + 8); *block = NULL; return block; }
    #define COPIES4(name) COPY(name##0) COPY(name##1) COPY(name##2) COPY(name##3)
    COPIES4(a) COPIES4(b) COPIES4(c) COPIES4(d) COPIES4(e)
    // Unwind information of data, as a hand-written or hostile file may have.
    asm(".section .rodata\n.cfi_startproc\n.quad 0\n.cfi_endproc\n.previous");
"#;

const SPEC: &str = r#"
    [[heap]]
    name = "pool"
    modules = ["*"]
    if-inlined = "take another pool"
    functions = ["pool_get(size=arg1, ptr=ret)", "pool_put(old=arg1)"]
"#;

/// Returns the function whose copies cause the heap of a library with this kind of `get` to be removed, and the number of hooks
/// that are left.
fn removed(kind: &str, spec: &str) -> (Option<InlinedFunction>, usize) {
    let mut functions = HookSet::default();
    functions.parse("pool.toml", spec).expect("well formed");
    let workshop = Workshop::new();
    let kind = format!("-DKIND={kind}");
    let path = workshop.compile("gcc", "libpool.c", LIBRARY, &["-shared", "-fPIC", "-O2", &kind]);
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(&path).expect("it opens");
    let mut hooks = hooks(&functions, id, &modules);
    let mut inlined = Inlined::default();
    inlined.remove(&mut hooks, &functions, &modules);
    (inlined.found().next().cloned(), hooks.len())
}

fn hooks(functions: &HookSet, id: ModuleId, modules: &ModuleStore) -> Vec<ResolvedHook> {
    let hook = |custom: &crate::allocator::hook_set::CustomFunction| {
        let spec = custom.spec;
        let found = defined_functions(modules.get(id), &[spec.function], Search::Exported).expect("readable");
        ResolvedHook {
            spec,
            module: id,
            path: modules.get(id).path().to_string(),
            is_go: false,
            is_custom: false,
            offset: found[0].offset,
            size_bytes: found[0].size_bytes,
            heap: custom.heap.clone(),
            aliases: Vec::new(),
            calls_known: false,
            nested_returns: Vec::new(),
            reached_by_default: true,
            required: true,
        }
    };
    functions.functions().iter().map(hook).collect()
}

#[test]
fn a_heap_with_inlined_functions_is_removed() {
    let (found, left) = removed("static inline __attribute__((always_inline))", SPEC);
    let found = found.expect("twenty copies");
    assert_eq!((found.function, found.copies, found.heap.as_str()), ("pool_get", 20, "pool"));
    assert_eq!((found.advice.as_str(), left), ("take another pool", 0));
}

#[test]
fn a_heap_whose_functions_are_called_stays() {
    // `pool_get` has the only copy.
    let (found, left) = removed("static __attribute__((noinline,noclone))", SPEC);
    assert_eq!((found, left), (None, 2));
}

#[test]
fn heaps_are_checked_on_request_only() {
    let spec = SPEC.replace("if-inlined", "# ");
    let (found, left) = removed("static inline __attribute__((always_inline))", &spec);
    assert_eq!((found, left), (None, 2));
}
