//! Infers the element type of a block from the names on its allocation stack: functions of containers are templates or
//! generics. Reads names up to the first function outside containers. Legacy Rust names have no type arguments.

use std::borrow::Cow;
use std::sync::Arc;

/// Which template argument is the type of a container's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    First,
    Second,
    /// Pairs of both arguments: `std::pair<K const, V>`.
    Pair,
    /// The same in Rust: `(K, V)`.
    Tuple,
    /// The first is an allocator of the type.
    Allocated,
}

/// C++ templates and Rust generics: namespace, element type, names.
const CONTAINERS: &[(&str, Holds, &str)] = &[
    ("__gnu_cxx", Holds::Allocated, "__alloc_traits"),
    ("__gnu_cxx", Holds::First, "malloc_allocator new_allocator"),
    (
        "std",
        Holds::First,
        "_Deque_base _Fwd_list_base _List_base _Vector_base __forward_list_base __hash_table __list_imp \
            __new_allocator __split_buffer __tree __vector_base allocate_shared allocator basic_string deque \
            forward_list list make_shared make_unique make_unique_for_overwrite multiset set unordered_multiset \
            unordered_set valarray vector",
    ),
    ("std", Holds::Second, "_Hashtable _Rb_tree"),
    ("std", Holds::Allocated, "__allocate_at_least __allocate_guarded __allocation_guard allocator_traits"),
    ("std::__detail", Holds::Allocated, "_Hashtable_alloc"),
    ("std::__detail", Holds::Second, "_Insert _Insert_base _Map_base _Rehash_base"),
    ("std", Holds::Pair, "map multimap unordered_map unordered_multimap"),
    ("std::pmr", Holds::First, "polymorphic_allocator"),
    ("alloc::boxed", Holds::First, "Box"),
    ("alloc::collections::binary_heap", Holds::First, "BinaryHeap"),
    ("alloc::collections::btree::map", Holds::Tuple, "BTreeMap"),
    ("alloc::collections::btree::node", Holds::Tuple, "InternalNode LeafNode"),
    ("alloc::collections::btree::set", Holds::First, "BTreeSet"),
    ("alloc::collections::linked_list", Holds::First, "LinkedList"),
    ("alloc::collections::vec_deque", Holds::First, "VecDeque"),
    ("alloc::raw_vec", Holds::First, "RawVec"),
    ("alloc::rc", Holds::First, "Rc"),
    ("alloc::slice::hack", Holds::First, "to_vec"),
    ("alloc::sync", Holds::First, "Arc"),
    ("alloc::vec", Holds::First, "Vec from_elem"),
    ("hashbrown::map", Holds::Tuple, "HashMap"),
    ("hashbrown::raw", Holds::First, "RawTable"),
    ("hashbrown::set", Holds::First, "HashSet"),
    ("std::collections::hash::map", Holds::Tuple, "HashMap"),
    ("std::collections::hash::set", Holds::First, "HashSet"),
];

const NODES: &[(&str, Holds, &str)] = &[
    (
        "std",
        Holds::First,
        "_Fwd_list_node _List_node _Rb_tree_node _Sp_counted_ptr_inplace __forward_list_node __hash_node \
            __list_node __shared_ptr_emplace __tree_node",
    ),
    ("std::__detail", Holds::First, "_Hash_node"),
    ("std", Holds::Pair, "__hash_value_type __value_type"),
    ("alloc::collections::btree::node", Holds::Tuple, "InternalNode LeafNode"),
    ("alloc::collections::linked_list", Holds::First, "Node"),
    ("alloc::rc", Holds::First, "RcBox RcInner"),
    ("alloc::sync", Holds::First, "ArcInner"),
    ("core::mem::manually_drop", Holds::First, "ManuallyDrop"),
    ("core::mem::maybe_uninit", Holds::First, "MaybeUninit"),
];

/// Prefixes of untyped functions between containers and allocators.
const BETWEEN: &[&str] = &[
    "__libc_",
    "__rdl_",
    "__rg_",
    "__rust_",
    "__rustc::",
    "alloc::alloc::",
    "alloc::boxed::box_new_uninit",
    "alloc::raw_vec::",
    "hashbrown::raw::",
    "std::__libcpp_",
    "std::alloc::",
    "std::sys::alloc::",
];

const ALLOCATORS: &[&str] = &["aligned_alloc", "calloc", "malloc", "memalign", "posix_memalign", "realloc"];
const VECTOR_TRAITS: &[&str] = &["alloc::vec::spec_from_elem::SpecFromElem", "::to_vec_in::ConvertVec"];

