//! JSON reports as `heapbpf convert` and `heapbpf diff` read them, and all reports made from them. Half of the mutations change
//! values of the JSON instead of bytes.

#![no_main]

use heapbpf_fuzz::{mutation, reports};
use heapbpf_report::json::read::read as read_report;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(profile) = read_report(bytes) {
        reports::write(&profile, bytes.len() as u8);
    }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    match mutation::mutate_json(&data[..size], seed) {
        Some(mutated) if seed % 2 == 0 && mutated.len() <= max_size => {
            data[..mutated.len()].copy_from_slice(&mutated);
            mutated.len()
        }
        _ => fuzzer_mutate(data, size, max_size),
    }
});
