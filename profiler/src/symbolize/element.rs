//! Infers the element type of a block from the functions on its allocation stack: those of containers and allocators
//! are templates or generics. Pure. Reads only the innermost names, up to the first function that does not belong to
//! a container.
//!
//! Legacy Rust names have no type arguments (`Vec<T,A>::push`), so nothing is inferred from them.

use std::borrow::Cow;
use std::sync::Arc;

use super::qualified::{Qualified, implemented};

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

/// C++ templates and Rust generics, with their element types.
const CONTAINERS: &[(&str, Holds)] = &[
    ("__gnu_cxx::__alloc_traits", Holds::Allocated),
    ("__gnu_cxx::malloc_allocator", Holds::First),
    ("__gnu_cxx::new_allocator", Holds::First),
    ("std::_Deque_base", Holds::First),
    ("std::_Fwd_list_base", Holds::First),
    ("std::_Hashtable", Holds::Second),
    ("std::_List_base", Holds::First),
    ("std::_Rb_tree", Holds::Second),
    ("std::_Vector_base", Holds::First),
    ("std::__allocate_at_least", Holds::Allocated),
    ("std::__allocate_guarded", Holds::Allocated),
    ("std::__allocation_guard", Holds::Allocated),
    ("std::__detail::_Hashtable_alloc", Holds::Allocated),
    ("std::__detail::_Insert", Holds::Second),
    ("std::__detail::_Insert_base", Holds::Second),
    ("std::__detail::_Map_base", Holds::Second),
    ("std::__detail::_Rehash_base", Holds::Second),
    ("std::__forward_list_base", Holds::First),
    ("std::__hash_table", Holds::First),
    ("std::__list_imp", Holds::First),
    ("std::__new_allocator", Holds::First),
    ("std::__split_buffer", Holds::First),
    ("std::__tree", Holds::First),
    ("std::__vector_base", Holds::First),
    ("std::allocate_shared", Holds::First),
    ("std::allocator", Holds::First),
    ("std::allocator_traits", Holds::Allocated),
    ("std::basic_string", Holds::First),
    ("std::deque", Holds::First),
    ("std::forward_list", Holds::First),
    ("std::list", Holds::First),
    ("std::make_shared", Holds::First),
    ("std::make_unique", Holds::First),
    ("std::make_unique_for_overwrite", Holds::First),
    ("std::map", Holds::Pair),
    ("std::multimap", Holds::Pair),
    ("std::multiset", Holds::First),
    ("std::pmr::polymorphic_allocator", Holds::First),
    ("std::set", Holds::First),
    ("std::unordered_map", Holds::Pair),
    ("std::unordered_multimap", Holds::Pair),
    ("std::unordered_multiset", Holds::First),
    ("std::unordered_set", Holds::First),
    ("std::valarray", Holds::First),
    ("std::vector", Holds::First),
    ("alloc::boxed::Box", Holds::First),
    ("alloc::collections::binary_heap::BinaryHeap", Holds::First),
    ("alloc::collections::btree::map::BTreeMap", Holds::Tuple),
    ("alloc::collections::btree::node::InternalNode", Holds::Tuple),
    ("alloc::collections::btree::node::LeafNode", Holds::Tuple),
    ("alloc::collections::btree::set::BTreeSet", Holds::First),
    ("alloc::collections::linked_list::LinkedList", Holds::First),
    ("alloc::collections::vec_deque::VecDeque", Holds::First),
    ("alloc::raw_vec::RawVec", Holds::First),
    ("alloc::rc::Rc", Holds::First),
    ("alloc::slice::hack::to_vec", Holds::First),
    ("alloc::sync::Arc", Holds::First),
    ("alloc::vec::Vec", Holds::First),
    ("alloc::vec::from_elem", Holds::First),
    ("hashbrown::map::HashMap", Holds::Tuple),
    ("hashbrown::raw::RawTable", Holds::First),
    ("hashbrown::set::HashSet", Holds::First),
    ("std::collections::hash::map::HashMap", Holds::Tuple),
    ("std::collections::hash::set::HashSet", Holds::First),
];

