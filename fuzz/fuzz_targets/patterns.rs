//! Names of a process, from its arguments and its executable, and patterns for processes and modules. The input's first line is
//! the pattern.

#![no_main]

use heapbpf::internals::{ModulePattern, Pattern, ProcessNames};

/// Maximum length of a path: the kernel's.
const PATH_MAX: usize = 4096;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let (pattern, rest) = text.split_once('\n').unwrap_or((text, ""));
    let arguments: Vec<String> = rest.split('\0').map(str::to_owned).collect();
    let names = ProcessNames::of(&arguments, arguments.last().map(String::as_str), "comm");
    match pattern.parse::<Pattern>() {
        Ok(pattern) => drop(pattern.matches(&names)),
        Err(error) => drop(error.to_string()),
    }
    let short = |text: &str| text.chars().take(PATH_MAX).collect::<String>();
    let _ = ModulePattern::new(&short(pattern)).matches(&short(rest));
});
