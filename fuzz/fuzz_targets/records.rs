//! Records of the ring buffer: any bytes are an event or an error.

#![no_main]

use heapbpf::internals::decode;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = decode(bytes);
});
