//! Custom hooks on the command line and in spec files, and intervals. A parsed hook must survive formatting.

#![no_main]

use heapbpf::internals::{CustomHook, HookSet, interval_bytes, parse_function};

libfuzzer_sys::fuzz_target!(|text: &str| {
    match text.parse::<CustomHook>() {
        Ok(hook) => {
            let written = hook.to_string();
            assert_eq!(written.parse::<CustomHook>().as_ref(), Ok(&hook), "`{text}` was written as `{written}`");
        }
        Err(error) => drop(error.to_string()),
    }
    let _ = parse_function(text).map_err(|error| error.to_string());
    let _ = interval_bytes(text).map_err(|error| error.to_string());
    let mut set = HookSet::default();
    match set.parse("fuzz.toml", text) {
        Ok(()) => {
            let _ = set.named_modules();
            let _ = set.functions().iter().filter(|function| function.may_be_in("/usr/lib/libfuzz.so")).count();
        }
        Err(error) => drop(error.to_string()),
    }
});
