//! Names of a target's symbols: demangled, taken apart into paths and arguments, and asked for the types of containers' elements.

#![no_main]

libfuzzer_sys::fuzz_target!(|name: &str| heapbpf::internals::fuzzing::symbol_name(name));
