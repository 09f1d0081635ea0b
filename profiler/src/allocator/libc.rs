//! The C library's allocation functions, which every general-purpose allocator defines, some or all of them.

use super::spec::HookSpec;

/// Freeing functions come first: they are attached first, so that no block that is tracked can be freed unseen.
pub const FUNCTIONS: &[HookSpec] = &[
    HookSpec::free("free", 0),
    HookSpec::free("cfree", 0),
    // C23 7.24.3.3 and 7.24.3.4; glibc 2.42.
    HookSpec::free("free_sized", 0),
    HookSpec::free("free_aligned_sized", 0),
    HookSpec::alloc("malloc", 0).leaf(),
    HookSpec::alloc("calloc", 0).times(1),
    HookSpec::realloc("realloc", 0, 1),
    HookSpec::realloc("reallocarray", 0, 1).times(2),
    HookSpec::alloc_out("posix_memalign", 0, 2),
    HookSpec::alloc("aligned_alloc", 1),
    HookSpec::alloc("memalign", 1),
    HookSpec::alloc("valloc", 0),
    HookSpec::alloc("pvalloc", 0).page_rounded(),
];

/// The function without which a module is no allocator.
pub const DEFINING_FUNCTION: &str = "malloc";

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::hook::CallShape;

    #[test]
    fn freeing_functions_come_first() {
        let first_alloc = FUNCTIONS.iter().position(|spec| spec.shape.allocates()).expect("there are some");
        assert!(FUNCTIONS[first_alloc..].iter().all(|spec| spec.shape.allocates()));
    }

    #[test]
    fn shapes_have_the_arguments_they_need() {
        for spec in FUNCTIONS {
            assert_eq!(spec.pointer.is_some(), spec.shape != CallShape::Alloc, "{}", spec.function);
        }
    }
}
