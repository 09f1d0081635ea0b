//! Thread-local storage in synthetic memory. Real processes are in the integration tests (`ruby.rs`).

use std::collections::BTreeMap;

use super::*;

/// Words by their addresses.
#[derive(Default)]
struct Image(BTreeMap<u64, u64>);

impl Memory for Image {
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        buffer.copy_from_slice(&self.0.get(&address)?.to_le_bytes());
        Some(())
    }
}

impl Image {
    fn set(&mut self, address: u64, word: u64) {
        self.0.insert(address, word);
    }
}

#[test]
fn thread_local_storage_is_found_as_the_loader_has_placed_it() {
    const BIAS: u64 = 0x1000;
    let mut image = Image::default();
    let found = |image: &Image, local| place(image, local, BIAS);
    assert_eq!(found(&image, ThreadLocal::Fixed(8u64.wrapping_neg())), Some((0, 8u64.wrapping_neg())));
    image.set(0x5000, 3);
    image.set(0x5008, 16);
    assert_eq!(found(&image, ThreadLocal::Module(0x4000, 4)), Some((3, 20)));
    assert_eq!(found(&image, ThreadLocal::Module(0x5000, 4)), None, "not relocated yet");
    image.set(0x5000, 32u64.wrapping_neg());
    assert_eq!(found(&image, ThreadLocal::Loaded(0x4000, 8)), Some((0, 24u64.wrapping_neg())));
    image.set(0x5008, 40u64.wrapping_neg());
    assert_eq!(found(&image, ThreadLocal::Descriptor(0x4000, 8)), Some((0, 32u64.wrapping_neg())));
    image.set(0x5008, 0x6000);
    image.set(0x6000, 2);
    image.set(0x6008, 24);
    assert_eq!(found(&image, ThreadLocal::Descriptor(0x4000, 8)), Some((2, 32)));
    assert_eq!(found(&image, ThreadLocal::Loaded(0, 0)), None);
}

#[test]
fn a_process_has_the_layout_of_its_version() {
    let found = Found {
        layout: Version::of_text(b"3.4.1").expect("a version").layout().expect("supported"),
        loops: vec![0x1000..0x1100, 0x2000..0x2040],
        context: ThreadLocal::Fixed(8u64.wrapping_neg()),
        names: Some(LinkAddr(0x30)),
    };
    let ruby = Ruby(Ok(found)).in_memory(&Image::default(), 0x10_0000, true).expect("nothing is read");
    assert_eq!(ruby.loops[0], AddressRange { start: 0x10_1000, bytes: 0x100 });
    assert_eq!(ruby.loops[1], AddressRange { start: 0x10_2000, bytes: 0x40 });
    assert_eq!((ruby.tls_module, ruby.tls_offset, ruby.names), (0, 8u64.wrapping_neg(), 0x10_0030));
    assert_eq!((ruby.frame_bytes, ruby.lines, ruby.line_bytes), (56, 112, 12));
    assert_eq!(ruby.flags, profiler_common::ruby::USES_MUSL | profiler_common::ruby::NAMES_OWNERS);
    let unsupported = Ruby(Err(Unsupported::NoLoop));
    assert_eq!(unsupported.in_memory(&Image::default(), 0, false), Err(Unsupported::NoLoop));
}
