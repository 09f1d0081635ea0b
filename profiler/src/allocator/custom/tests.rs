//! Hooks as users write them.

use proptest::prelude::*;

use super::*;

fn parsed(text: &str) -> CustomHook {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn check(text: &str, heap: &str, modules: &str, spec: HookSpec) {
    let hook = parsed(text);
    assert_eq!((&*hook.heap, hook.modules.as_str(), hook.spec), (heap, modules, spec), "{text}");
}

#[test]
fn the_keys_determine_the_shape() {
    check("libx.so:x_alloc(size=arg1,ptr=ret)", "libx", "libx.so", HookSpec::alloc("x_alloc", 0));
    check("libx.so.1:x_free(old=arg2)", "libx", "libx.so.1", HookSpec::free("x_free", 1));
    check("*:x_grow(old=arg1, ptr=ret, size=arg3)", "custom", "*", HookSpec::realloc("x_grow", 0, 2));
    check(
        "cuda=libcudart.so*:cudaMalloc( ptr = *arg1 , size = arg2 )",
        "cuda",
        "libcudart.so*",
        HookSpec::alloc_out("cudaMalloc", 0, 1),
    );
    check(
        "/opt/a=b/libx.so:x_calloc(size=arg1,count=arg2,ptr=ret,pages,leaf)",
        "libx",
        "/opt/a=b/libx.so",
        HookSpec::alloc("x_calloc", 0).times(1).page_rounded().leaf(),
    );
    let flags = HookSpec::realloc("f", 0, 1).frees_on_failure().may_throw();
    check("h=*:f(old=arg1,size=arg2,ptr=ret,frees-on-failure,throws)", "h", "*", flags);
}

#[test]
fn hooks_of_the_entry_need_no_block() {
    check("co:pool_report(size=arg1, entry)", "co", "co", HookSpec::entry("pool_report", 0));
    check("co:pool_add(size=arg1,ptr=arg2,entry)", "co", "co", HookSpec::entry_of("pool_add", 1, 0));
    let counted = HookSpec::entry("f", 0).times(2).page_rounded();
    check("h=*:f(entry, size=arg1, count=arg3, pages)", "h", "*", counted);
    // Nothing is known that forbids a hook on the entry of `swapcontext`, or `vfork` as a free.
    check("*:swapcontext(size=arg1,entry)", "custom", "*", HookSpec::entry("swapcontext", 0));
    check("*:vfork(old=arg1)", "custom", "*", HookSpec::free("vfork", 0));
}

#[test]
fn an_interval_may_be_given() {
    assert_eq!(parsed("*:f(old=arg1)@1MiB").interval_bytes, Some(1 << 20));
    assert_eq!(parsed("*:f(old=arg1)").interval_bytes, None);
}

/// Checks the marked part and the reason of an error.
fn check_error(text: &str, marked: &str, reason: &str) {
    let error = text.parse::<CustomHook>().expect_err("rejected");
    assert_eq!(error.text.get(error.at.clone()), Some(marked), "{error}");
    assert!(error.reason.contains(reason), "{error}");
}

#[test]
fn errors_in_a_long_text_show_the_part_around_them() {
    let name = "a".repeat(100_000);
    for text in [name.clone(), format!("{name}:f(size=arg1)"), format!("lib.so:f({name}=arg1)")] {
        let error = text.parse::<CustomHook>().expect_err("no such function").to_string();
        assert!(error.lines().all(|line| line.chars().count() < 300), "{} bytes", error.len());
        assert!(error.contains('^') && error.contains('…'), "{error}");
    }
}

#[test]
fn errors_mark_the_wrong_part() {
    check_error("libx.so:f", "", "missing `(`");
    check_error("f(old=arg1)", "f", "specifies no module");
    check_error(":f(old=arg1)", "", "module is missing");
    check_error("a b=libx.so:f(old=arg1)", "a b", "not a valid heap name");
    check_error("mmap=libx.so:f(old=arg1)", "mmap", "is reserved");
    check_error("*:operator new(size=arg1,ptr=ret)", "operator new", "mangled name");
    check_error("*:f(old=arg1", "old=arg1", "missing `)`");
    check_error("*:f(old=arg1)x", "x", "only `@INTERVAL` is allowed");
    check_error("*:f(old=arg1)@0", "@0", "not an interval");
    check_error("*:f(old=arg7)", "arg7", "not a valid argument");
    check_error("*:f(old=arg0)", "arg0", "not a valid argument");
    check_error("*:f(bogus=arg1)", "bogus", "unknown key");
    check_error("*:f(size=arg1,size=arg2,ptr=ret)", "size", "duplicate");
    check_error("*:f(size=arg1,ptr=stack)", "stack", "not a location of a block");
    check_error("*:f(size=arg1,ptr=arg2)", "size=arg1,ptr=arg2", "write `ptr=*arg2`");
    check_error("*:f(size=arg1,ptr=arg7,entry)", "arg7", "not a valid argument");
    check_error("*:f(size=arg1,ptr=ret,entry)", "size=arg1,ptr=ret,entry", "not known at the entry");
    check_error("*:f(size=arg1,ptr=*arg2,entry)", "size=arg1,ptr=*arg2,entry", "not known at the entry");
    check_error("*:f(old=arg1,entry)", "old=arg1,entry", "`old` cannot be combined");
    check_error("*:f(ptr=arg1,entry)", "ptr=arg1,entry", "missing `size`");
    check_error("*:f(size=arg1,entry,throws)", "size=arg1,entry,throws", "`throws` concerns the return");
    check_error("*:swapcontext(size=arg1,ptr=ret)", "size=arg1,ptr=ret", "switches stacks");
    check_error("*:f(size=arg1,ptr=*x)", "x", "not a valid argument");
    check_error("*:f(fast)", "fast", "neither");
    check_error("*:f(ptr=ret)", "ptr=ret", "missing `size`");
    check_error("*:f(size=arg1)", "size=arg1", "missing block");
    check_error("*:f(old=arg1,size=arg2)", "old=arg1,size=arg2", "only `old`");
    check_error("*:f(old=arg1,size=arg2,ptr=*arg3)", "old=arg1,size=arg2,ptr=*arg3", "requires `ptr=ret`");
    check_error("*:f(old=arg1,frees-on-failure)", "old=arg1,frees-on-failure", "requires");
}

#[test]
fn the_mark_is_below_the_wrong_part() {
    let error = "ü*:f(bogus=arg1)".parse::<CustomHook>().expect_err("rejected").to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines[1..], ["  ü*:f(bogus=arg1)", "       ^^^^^"]);
}

