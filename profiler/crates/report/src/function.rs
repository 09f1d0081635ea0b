//! Function names shortened for people, classified as program or plumbing (allocators and runtimes), and stacks on one line:
//! `cache_insert (cache.c:42) ← handle_request ← main`. Heuristics for text only: files for programs carry full names and stacks.

use heapbpf_ledger::model::{Frame, FrameId, FrameKind, Profile, base_name};
use profiler_common::stack::StackEnd;

use super::describe::INHERITED;
use super::tables::end_frame;
use super::text;

const FUNCTIONS_MAX: usize = 8;

/// So that a long name does not push out its callers.
const NAME_CHARS_MAX: usize = 60;

/// Prefixes of the modules of allocators and language runtimes, whose callers are of interest.
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

pub fn is_plumbing(frame: &Frame) -> bool {
    match frame.kind {
        FrameKind::Native => {}
        FrameKind::Runtime => return true,
        FrameKind::Interpreted | FrameKind::Jitted => return false,
    }
    let module = frame.module.as_deref().map_or("", base_name);
    if PLUMBING_MODULES.iter().any(|prefix| module.starts_with(prefix)) {
        return true;
    }
    let Some(function) = frame.function.as_deref() else { return false };
    let short = short(function);
    // The name of a template instance starts with its return type: `void std::vector::push_back`.
    let name = if short.starts_with('<') { &short } else { short.rsplit(' ').next().unwrap_or(&short) };
    PLUMBING_FUNCTIONS.contains(&short.as_str())
        || PLUMBING_FUNCTIONS.contains(&name)
        || short.contains(" as alloc::vec::spec_")
        || PLUMBING_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// `std::map<int, Foo>::insert(Foo&&) const` becomes `std::map::insert`; unbalanced brackets change nothing.
pub fn short(function: &str) -> String {
    let mut short = String::with_capacity(function.len());
    let mut rest = function;
    // A Rust implementation, `<T as Trait>::f`, names its type inside the first bracket.
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
        } else if c == '(' && short.ends_with('.') {
            // The receiver of a method in Go, as in `bufio.(*Scanner).Scan`.
            let Some(end) = closing(after, '(', ')') else { return function.to_owned() };
            short.push_str(&rest[..end + 2]);
            rest = &after[end + 1..];
        } else if c == '(' && !short.is_empty() {
            break;
        } else {
            short.push(c);
            rest = after;
        }
    }
    // `Vec<T>::f` can also be spelled `Vec::<T>::f`.
    let short = short.replace("::::", "::");
    let short = without_import_path(short.trim().trim_end_matches("::"));
    if short.is_empty() { function.to_owned() } else { short.to_owned() }
}

/// `github.com/prometheus/prometheus/tsdb.(*Head).Append` becomes `tsdb.(*Head).Append`. A package that is named by its version keeps the
/// one above: `yaml/v3.Unmarshal`.
fn without_import_path(function: &str) -> &str {
    let path = function.split(['(', '[']).next().unwrap_or(function);
    let is_version =
        |name: &str| name.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let Some((above, package)) = path
        .rsplit_once('/')
        .filter(|(above, package)| package.contains('.') && !above.is_empty() && !above.contains([' ', ':', '<']))
    else {
        return function;
    };
    let kept = if is_version(package) { above.rfind('/').map_or(0, |at| at + 1) } else { above.len() + 1 };
    &function[kept..]
}

fn without_arguments(text: &str) -> String {
    let mut depth = 0_usize;
    let mut before = ' ';
    let mut outside = String::new();
    for c in text.chars() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth = depth.saturating_sub(1),
            _ if depth == 0 => outside.push(c),
            _ => {}
        }
        before = c;
    }
    outside
}

/// Finds the bracket that closes the one just before `text`. `->` closes none.
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

/// Returns the C++ operator at the start of `rest`, including brackets that are part of its name.
fn operator(rest: &str) -> Option<&str> {
    const SYMBOLS: [&str; 12] = ["()", "<=>", "<<=", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "<", ">"];
    let symbol = rest.strip_prefix("operator")?;
    let symbol = SYMBOLS.into_iter().find(|known| symbol.starts_with(known))?;
    Some(&rest[.."operator".len() + symbol.len()])
}

/// Formats a stack on one line, from the leaf outwards: the functions of the program, or all frames if there are none.
pub fn chain(profile: &Profile, stack: &[FrameId], end: Option<StackEnd>, inherited: bool) -> String {
    let chain = own_chain(profile, stack, end);
    if inherited { format!("{chain} {INHERITED}") } else { chain }
}