/// Nodes that containers put around a value.
const NODES: &[(&str, Holds)] = &[
    ("std::_Fwd_list_node", Holds::First),
    ("std::_List_node", Holds::First),
    ("std::_Rb_tree_node", Holds::First),
    ("std::_Sp_counted_ptr_inplace", Holds::First),
    ("std::__detail::_Hash_node", Holds::First),
    ("std::__forward_list_node", Holds::First),
    ("std::__hash_node", Holds::First),
    ("std::__hash_value_type", Holds::Pair),
    ("std::__list_node", Holds::First),
    ("std::__shared_ptr_emplace", Holds::First),
    ("std::__tree_node", Holds::First),
    ("std::__value_type", Holds::Pair),
    ("alloc::collections::btree::node::InternalNode", Holds::Tuple),
    ("alloc::collections::btree::node::LeafNode", Holds::Tuple),
    ("alloc::collections::linked_list::Node", Holds::First),
    ("alloc::rc::RcBox", Holds::First),
    ("alloc::rc::RcInner", Holds::First),
    ("alloc::sync::ArcInner", Holds::First),
    ("core::mem::manually_drop::ManuallyDrop", Holds::First),
    ("core::mem::maybe_uninit::MaybeUninit", Holds::First),
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

/// Untyped functions, complete names.
const ALLOCATORS: &[&str] = &["aligned_alloc", "calloc", "malloc", "memalign", "posix_memalign", "realloc"];

/// Rust traits that construct vectors of a type.
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

/// Maximum length of a type name, in bytes. Longer ones are cut.
const ELEMENT_BYTES_MAX: usize = 4096;

/// What a function's name implies for the blocks that it allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// They contain elements of this type.
    Holds(Arc<str>),
    /// Nothing; its caller may have a type.
    Nothing,
    /// They are not elements of a container, or it is the program's own function.
    Stop,
}

/// Infers the element type from one function's name.
pub(crate) fn told(name: &str) -> Told {
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
    if let Some(&(_, how)) = CONTAINERS.iter().find(|(path, _)| *path == found.path) {
        let function = found.rest.trim_start_matches(':');
        if NOT_VALUES.iter().any(|other| function.starts_with(other)) {
            return Told::Stop;
        }
        return match argument(how, &found.arguments) {
            Some(name) => holds(&name, is_rust),
            None => Told::Nothing,
        };
    }
    let is_between = BETWEEN.iter().any(|path| found.path.starts_with(path)) || ALLOCATORS.contains(&&*found.path);
    if is_between { Told::Nothing } else { Told::Stop }
}

/// Handles `operator new`, and `Foo::operator new` of a class.
fn own_operator_new(name: &str) -> Option<Told> {
    let before = name.split_once("operator new").filter(|(_, rest)| rest.starts_with(['(', '[']))?.0;
    match before.strip_suffix("::") {
        _ if before.is_empty() => Some(Told::Nothing),
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

/// Unwraps nodes.
fn holds(name: &str, is_rust: bool) -> Told {
    let mut name = Cow::Borrowed(name.trim());
    for _ in 0..LAYERS_MAX {
        let found = Qualified::of_type(&name);
        let node = NODES.iter().find(|(path, _)| *path == found.path && found.rest.trim().is_empty());
        let Some(inside) = node.and_then(|&(_, how)| argument(how, &found.arguments)) else { break };
        name = Cow::Owned(inside.into_owned());
    }
    // A set is a map to nothing.
    let value = name.strip_prefix('(').and_then(|name| name.strip_suffix(", ())"));
    let value = value.filter(|_| is_rust).unwrap_or(&name);
    // Legacy Rust names contain the names of type parameters.
    let is_parameter = |name: &str| name.len() == 1 && name.as_bytes()[0].is_ascii_uppercase();
    if is_rust && (is_parameter(value) || value.starts_with('(') && value.split(['(', ',', ' ', ')']).any(is_parameter))
    {
        return Told::Nothing;
    }
    let is_pointer_to_node = value.ends_with('*') && value.contains("_node_base");
    if value.is_empty() || value == "void" || is_pointer_to_node {
        return Told::Stop;
    }
    if value.len() <= ELEMENT_BYTES_MAX {
        return Told::Holds(value.into());
    }
    Told::Holds(format!("{}…", &value[..value.floor_char_boundary(ELEMENT_BYTES_MAX)]).into())
}

#[cfg(test)]
mod tests;
