//! With mimalloc as the global allocator.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    heapbpf_rust_targets::serve();
}
