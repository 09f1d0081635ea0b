//! Suppressions files, and matching names against them. The input's first line is the name.

#![no_main]

use heapbpf_report::suppressions::Suppressions;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let (name, patterns) = text.split_once('\n').unwrap_or(("", text));
    match Suppressions::parse(patterns) {
        Ok(suppressions) => drop(suppressions.matches_name(name)),
        Err(error) => drop(error.to_string()),
    }
});
