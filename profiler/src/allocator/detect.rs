//! Tells which allocator a module is, and what is known of the functions of each.

use super::libc::DEFINING_FUNCTION;
use crate::process::definitions::Candidate;

/// An allocator that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    /// The GNU C library's.
    Glibc,
    /// musl's.
    Musl,
    /// jemalloc.
    Jemalloc,
    /// gperftools' or Google's tcmalloc.
    Tcmalloc,
    /// mimalloc.
    Mimalloc,
    /// One that is not known: a program's own, or a library that wraps another allocator.
    Other,
}

/// Symbols that one allocator alone defines.
const FINGERPRINTS: &[(&str, Family)] = &[
    ("mallocx", Family::Jemalloc),
    ("tc_malloc", Family::Tcmalloc),
    ("TCMallocInternalMalloc", Family::Tcmalloc),
    ("mi_malloc", Family::Mimalloc),
    ("__libc_malloc_impl", Family::Musl),
    ("gnu_get_libc_version", Family::Glibc),
    ("__libc_malloc", Family::Glibc),
];

/// What gperftools' checking variant alone defines.
const TCMALLOC_DEBUG: &str = "_ZN11MallocBlock8AllocateEmi";

/// Starts of file names, for allocators that carry no fingerprint of their own.
const FILE_NAMES: &[(&str, Family)] = &[
    ("libc.so", Family::Glibc),
    ("libc-", Family::Glibc),
    ("ld-musl", Family::Musl),
    ("libc.musl", Family::Musl),
    ("libjemalloc", Family::Jemalloc),
    ("libtcmalloc", Family::Tcmalloc),
    ("libmimalloc", Family::Mimalloc),
];

/// Symbols to look up beside those of the tables.
pub(crate) fn symbols() -> impl Iterator<Item = &'static str> {
    FINGERPRINTS.iter().map(|(symbol, _)| *symbol).chain([TCMALLOC_DEBUG])
}

/// What is known of a module that defines `malloc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Which allocator it is.
    pub family: Family,
    /// The heap's name: the allocator's, or the module's own file name.
    pub heap: String,
    /// It is one of the builds whose calls among themselves are known: see [`is_leaf`](Self::is_leaf).
    calls_known: bool,
}

impl Identity {
    /// Looks at a module.
    ///
    /// A program may export `__libc_malloc` to stand in for libc (chromium does), and wrap what it likes, so only
    /// allocators' own symbols tell what is in it. It is libc where it is static and libc's own functions are in it.
    pub(crate) fn of(candidate: &Candidate) -> Self {
        Self::of_family(candidate, family(candidate, file_name(&candidate.path)))
    }

    /// The allocator of this family that the module has under names of its own, beside whatever malloc it defines.
    pub(crate) fn of_family(candidate: &Candidate, family: Family) -> Self {
        let file = file_name(&candidate.path);
        let heap = family.name().unwrap_or(file).to_owned();
        Self { calls_known: calls_known(candidate, file, family), family, heap }
    }

    /// Whether the function is known to call no other function of the tables, in this allocator: then its unsampled calls
    /// need not be followed to their return, which saves a trap. Wrong here would count a block twice now and then, so
    /// what is not known is followed.
    ///
    /// Known from the disassembly of Debian 12's glibc 2.36, musl 1.2.3, jemalloc 5.3.0, gperftools 2.10 and mimalloc
    /// 2.0.9. In jemalloc and tcmalloc no function of the tables is called by way of a public name but those left out
    /// here, so it is so at any level of optimisation; jemalloc's operators call `malloc` when memory has run out, which
    /// is another allocation's draw. mimalloc's functions call each other unless they are inlined, so only the library as
    /// distributions build it is trusted.
    pub(crate) fn is_leaf(&self, function: &str) -> bool {
        self.calls_known
            && match self.family {
                Family::Glibc => matches!(function, "malloc" | "calloc"),
                Family::Musl => function == "malloc",
                Family::Jemalloc => is_leaf_of_jemalloc(function),
                Family::Tcmalloc => is_leaf_of_tcmalloc(function),
                Family::Mimalloc => is_leaf_of_mimalloc(function),
                Family::Other => false,
            }
    }

    /// Whether operators new and delete in this module are the allocator's own. A static program has libstdc++'s, which
    /// call libc's malloc; any other module that defines malloc and operators is taken to have made them for each other.
    pub(crate) fn has_own_operators(&self) -> bool {
        !matches!(self.family, Family::Glibc | Family::Musl)
    }

