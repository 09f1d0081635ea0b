//! Tells which allocator a module is.

use super::libc;

/// Symbols that one allocator alone defines.
const FINGERPRINTS: &[(&str, &str)] = &[
    ("mallocx", "jemalloc"),
    ("je_mallocx", "jemalloc"),
    ("tc_malloc", "tcmalloc"),
    ("mi_malloc", "mimalloc"),
    ("__libc_malloc", "libc"),
    ("gnu_get_libc_version", "libc"),
];

/// Starts of file names, for allocators that carry no fingerprint of their own.
const FILE_NAMES: &[(&str, &str)] = &[
    ("libc.so", "libc"),
    ("libc-", "libc"),
    ("ld-musl", "musl"),
    ("libc.musl", "musl"),
    ("libjemalloc", "jemalloc"),
    ("libtcmalloc", "tcmalloc"),
    ("libmimalloc", "mimalloc"),
];

/// Symbols to look up in a module: hooks and fingerprints.
#[must_use]
pub fn symbols() -> Vec<&'static str> {
    let hooks = libc::FUNCTIONS.iter().map(|spec| spec.function);
    hooks.chain(FINGERPRINTS.iter().map(|(symbol, _)| *symbol)).collect()
}

/// The heap's name for a module that defines `malloc`: its allocator's, or the module's own.
///
/// An executable may export `__libc_malloc` to stand in for libc (chromium does), so the file's name is asked before the
/// fingerprints that do not speak for one allocator alone.
#[must_use]
pub fn heap_name(path: &str, is_executable: bool, defines: impl Fn(&str) -> bool) -> String {
    let file = path.trim_end_matches(" (deleted)").rsplit('/').next().unwrap_or(path);
    // Debian has musl as `…/x86_64-linux-musl/libc.so`, under the same file name as glibc's linker script.
    if !is_executable && file == "libc.so" && path.contains("musl") {
        return "musl".to_owned();
    }
    if !is_executable && let Some((_, name)) = FILE_NAMES.iter().find(|(start, _)| file.starts_with(start)) {
        return (*name).to_owned();
    }
    let fingerprint = FINGERPRINTS.iter().find(|(symbol, name)| defines(symbol) && !(is_executable && *name == "libc"));
    fingerprint.map_or_else(|| file.to_owned(), |(_, name)| (*name).to_owned())
}

/// Whether a function that calls others of the table in some allocator is known to call none in this one, by the
/// disassembly of Debian 12's glibc 2.36 and jemalloc 5.3: then its unsampled calls need not be followed to their return,
/// which saves a trap. Wrong here would count a block twice now and then, so what is not known is followed.
#[must_use]
pub fn is_leaf(heap: &str, function: &str) -> bool {
    match heap {
        "libc" => function == "calloc",
        "jemalloc" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, is_executable: bool, symbols: &[&str], expected: &str) {
        assert_eq!(heap_name(path, is_executable, |symbol| symbols.contains(&symbol)), expected, "{path}");
    }

    #[test]
    fn only_what_is_known_is_a_leaf() {
        assert!(is_leaf("libc", "calloc") && is_leaf("jemalloc", "posix_memalign"));
        assert!(!is_leaf("libc", "realloc") && !is_leaf("musl", "calloc") && !is_leaf("mimalloc", "posix_memalign"));
    }

    #[test]
    fn heaps_are_named_after_their_allocator() {
        check("/usr/lib/x86_64-linux-gnu/libc.so.6", false, &["__libc_malloc"], "libc");
        check("/usr/lib/x86_64-linux-gnu/libc-2.31.so (deleted)", false, &[], "libc");
        check("/lib/ld-musl-x86_64.so.1", false, &[], "musl");
        check("/usr/lib/x86_64-linux-musl/libc.so", false, &[], "musl");
        check("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", false, &["mallocx"], "jemalloc");
        check("/opt/app/lib/alloc.so", false, &["mi_malloc"], "mimalloc");
        check("/usr/bin/rustc", true, &["mallocx"], "jemalloc");
        check("/usr/lib/chromium/chromium", true, &["__libc_malloc"], "chromium");
        check("/opt/game/engine", true, &[], "engine");
    }
}
