//! Demangled function names, as people want to see them: shortened, and told apart from allocator and runtime plumbing.
//!
//! Owns guesses about names only, for text that people read. Files for programs carry full names and do not come here.

use crate::model::Frame;
use crate::model::base_name;

/// Modules that hold allocators and language runtimes: who called into them is what matters.
const PLUMBING_MODULES: &[&str] = &[
    "libc.so",
    "libc-2.",
    "ld-linux",
    "ld-musl",
    "libpthread",
    "libstdc++.so",
    "libc++.so",
    "libc++abi.so",
    "libgcc_s",
    "libjemalloc",
    "libtcmalloc",
    "libmimalloc",
];

/// Functions of allocators and runtimes, by their short name. For where these are part of the program itself.
const PLUMBING_FUNCTIONS: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "posix_memalign",
    "aligned_alloc",
    "valloc",
    "pvalloc",
    "mallocx",
    "rallocx",
    "xallocx",
    "operator new",
    "operator new[]",
    "_start",
    "start_thread",
    "clone",
    "clone3",
    "rust_begin_unwind",
];

/// Beginnings of such functions' short names.
const PLUMBING_PREFIXES: &[&str] = &[
    "std::",
    "__gnu_cxx::",
    "alloc::",
    "core::",
    "hashbrown::",
    "<std::",
    "<alloc::",
    "<core::",
    "<hashbrown::",
    "__rust_",
    "__rustc::",
    "__rdl_",
    "__rg_",
    "__libc_",
];

/// Whether the frame is an allocator's or a runtime's, as far as its name and module tell.
pub(super) fn is_plumbing(frame: &Frame) -> bool {
    let module = frame.module.as_deref().map_or("", base_name);
    if PLUMBING_MODULES.iter().any(|prefix| module.starts_with(prefix)) {
        return true;
    }
    let Some(function) = frame.function.as_deref() else { return false };
    let short = short(function);
    // A template's name begins with what it returns: `void std::vector::push_back`. An implementation's does not.
    let name = if short.starts_with('<') { &short } else { short.rsplit(' ').next().unwrap_or(&short) };
    PLUMBING_FUNCTIONS.contains(&short.as_str())
        || PLUMBING_FUNCTIONS.contains(&name)
        || short.contains(" as alloc::vec::spec_")
        || PLUMBING_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The function's name without parameters and template arguments: `std::map::insert` for
/// `std::map<int, Foo>::insert(Foo&&) const`. A name whose brackets do not match stays as it is.
pub(super) fn short(function: &str) -> String {
    let mut short = String::with_capacity(function.len());
    let mut rest = function;
    // A Rust implementation, `<T as Trait>::f`, says what matters inside the bracket that it begins with.
    if let Some(inside) = rest.strip_prefix('<') {
        let Some(end) = closing(inside, '<', '>') else { return function.to_owned() };
        short = format!("<{}>", without_arguments(&inside[..end]));
        rest = &inside[end + 1..];
    }
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        if let Some(symbol) = operator(rest) {
            short.push_str(symbol);
            rest = &rest[symbol.len()..];
        } else if let Some(namespace) =
            ["(anonymous namespace)", "(anonymous class)"].into_iter().find(|n| rest.starts_with(n))
        {
            short.push_str(namespace);
            rest = &rest[namespace.len()..];
        } else if c == '<' || c == '{' {
            let Some(end) = closing(after, c, if c == '<' { '>' } else { '}' }) else { return function.to_owned() };
            if c == '{' {
                short.push_str(&rest[..end + 2]);
            }
            rest = &after[end + 1..];
        } else if c == '(' && !short.is_empty() {
            break;
        } else {
            short.push(c);
            rest = after;
        }
    }
    // `Vec<T>::f` is written `Vec::<T>::f` too.
    let short = short.replace("::::", "::");
    let short = short.trim().trim_end_matches("::");
    if short.is_empty() { function.to_owned() } else { short.to_owned() }
}