/// Functions of containers that allocate arrays of pointers to nodes, or various types.
const NOT_VALUES: &[&str] = &[
    "_Deque_base",
    "_M_allocate_buckets",
    "_M_allocate_map",
    "_M_initialize_map",
    "_M_reallocate_map",
    "_M_rehash",
    "__do_rehash",
    "__rehash",
];

/// Maximum number of layers of implementations or nodes to remove; two occur.
const LAYERS_MAX: usize = 8;
const ELEMENT_BYTES_MAX: usize = 4096;

/// What a function's name implies for the blocks that it allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Holds(Arc<str>),
    /// Nothing; its caller may have a type.
    Nothing,
    /// They are not elements of a container, or it is the program's own function.
    Stop,
}

pub(crate) fn element_of(name: &str) -> Element {
    if let Some(class) = own_operator_new(name) {
        return class;
    }
    let mut found = Qualified::of_function(name);
    // In an implementation, the implementing type matters.
    for _ in 0..LAYERS_MAX {
        let ("", &[inside]) = (&*found.path, &*found.arguments) else { break };
        let (of, by) = implemented(inside).unwrap_or((inside, ""));
        if VECTOR_TRAITS.iter().any(|known| by.contains(known)) {
            return holds(of, true);
        }
        let rest = found.rest;
        found = Qualified::of_type(of.trim_start_matches(['&', '*']));
        if found.rest.is_empty() {
            found.rest = rest;
        }
    }
    let is_rust = ["alloc::", "hashbrown::", "std::collections::"].iter().any(|root| found.path.starts_with(root));
    if let Some(how) = find(CONTAINERS, &found.path) {
        let function = found.rest.trim_start_matches(':');
        if NOT_VALUES.iter().any(|other| function.starts_with(other)) {
            return Element::Stop;
        }
        return match argument(how, &found.arguments) {
            Some(name) => holds(&name, is_rust),
            None => Element::Nothing,
        };
    }
    let is_between = BETWEEN.iter().any(|path| found.path.starts_with(path)) || ALLOCATORS.contains(&&*found.path);
    if is_between { Element::Nothing } else { Element::Stop }
}

fn find(table: &[(&str, Holds, &str)], path: &str) -> Option<Holds> {
    let (namespace, name) = path.rsplit_once("::")?;
    let is_row =
        |&&(of, _, names): &&(&str, Holds, &str)| of == namespace && names.split(' ').any(|known| known == name);
    table.iter().find(is_row).map(|&(_, how, _)| how)
}

fn own_operator_new(name: &str) -> Option<Element> {
    let before = name.split_once("operator new").filter(|(_, rest)| rest.starts_with(['(', '[']))?.0;
    match before.strip_suffix("::") {
        _ if before.is_empty() => Some(Element::Nothing),
        Some(class) => Some(holds(class, false)),
        None => None,
    }
}

fn argument<'a>(how: Holds, arguments: &[&'a str]) -> Option<Cow<'a, str>> {
    let first = *arguments.first()?;
    Some(match (how, arguments.get(1)) {
        (Holds::First, _) => first.into(),
        (Holds::Second, second) => (*second?).into(),
        (Holds::Pair, second) => format!("std::pair<{first} const, {}>", second?).into(),
        (Holds::Tuple, second) => format!("({first}, {})", second?).into(),
        (Holds::Allocated, _) => {
            let allocator = Qualified::of_type(first);
            let is_whole = allocator.rest.is_empty() && !allocator.arguments.is_empty();
            is_whole.then(|| allocator.arguments[0])?.into()
        }
    })
}

fn holds(name: &str, is_rust: bool) -> Element {
    let mut name = Cow::Borrowed(name.trim());
    for _ in 0..LAYERS_MAX {
        let found = Qualified::of_type(&name);
        let node = find(NODES, &found.path).filter(|_| found.rest.trim().is_empty());
        let Some(inside) = node.and_then(|how| argument(how, &found.arguments)) else { break };
        name = Cow::Owned(inside.into_owned());
    }
    // A set is a map to nothing.
    let value = name.strip_prefix('(').and_then(|name| name.strip_suffix(", ())"));
    let value = value.filter(|_| is_rust).unwrap_or(&name);
    // Legacy Rust names contain the names of type parameters.
    let is_parameter = |name: &str| name.len() == 1 && name.as_bytes()[0].is_ascii_uppercase();
    if is_rust && (is_parameter(value) || value.starts_with('(') && value.split(['(', ',', ' ', ')']).any(is_parameter))
    {
        return Element::Nothing;
    }
    let is_pointer_to_node = value.ends_with('*') && value.contains("_node_base");
    if value.is_empty() || value == "void" || is_pointer_to_node {
        return Element::Stop;
    }
    if value.len() <= ELEMENT_BYTES_MAX {
        return Element::Holds(value.into());
    }
    Element::Holds(format!("{}…", &value[..value.floor_char_boundary(ELEMENT_BYTES_MAX)]).into())
}

