//! Names of a target's symbols: demangling, parsing into paths and arguments, and element types of containers.

#![no_main]

libfuzzer_sys::fuzz_target!(|name: &str| heapbpf::fuzzing::symbol_name(name));
