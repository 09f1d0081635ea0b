//! Files of `/proc/PID`.

#![no_main]

use heapbpf::fuzzing;
use heapbpf_linux::proc::process::Auxv;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::proc_file(bytes);
    let _ = Auxv::parse(bytes).map(|auxv| auxv.get(3));
});