/// Inline namespaces of standard libraries, which do not appear in source code.
const INLINE_NAMESPACES: [&str; 7] = ["__1", "__2", "__ndk1", "__cxx11", "__cxx1998", "__debug", "_V2"];
/// C++ operators with brackets in their names, each before its prefixes.
const OPERATORS: [&str; 14] = ["()", "[]", "<=>", "<<=", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "<", ">", "new[]"];

/// A name up to and including its first type arguments. Parsed with an explicit stack of brackets: any nesting is safe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Qualified<'a> {
    /// Without arguments and inline namespaces: `std::vector`, `alloc::vec::Vec`.
    pub path: String,
    pub arguments: Vec<&'a str>,
    /// `::push_back` of `std::vector<Foo>::push_back`.
    pub rest: &'a str,
}

impl<'a> Qualified<'a> {
    /// `name` has neither return type nor parameters.
    pub(crate) fn of_function(name: &'a str) -> Self {
        // Suffixes of parts that a compiler splits off follow the name.
        let name = [" [.", " [clone"].iter().fold(name, |name, suffix| name.split(suffix).next().unwrap_or(name));
        let mut start = 0;
        let mut end = name.len();
        for (at, byte) in outside(name) {
            match byte {
                b' ' => start = at + 1,
                b'(' if at > start && !name[at..].starts_with("(anonymous ") => {
                    end = at;
                    break;
                }
                _ => {}
            }
        }
        Self::of_type(&name[start..end])
    }

    pub(crate) fn of_type(name: &'a str) -> Self {
        let name = name.trim();
        let mut path = String::new();
        let mut from = 0;
        let mut open = None;
        for (at, byte) in outside(name) {
            match (byte, open) {
                (b'<', None) => open = Some(at),
                (b'>', Some(open)) if name[from..open].is_empty() && path.is_empty() => {
                    // An implementation: `<alloc::vec::Vec<T> as Trait>::f`.
                    return Self { path, arguments: vec![&name[open + 1..at]], rest: &name[at + 1..] };
                }
                (b'>', Some(open)) => {
                    push(&mut path, &name[from..open]);
                    return Self { path, arguments: listed(&name[open + 1..at]), rest: &name[at + 1..] };
                }
                (b':', None) if name[at..].starts_with("::") && at >= from => {
                    push(&mut path, &name[from..at]);
                    from = at + 2;
                }
                _ => {}
            }
        }
        push(&mut path, name.get(from..).unwrap_or_default());
        Self { path, arguments: Vec::new(), rest: "" }
    }
}

fn push(path: &mut String, part: &str) {
    if part.is_empty() || INLINE_NAMESPACES.contains(&part) {
        return;
    }
    if !path.is_empty() {
        path.push_str("::");
    }
    path.push_str(part);
}

fn listed(list: &str) -> Vec<&str> {
    let mut from = 0;
    let mut parts = Vec::new();
    for (at, _) in outside(list).into_iter().filter(|(_, byte)| *byte == b',') {
        parts.push(list[from..at].trim());
        from = at + 1;
    }
    parts.push(list[from..].trim());
    parts
}

pub(crate) fn implemented(inside: &str) -> Option<(&str, &str)> {
    let spaces = outside(inside).into_iter().filter(|(_, byte)| *byte == b' ');
    let at = spaces.map(|(at, _)| at).find(|&at| inside[at..].starts_with(" as "))?;
    Some((&inside[..at], &inside[at + " as ".len()..]))
}