#[test]
fn functions_of_spec_files_have_no_module() {
    assert_eq!(function(" x_free(old=arg1) "), Ok(HookSpec::free("x_free", 0)));
    assert!(function("x_free(old=arg1)@4KiB").expect_err("rejected").reason.contains("`interval`"));
    assert!(function("libx.so:x_free(old=arg1)").expect_err("rejected").reason.contains("mangled name"));
}

fn spec() -> impl Strategy<Value = HookSpec> {
    let shapes = (0usize..6, 0usize..6, 0usize..6, proptest::option::of(0usize..6), any::<[bool; 4]>());
    ("[A-Za-z_][A-Za-z0-9_.$]{0,20}", shapes).prop_map(|(name, (shape, size, pointer, count, flags))| {
        let name: &'static str = Box::leak(name.into_boxed_str());
        let spec = match shape {
            0 => return HookSpec { page_rounded: flags[0], ..HookSpec::free(name, pointer) },
            1 => HookSpec::alloc(name, size),
            2 => HookSpec::alloc_out(name, pointer, size),
            3 => return HookSpec { count, page_rounded: flags[0], ..HookSpec::entry(name, size) },
            4 => return HookSpec { count, page_rounded: flags[0], ..HookSpec::entry_of(name, pointer, size) },
            _ => HookSpec { frees_on_failure: flags[3], ..HookSpec::realloc(name, pointer, size) },
        };
        HookSpec { count, page_rounded: flags[0], delegates: flags[1], may_throw: flags[2], ..spec }
    })
}

proptest! {
    #[test]
    fn hooks_round_trip(
        spec in spec(),
        heap in "[a-z]{1,8}-x",
        modules in "(/opt/)?[a-z*?.]{1,12}",
        interval_bytes in proptest::option::of(1u32..1 << 30),
    ) {
        let hook = CustomHook { heap, modules: ModulePattern::new(&modules), spec, interval_bytes };
        prop_assert_eq!(hook.to_string().parse::<CustomHook>(), Ok(hook));
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in "\\PC*", ascii in "[a-z*:=(),@ 0-9]{0,40}", middle in "[a-z=*,0-9é ]{0,24}") {
        for text in [text, ascii, format!("*:f({middle})"), format!("{middle}:f(old=arg1)@{middle}")] {
            if let Err(error) = text.parse::<CustomHook>() {
                prop_assert!(error.to_string().contains('^'));
            }
            drop(function(&text));
        }
    }
}
