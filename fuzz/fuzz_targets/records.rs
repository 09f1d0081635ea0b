//! Records of the ring buffer: any bytes are an event or an error, and any code object has lines or none.

#![no_main]

use heapbpf::fuzzing;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::record(bytes);
});
