//! Unwind tables of a target's ELF file, and files of the unwind cache. The first byte selects whether the rest is an ELF file,
//! the `.eh_frame` section of a generated file, or a table of the cache.

#![no_main]

use heapbpf::fuzzing;
use heapbpf::internals::{Image, build_unwind_table};
use heapbpf_fuzz::elf::with_eh_frame;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((mode, bytes)) = bytes.split_first() else { return };
    match mode % 4 {
        0 => build(bytes),
        3 => fuzzing::unwind_cache(bytes),
        _ => build(&with_eh_frame(bytes)),
    }
});

fn build(elf: &[u8]) {
    let file = Image::from_bytes(elf).expect("memory");
    if let Ok(table) = build_unwind_table(&file) {
        fuzzing::unwind_table(&table);
    }
}
