//! Names of generated code: a perf map or a jitdump. The input is the format (a byte), an address, a time, and the file.

#![no_main]

use heapbpf::fuzzing;
use heapbpf_fuzz::bytes::Bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let Some(format) = bytes.byte() else { return };
    let (Some(address), Some(time_ns)) = (bytes.word(), bytes.word()) else { return };
    fuzzing::generated_code(format & 1 == 1, bytes.0, address, time_ns);
});
