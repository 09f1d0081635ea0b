//! With the system's allocator, which is Rust's default.

fn main() {
    heapbpf_rust_targets::serve();
}
