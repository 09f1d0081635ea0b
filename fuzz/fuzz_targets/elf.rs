//! ELF files of targets: headers, symbols, virtual tables, and the code of functions to be hooked.

#![no_main]

use std::sync::Arc;

use heapbpf::internals::{
    Code, Emulation, HookSpec, Image, Module, PlacementMode, Recorded, Search, Symbols, Vtables, place,
};
use heapbpf_base::address::{FileOffset, LinkAddr, TargetAddr};

const NAMES: [&str; 6] = ["malloc", "free", "realloc", "_Znwm", "__rust_alloc", "operator_new"];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let image = Image::from_bytes(bytes).expect("there is memory");
    let module = Arc::new(Module::recorded("/usr/lib/libfuzz.so", Ok(image), Recorded::default()));
    let Ok(elf) = module.elf() else { return };
    for segment in &elf.segments {
        let _ = (elf.link_addr(segment.offset), elf.file_offset(segment.address));
        let _ = elf.bias(TargetAddr(0x7f00_0000_0000), segment.offset);
    }
    let _ = (elf.link_addr(FileOffset(u64::MAX)), elf.file_offset(LinkAddr(u64::MAX)));
    let _ = elf.build_id.as_ref().map(ToString::to_string);
    let symbols = Symbols::of(&module, &NAMES, &NAMES, Search::Everything).expect("the file can be read");
    for function in &symbols.functions {
        let Ok(code) = Code::of(&module, function) else { continue };
        let _ = code.jumps_to();
        for mode in [PlacementMode::Auto, PlacementMode::Entry] {
            let _ = place(&code, &HookSpec::realloc("realloc", 0, 1), mode, Emulation::default());
        }
    }
    let tables = Vtables::of(&module).expect("the file can be read");
    for address in elf.segments.iter().map(|segment| segment.address.0) {
        let _ = tables.symbol(LinkAddr(address.saturating_add(16)));
    }
});