/// Bytes outside of brackets, with positions, and the outermost brackets. Operators and arrows are not brackets.
fn outside(text: &str) -> Vec<(usize, u8)> {
    // Unclosed brackets inside were comparisons too.
    let close = |open: &mut Vec<u8>, bracket| {
        let place = open.iter().rposition(|&opened| opened == bracket);
        open.truncate(place.unwrap_or(open.len()));
    };
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut open: Vec<u8> = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if let Some(length) = operator(bytes, at) {
            at += length;
            continue;
        }
        let is_outside = open.is_empty();
        match byte {
            b'<' | b'(' | b'[' | b'{' => open.push(byte),
            // Within parentheses it is a comparison: `Foo<(1 > 2)>`.
            b'>' if open.last() == Some(&b'<') => {
                open.pop();
            }
            b')' => close(&mut open, b'('),
            b']' => close(&mut open, b'['),
            b'}' => close(&mut open, b'{'),
            _ => {}
        }
        if is_outside || open.is_empty() {
            found.push((at, byte));
        }
        at += 1;
    }
    found
}

fn operator(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    if rest.starts_with(b"->") {
        return Some(2);
    }
    let symbol = rest.strip_prefix(b"operator")?;
    let begins = at
        .checked_sub(1)
        .is_none_or(|before| !(bytes[before].is_ascii_alphanumeric() || b"_$".contains(&bytes[before])));
    let symbol = OPERATORS.iter().find(|known| symbol.starts_with(known.as_bytes())).filter(|_| begins)?;
    Some("operator".len() + symbol.len())
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod qualified_tests {
    use proptest::prelude::*;

    use super::*;

    fn check(name: &str, path: &str, arguments: &[&str], rest: &str) {
        let found = Qualified::of_function(name);
        assert_eq!((&*found.path, &*found.arguments, found.rest), (path, arguments, rest), "{name}");
    }

    #[test]
    fn names_are_split() {
        check("main", "main", &[], "");
        check("Cache::insert(int, Item<int> const&) const", "Cache::insert", &[], "");
        check(
            "std::vector<Foo, std::allocator<Foo> >::reserve(unsigned long)",
            "std::vector",
            &["Foo", "std::allocator<Foo>"],
            "::reserve",
        );
        check("std::__1::map<int, A<B, C>>::at(int)", "std::map", &["int", "A<B, C>"], "::at");
        check(
            "std::pair<It<Foo*>, bool> std::_Rb_tree<Foo*, Foo*>::_M_insert(Foo*&&)",
            "std::_Rb_tree",
            &["Foo*", "Foo*"],
            "::_M_insert",
        );
        check("std::_MakeUniq<Foo>::__single_object std::make_unique<Foo>()", "std::make_unique", &["Foo"], "");
        check("alloc::vec::from_elem::<u64>", "alloc::vec::from_elem", &["u64"], "");
        check("<alloc::vec::Vec<r::Foo>>::push", "", &["alloc::vec::Vec<r::Foo>"], "::push");
        check("(anonymous namespace)::Box<int>::make()", "(anonymous namespace)::Box", &["int"], "::make");
        check("void run<main::{lambda(int)#1}>(A) [.cold]", "run", &["main::{lambda(int)#1}"], "");
    }

    #[test]
    fn operators_and_arrows_are_not_brackets() {
        check("Set<A>::operator<(Set<A> const&)", "Set", &["A"], "::operator<");
        check("std::ostream& operator<< <char>(std::ostream&, char)", "", &["char"], "");
        check("Ptr<T>::operator->() const", "Ptr", &["T"], "::operator->");
        check("F<fn(u8) -> u16, B>::call", "F", &["fn(u8) -> u16", "B"], "::call");
        check("A<(1 > 2), B>::f()", "A", &["(1 > 2)", "B"], "::f");
        check("A<(1 < 2), B>::f()", "A", &["(1 < 2)", "B"], "::f");
        check("my_operator<A>::f()", "my_operator", &["A"], "::f");
    }

    #[test]
    fn implementations_have_a_type_and_a_trait() {
        assert_eq!(implemented("u64 as a::Spec<b as c>"), Some(("u64", "a::Spec<b as c>")));
        assert_eq!(implemented("A<b as c>"), None);
    }

    proptest! {
        #[test]
        fn any_name_is_parsed(name in "([<>(){}:, ]|operator|->|std|::|Foo|ä| as | \\[\\.){0,60}") {
            let found = Qualified::of_function(&name);
            prop_assert!(found.path.len() <= name.len());
            let _ = implemented(&name);
        }

        #[test]
        fn any_text_is_parsed(name in ".{0,80}") {
            let _ = Qualified::of_function(&name);
        }
    }

    #[test]
    fn parsing_takes_linear_time() {
        for bracket in ["<", ">", "(", "a::", "operator<", "<(", "A<B, "] {
            let _ = Qualified::of_function(&bracket.repeat(100_000));
        }
    }
}
