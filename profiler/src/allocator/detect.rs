//! The table of allocators, and which of them a module is.

use super::spec::AllocatorSpec;
use super::{glibc, jemalloc, mimalloc, musl, tcmalloc};
use crate::process::definitions::Candidate;

/// All known allocators. The first that matches a module decides, so C libraries come last: allocators replace their functions.
pub(crate) const ALLOCATORS: &[&AllocatorSpec] =
    &[&jemalloc::ALLOCATOR, &tcmalloc::ALLOCATOR, &mimalloc::ALLOCATOR, &musl::ALLOCATOR, &glibc::ALLOCATOR];

/// Symbols that detection looks up in addition to the hooked functions.
pub(crate) fn symbols() -> impl Iterator<Item = &'static str> {
    ALLOCATORS.iter().flat_map(|allocator| allocator.fingerprints.iter().chain(allocator.other_symbols)).copied()
}

/// The names of all allocators, for messages.
pub(crate) fn supported() -> String {
    ALLOCATORS.iter().rev().map(|allocator| allocator.title).collect::<Vec<_>>().join(", ")
}

/// The allocator of a module that defines `malloc`.
#[derive(Clone)]
pub(crate) struct Identity {
    /// `None` for an unknown one: a program's own, or a library that wraps another allocator.
    pub allocator: Option<&'static AllocatorSpec>,
    /// The allocator's heap, or the module's file name.
    pub heap: String,
    calls_known: bool,
}

impl Identity {
    /// Identifies a module by its file name or by the symbols of allocators.
    pub(crate) fn of(candidate: &Candidate) -> Self {
        let file = file_name(&candidate.path);
        let by_name = ALLOCATORS
            .iter()
            .find(|allocator| !candidate.is_executable && (allocator.is_library)(&candidate.path, file));
        let by_symbol = || {
            ALLOCATORS.iter().find(|allocator| {
                let defines = |symbol: &&str| !candidate.functions(symbol).is_empty();
                allocator.fingerprints.iter().any(defines) && (allocator.may_be)(candidate)
            })
        };
        match by_name.or_else(by_symbol) {
            Some(allocator) => Self::known(candidate, allocator),
            None => Self { allocator: None, heap: file.to_owned(), calls_known: false },
        }
    }

    /// This allocator, which the module has under names of its own or as its malloc.
    pub(crate) fn known(candidate: &Candidate, allocator: &'static AllocatorSpec) -> Self {
        let calls_known = (allocator.calls_known)(candidate, file_name(&candidate.path));
        Self { allocator: Some(allocator), heap: allocator.heap.to_owned(), calls_known }
    }

    /// Whether the function is known to call no other function of the tables: see [`AllocatorSpec::is_leaf`].
    pub(crate) fn is_leaf(&self, function: &str) -> bool {
        self.calls_known && self.allocator.is_some_and(|allocator| (allocator.is_leaf)(function))
    }

    /// See [`AllocatorSpec::calls_back`].
    pub(crate) fn calls_back(&self, function: &str) -> bool {
        self.allocator.is_some_and(|allocator| allocator.calls_back.contains(&function))
    }

    /// If false, operators new and delete in this module are taken to be the allocator's own.
    pub(crate) fn is_c_library(&self) -> bool {
        self.allocator.is_some_and(|allocator| allocator.is_c_library)
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::resolve::fixture::{candidate, executable};

    fn check(path: &str, is_executable: bool, symbols: &[&str], heap: &str) {
        let functions: Vec<(&str, u64)> = symbols.iter().map(|symbol| (*symbol, 1)).collect();
        let module = if is_executable { executable(path, &functions) } else { candidate(0, path, &functions) };
        let identity = Identity::of(&module);
        assert_eq!(identity.heap, heap, "{path}");
    }

    #[test]
    fn heaps_are_named_after_their_allocator() {
        check("/usr/lib/x86_64-linux-gnu/libc.so.6", false, &["__libc_malloc"], "libc");
        check("/usr/lib/x86_64-linux-gnu/libc-2.31.so", false, &[], "libc");
        check("/lib/ld-musl-x86_64.so.1", false, &[], "musl");
        check("/usr/lib/x86_64-linux-musl/libc.so", false, &[], "musl");
        check("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", false, &["mallocx"], "jemalloc");
        check("/opt/app/lib/alloc.so", false, &["mi_malloc"], "mimalloc");
        check("/opt/app/lib/wrap.so", false, &["malloc"], "wrap.so");
        check("/usr/bin/rustc", true, &["mallocx"], "jemalloc");
        check("/usr/lib/chromium/chromium", true, &["malloc", "__libc_malloc"], "chromium");
        check("/opt/game/engine", true, &[], "engine");
    }

    #[test]
    fn static_programs_use_their_c_librarys_heap() {
        let glibc = [("malloc", 1), ("__libc_malloc", 1), ("gnu_get_libc_version", 2)];
        let heap = |functions: &[(&str, u64)]| {
            Identity::of(&Candidate { is_static: true, ..executable("/opt/app", functions) }).heap
        };
        assert_eq!(heap(&glibc), "libc");
        assert_eq!(heap(&[("malloc", 3), ("__libc_malloc", 1), ("gnu_get_libc_version", 2)]), "app");
        assert_eq!(heap(&[("malloc", 1), ("__libc_malloc_impl", 3)]), "musl");
        assert_eq!(Identity::of(&executable("/opt/app", &glibc)).heap, "app");
    }

    #[test]
    fn only_functions_of_known_builds_are_leaves() {
        let check = |module: &Candidate, leaves: &[&str], others: &[&str]| {
            let identity = Identity::of(module);
            assert!(leaves.iter().all(|function| identity.is_leaf(function)), "{}", module.path);
            assert!(!others.iter().any(|function| identity.is_leaf(function)), "{}", module.path);
        };
        let malloc = [("malloc", 1)];
        check(&candidate(0, "/lib/libc.so.6", &malloc), &["malloc", "calloc"], &["realloc", "memalign"]);
        check(&candidate(0, "/lib/ld-musl-x86_64.so.1", &malloc), &["malloc"], &["calloc"]);
        let jemalloc = candidate(0, "/lib/libjemalloc.so.2", &malloc);
        check(&jemalloc, &["malloc", "_rjem_malloc", "xallocx", "_Znwm"], &["_ZnwmSt11align_val_t"]);
        let tcmalloc = candidate(0, "/lib/libtcmalloc.so.4", &[("malloc", 1), ("tc_malloc", 1)]);
        check(&tcmalloc, &["malloc", "tc_new", "_ZnamSt11align_val_t"], &["tc_valloc", "posix_memalign"]);
        let debug = candidate(
            0,
            "/lib/libtcmalloc_minimal_debug.so.4",
            &[("malloc", 1), ("tc_malloc", 1), ("_ZN11MallocBlock8AllocateEmi", 2)],
        );
        check(&debug, &[], &["malloc", "tc_malloc"]);
        let mimalloc = [("malloc", 1), ("mi_malloc", 1)];
        check(&candidate(0, "/lib/libmimalloc.so.2.0", &mimalloc), &["malloc", "mi_new"], &["realloc", "mi_mallocn"]);
        check(&candidate(0, "/lib/libmimalloc-debug.so.2", &mimalloc), &[], &["malloc"]);
        check(&executable("/opt/app", &mimalloc), &[], &["malloc", "mi_malloc"]);
        check(&candidate(0, "/lib/wrapper.so", &malloc), &[], &["malloc"]);
    }

    #[test]
    fn messages_list_all_allocators() {
        assert_eq!(supported(), "glibc, musl, mimalloc, tcmalloc, jemalloc");
    }
}