fn own_chain(profile: &Profile, stack: &[FrameId], end: Option<StackEnd>) -> String {
    let missing = end_frame(end, stack);
    if stack.is_empty() {
        return missing.unwrap_or_default();
    }
    let frames: Vec<&Frame> = stack.iter().map(|&id| profile.frame(id)).collect();
    let mut names = collapse(&program_frames(&frames));
    if names.len() > FUNCTIONS_MAX {
        names.truncate(FUNCTIONS_MAX);
        names.push("…".to_owned());
    }
    names.extend(missing);
    names.join(" ← ")
}

/// Of the program's frames without names, the leaf, and the first of each module. Without named ones all, and without frames of
/// the program those of its libraries.
fn program_frames<'a>(frames: &[&'a Frame]) -> Vec<&'a Frame> {
    let program: Vec<&Frame> = frames.iter().copied().filter(|frame| !is_plumbing(frame)).collect();
    if program.is_empty() {
        return frames.to_vec();
    }
    if program.iter().all(|frame| frame.function.is_none()) {
        return program;
    }
    let enters_module =
        |at: usize| at == 0 || program[at].module.is_some() && program[at].module != program[at - 1].module;
    let shown = program.iter().enumerate().filter(|&(at, frame)| frame.function.is_some() || enters_module(at));
    shown.map(|(_, frame)| *frame).collect()
}

/// The frames' names, the first with its source line. Runs of one name (recursion) are merged: `f ×3`.
fn collapse(frames: &[&Frame]) -> Vec<String> {
    let names: Vec<String> = frames.iter().map(|frame| name(frame)).collect();
    let merged = names.chunk_by(|a, b| a == b).map(|run| match run {
        [name] => name.clone(),
        run => format!("{} ×{}", run[0], run.len()),
    });
    let mut merged: Vec<String> = merged.collect();
    if let Some(line) = frames.first().and_then(|frame| source_line(frame)) {
        merged[0] += &format!(" ({line})");
    }
    merged
}

fn name(frame: &Frame) -> String {
    let name = match frame.function.as_deref() {
        // `work.<locals>.<lambda>`, `java.util.HashMap.<init>`: the brackets are no parameters of types.
        Some(function) if !text::printable(function).is_empty() => match is_plain(frame.kind, function) {
            true => text::printable(function).into_owned(),
            false => short(&text::printable(function)),
        },
        _ => Frame { function: None, ..frame.clone() }.label(),
    };
    text::cut(&text::printable(&name), NAME_CHARS_MAX).into_owned()
}

/// Whether a function's name has no types. Perf maps have names with parameters and result: `void Cache.load(int)`.
fn is_plain(kind: FrameKind, function: &str) -> bool {
    kind == FrameKind::Interpreted || kind == FrameKind::Jitted && !function.contains('(')
}

fn source_line(frame: &Frame) -> Option<String> {
    let file = text::printable(frame.file.as_deref()?);
    let file = text::cut(base_name(&file), NAME_CHARS_MAX).into_owned();
    Some(match frame.line {
        Some(line) => format!("{file}:{line}"),
        None => file,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: Option<&str>, module: Option<&str>) -> Frame {
        let (function, module) = (function.map(Into::into), module.map(Into::into));
        Frame { function, module, address: 0x1000, ..Frame::default() }
    }

    #[test]
    fn short_names_have_no_parameters_or_template_arguments() {
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
            ("bufio.(*Scanner).Scan", "bufio.(*Scanner).Scan"),
            ("main.main.func1", "main.main.func1"),
            ("compress/gzip.(*Writer).Write", "gzip.(*Writer).Write"),
            ("github.com/prometheus/prometheus/tsdb.(*Head).Append", "tsdb.(*Head).Append"),
            ("gopkg.in/yaml/v3.Unmarshal", "yaml/v3.Unmarshal"),
            (
                "internal/sync.(*HashTrieMap[go.shape.interface {}]).Load",
                "sync.(*HashTrieMap[go.shape.interface {}]).Load",
            ),
            ("slices.Sort[go.shape.[]example.com/shop.Order]", "slices.Sort[go.shape.[]example.com/shop.Order]"),
            ("Path::operator/(Path const&)", "Path::operator/"),
            ("broken.(*", "broken.(*"),
        ] {
            assert_eq!(short(function), expected, "{function}");
        }
    }

    #[test]
    fn names_of_other_languages_have_brackets_of_their_own() {
        for (kind, function, expected) in [
            (FrameKind::Interpreted, "work.<locals>.<lambda>", "work.<locals>.<lambda>"),
            (FrameKind::Interpreted, "java.util.HashMap.<init>", "java.util.HashMap.<init>"),
            (FrameKind::Jitted, "java.util.HashMap.<init>", "java.util.HashMap.<init>"),
            (FrameKind::Jitted, "void Cache<K>.load(int)", "void Cache.load"),
        ] {
            assert_eq!(name(&Frame { kind, ..frame(Some(function), None) }), expected, "{kind:?}");
        }
    }

    #[test]
    fn plumbing_is_distinguished_from_the_program() {
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