/// The text without what is in angle brackets.
fn without_arguments(text: &str) -> String {
    let mut depth = 0_usize;
    let mut before = ' ';
    let mut kept = String::new();
    for c in text.chars() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth = depth.saturating_sub(1),
            _ if depth == 0 => kept.push(c),
            _ => {}
        }
        before = c;
    }
    kept
}

/// Where the bracket closes that was opened just before `text`. `->` closes none.
fn closing(text: &str, open: char, close: char) -> Option<usize> {
    let mut depth = 1_usize;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        if c == open {
            depth += 1;
        } else if c == close && before != '-' {
            depth -= 1;
            if depth == 0 {
                return Some(at);
            }
        }
        before = c;
    }
    None
}

/// A C++ operator's name at the beginning of `rest`, with the brackets that belong to it.
fn operator(rest: &str) -> Option<&str> {
    const SYMBOLS: [&str; 12] = ["()", "<=>", "<<=", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "<", ">"];
    let symbol = rest.strip_prefix("operator")?;
    let symbol = SYMBOLS.into_iter().find(|known| symbol.starts_with(known))?;
    Some(&rest[.."operator".len() + symbol.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: Option<&str>, module: Option<&str>) -> Frame {
        let (function, module) = (function.map(Into::into), module.map(Into::into));
        Frame { function, module, address: 0x1000, ..Frame::default() }
    }

    #[test]
    fn short_names_say_what_matters() {
        for (function, expected) in [
            ("cache_insert", "cache_insert"),
            ("Cache::insert(int, Item const&) const", "Cache::insert"),
            ("std::map<int, std::pair<A, B> >::insert(A&&)", "std::map::insert"),
            ("void std::vector<int>::push_back<int&>(int&)", "void std::vector::push_back"),
            ("Set::operator()(int) const", "Set::operator()"),
            ("Set::operator<(Set const&)", "Set::operator<"),
            ("Ptr<T>::operator->() const", "Ptr::operator->"),
            ("(anonymous namespace)::load(char const*)", "(anonymous namespace)::load"),
            ("main::{lambda(int)#1}::operator()(int) const", "main::{lambda(int)#1}::operator()"),
            ("operator new(unsigned long)", "operator new"),
            ("app::run::{{closure}}", "app::run::{{closure}}"),
            ("<app::Cache<K, V> as core::clone::Clone>::clone", "<app::Cache as core::clone::Clone>::clone"),
            ("alloc::vec::Vec<T,A>::push", "alloc::vec::Vec::push"),
            ("app::map::<fn(u8) -> u16>::get", "app::map::get"),
            ("broken<<<", "broken<<<"),
            ("<<<", "<<<"),
            ("", ""),
            ("()", "()"),
            ("größe<ß>(ä)", "größe"),
        ] {
            assert_eq!(short(function), expected, "{function}");
        }
    }

    #[test]
    fn plumbing_is_told_from_the_program() {
        for (function, module, expected) in [
            (Some("cache_insert"), Some("/usr/bin/app"), false),
            (None, Some("/usr/bin/app"), false),
            (None, None, false),
            (Some("strdup"), Some("/lib/x86_64-linux-gnu/libc.so.6"), true),
            (None, Some("/usr/lib/libjemalloc.so.2"), true),
            (Some("operator new(unsigned long)"), Some("/usr/bin/app"), true),
            (Some("operator new[](unsigned long)"), Some("/usr/bin/app"), true),
            (Some("void std::vector<A>::push_back(A const&)"), Some("/usr/bin/app"), true),
            (Some("std::string join<A>(A const&)"), Some("/usr/bin/app"), false),
            (Some("alloc::raw_vec::RawVec<T>::grow_one"), Some("/usr/bin/app"), true),
            (Some("<alloc::string::String as core::clone::Clone>::clone"), Some("/usr/bin/app"), true),
            (Some("<app::Key as core::clone::Clone>::clone"), Some("/usr/bin/app"), false),
            (Some("app::std::read"), Some("/usr/bin/app"), false),
        ] {
            assert_eq!(is_plumbing(&frame(function, module)), expected, "{function:?} in {module:?}");
        }
    }
}
