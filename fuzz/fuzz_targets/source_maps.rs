//! Source maps of scripts. The input is two places in the script, and the map.

#![no_main]

use heapbpf::fuzzing;
use heapbpf_fuzz::bytes::Bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let (Some(first), Some(second)) = (bytes.word(), bytes.word()) else { return };
    let spot = |word: u64| ((word >> 32) as u32, word as u32);
    fuzzing::source_map(bytes.0, &[spot(first), spot(second)]);
});
