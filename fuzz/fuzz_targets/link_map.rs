//! The dynamic linker's list of modules in a target's memory: auxiliary vector, program headers, dynamic section, `r_debug` and
//! `link_map`. The input is the vector's entries (a count, then 16 bytes each) and the memory from [`BASE`] on.

#![no_main]

use heapbpf::fuzzing;
use heapbpf_fuzz::bytes::Bytes;

const BASE: u64 = 0x10_0000;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let Some(entries) = bytes.byte() else { return };
    let auxv = bytes.slice(usize::from(entries) * 16);
    let memory = bytes.0;
    let read = |address: u64, buffer: &mut [u8]| {
        let start = usize::try_from(address.checked_sub(BASE)?).ok()?;
        buffer.copy_from_slice(memory.get(start..start.checked_add(buffer.len())?)?);
        Some(())
    };
    let _ = fuzzing::link_map(auxv, &read, &[0, BASE, u64::MAX]);
});
