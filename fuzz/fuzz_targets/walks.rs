//! Heap walkers (glibc, musl, jemalloc) on a target's memory: see `heapbpf_fuzz::image` for the input.

#![no_main]

use heapbpf::internals::{Scene, walk};
use heapbpf_fuzz::image::Image;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let image = Image::parse(bytes);
    let walks = walk(&Scene::new(&image.copied(), &image.regions, &image.threads));
    for walk in walks {
        let (heap, blocks, areas) = (walk.heap, &walk.blocks, &walk.areas);
        for pair in blocks.windows(2) {
            let end = pair[0].start.0.checked_add(pair[0].size_bytes).expect("blocks end before addresses do");
            assert!(end <= pair[1].start.0, "{heap}: blocks overlap: {pair:x?}");
        }
        for pair in areas.windows(2) {
            assert!(pair[0].end <= pair[1].start, "{heap}: areas overlap: {pair:x?}");
        }
    }
});
