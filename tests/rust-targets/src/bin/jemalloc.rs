//! With jemalloc as the global allocator.

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    heapbpf_rust_targets::serve();
}