    /// Whether the function is the C library's and does nothing but call another by its public name. Where another
    /// allocator has taken that name's place, the block is that one's.
    pub(crate) fn calls_back(&self, function: &str) -> bool {
        match self.family {
            Family::Glibc => function == "reallocarray",
            Family::Musl => {
                matches!(function, "calloc" | "reallocarray" | "memalign" | "posix_memalign" | "valloc")
            }
            _ => false,
        }
    }

    /// Whether it is a C library.
    pub(crate) fn is_c_library(&self) -> bool {
        matches!(self.family, Family::Glibc | Family::Musl)
    }
}

impl Family {
    /// The name of its heap.
    pub(crate) const fn name(self) -> Option<&'static str> {
        match self {
            Self::Glibc => Some("libc"),
            Self::Musl => Some("musl"),
            Self::Jemalloc => Some("jemalloc"),
            Self::Tcmalloc => Some("tcmalloc"),
            Self::Mimalloc => Some("mimalloc"),
            Self::Other => None,
        }
    }
}

/// Whether the module is glibc's dynamic linker, which before 2.31 exported a malloc for its own use until libc's is there.
pub(crate) fn is_dynamic_linker(candidate: &Candidate) -> bool {
    let file = file_name(&candidate.path);
    !candidate.is_executable && (file.starts_with("ld-linux") || file.starts_with("ld-2.") || file.starts_with("ld.so"))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn family(candidate: &Candidate, file: &str) -> Family {
    // Debian has musl as `…/x86_64-linux-musl/libc.so`, under the same file name as glibc's linker script.
    if !candidate.is_executable && file == "libc.so" && candidate.path.contains("musl") {
        return Family::Musl;
    }
    let by_name = FILE_NAMES.iter().find(|(start, _)| !candidate.is_executable && file.starts_with(start));
    if let Some((_, family)) = by_name {
        return *family;
    }
    let defines = |symbol: &str| !candidate.functions(symbol).is_empty();
    let may_be = |family: Family| match family {
        Family::Musl => !candidate.is_executable || candidate.is_static,
        // Another malloc may be linked in before glibc's.
        Family::Glibc if candidate.is_executable => {
            candidate.is_static && same_code(candidate, DEFINING_FUNCTION, "__libc_malloc")
        }
        // Others export `__libc_malloc` too.
        Family::Glibc => defines("gnu_get_libc_version"),
        _ => true,
    };
    let found = FINGERPRINTS.iter().find(|(symbol, family)| defines(symbol) && may_be(*family));
    found.map_or(Family::Other, |(_, family)| *family)
}

/// Whether the module is a build of which [`Identity::is_leaf`] knows.
fn calls_known(candidate: &Candidate, file: &str, family: Family) -> bool {
    let malloc_is =
        |own: &str| candidate.exported(DEFINING_FUNCTION).is_none() || same_code(candidate, DEFINING_FUNCTION, own);
    match family {
        Family::Glibc | Family::Musl | Family::Jemalloc => true,
        Family::Tcmalloc => malloc_is("tc_malloc") && candidate.functions(TCMALLOC_DEBUG).is_empty(),
        Family::Mimalloc => {
            !candidate.is_executable
                && file.starts_with("libmimalloc")
                && !file.contains("debug")
                && malloc_is("mi_malloc")
        }
        Family::Other => false,
    }
}

fn same_code(candidate: &Candidate, one: &str, other: &str) -> bool {
    let offset = |name: &str| candidate.functions(name).first().map(|function| function.offset);
    offset(one).is_some() && offset(one) == offset(other)
}

fn is_leaf_of_jemalloc(function: &str) -> bool {
    let plain = super::jemalloc::PREFIXES.iter().find_map(|prefix| function.strip_prefix(prefix)).unwrap_or(function);
    // The aligned operators call `aligned_alloc`.
    matches!(
        plain,
        "malloc"
            | "calloc"
            | "realloc"
            | "posix_memalign"
            | "aligned_alloc"
            | "memalign"
            | "valloc"
            | "mallocx"
            | "rallocx"
            | "xallocx"
            | "_Znwm"
            | "_Znam"
            | "_ZnwmRKSt9nothrow_t"
            | "_ZnamRKSt9nothrow_t"
    )
}

fn is_leaf_of_tcmalloc(function: &str) -> bool {
    // posix_memalign, valloc and pvalloc call `tc_memalign`. Google's have not been looked at.
    matches!(
        function.strip_prefix("tc_").unwrap_or(function),
        "malloc" | "malloc_skip_new_handler" | "calloc" | "realloc" | "memalign" | "aligned_alloc"
    ) || function.starts_with("_Zn")
        || function.starts_with("tc_new")
}

fn is_leaf_of_mimalloc(function: &str) -> bool {
    matches!(
        function,
        "malloc"
            | "calloc"
            | "mi_malloc"
            | "mi_calloc"
            | "mi_zalloc"
            | "mi_malloc_small"
            | "mi_zalloc_small"
            | "mi_heap_malloc"
            | "mi_heap_zalloc"
            | "mi_heap_calloc"
            | "mi_heap_mallocn"
            | "mi_heap_malloc_small"
            | "mi_heap_malloc_aligned_at"
            | "mi_heap_zalloc_aligned_at"
            | "mi_heap_alloc_new"
            | "mi_heap_alloc_new_n"
            | "mi_new"
            | "mi_new_n"
            | "mi_new_nothrow"
            | "_Znwm"
            | "_Znam"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::resolve::fixture::{candidate, executable};

    fn check(path: &str, is_executable: bool, symbols: &[&str], family: Family, heap: &str) {
        let functions: Vec<(&str, u64)> = symbols.iter().map(|symbol| (*symbol, 1)).collect();
        let module = if is_executable { executable(path, &functions) } else { candidate(0, path, &functions) };
        let identity = Identity::of(&module);
        assert_eq!((identity.family, identity.heap.as_str()), (family, heap), "{path}");
    }

    #[test]
    fn heaps_are_named_after_their_allocator() {
        check("/usr/lib/x86_64-linux-gnu/libc.so.6", false, &["__libc_malloc"], Family::Glibc, "libc");
        check("/usr/lib/x86_64-linux-gnu/libc-2.31.so", false, &[], Family::Glibc, "libc");
        check("/lib/ld-musl-x86_64.so.1", false, &[], Family::Musl, "musl");
        check("/usr/lib/x86_64-linux-musl/libc.so", false, &[], Family::Musl, "musl");
        check("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", false, &["mallocx"], Family::Jemalloc, "jemalloc");
        check("/opt/app/lib/alloc.so", false, &["mi_malloc"], Family::Mimalloc, "mimalloc");
        check("/opt/app/lib/wrap.so", false, &["malloc"], Family::Other, "wrap.so");
        check("/usr/bin/rustc", true, &["mallocx"], Family::Jemalloc, "jemalloc");
        check("/usr/lib/chromium/chromium", true, &["malloc", "__libc_malloc"], Family::Other, "chromium");
        check("/opt/game/engine", true, &[], Family::Other, "engine");
    }

    #[test]
    fn static_programs_have_their_c_librarys_heap() {
        let glibc = [("malloc", 1), ("__libc_malloc", 1), ("gnu_get_libc_version", 2)];
        let family = |functions: &[(&str, u64)]| {
            Identity::of(&Candidate { is_static: true, ..executable("/opt/app", functions) }).family
        };
        assert_eq!(family(&glibc), Family::Glibc);
        assert_eq!(family(&[("malloc", 3), ("__libc_malloc", 1), ("gnu_get_libc_version", 2)]), Family::Other);
        assert_eq!(family(&[("malloc", 1), ("__libc_malloc_impl", 3)]), Family::Musl);
        assert_eq!(Identity::of(&executable("/opt/app", &glibc)).family, Family::Other);
    }

    #[test]
    fn only_what_is_known_is_a_leaf() {
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
            &[("malloc", 1), ("tc_malloc", 1), (TCMALLOC_DEBUG, 2)],
        );
        check(&debug, &[], &["malloc", "tc_malloc"]);
        let mimalloc = [("malloc", 1), ("mi_malloc", 1)];
        check(&candidate(0, "/lib/libmimalloc.so.2.0", &mimalloc), &["malloc", "mi_new"], &["realloc", "mi_mallocn"]);
        check(&candidate(0, "/lib/libmimalloc-debug.so.2", &mimalloc), &[], &["malloc"]);
        check(&executable("/opt/app", &mimalloc), &[], &["malloc", "mi_malloc"]);
        check(&candidate(0, "/lib/wrapper.so", &malloc), &[], &["malloc"]);
    }
}
