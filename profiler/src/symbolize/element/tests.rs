//! Names as g++ 12 and rustc 1.95 make them, and such as nobody makes.

use proptest::prelude::*;

use super::*;

/// What a block holds, from the names of its stack, the leaf first.
fn element<'a>(stack: impl IntoIterator<Item = Option<&'a str>>) -> Option<Arc<str>> {
    for name in stack {
        match element_of(name?) {
            Element::Holds(name) => return Some(name),
            Element::Nothing => {}
            Element::Stop => return None,
        }
    }
    None
}

#[track_caller]
fn check(stack: &[&str], expected: Option<&str>) {
    assert_eq!(element(stack.iter().copied().map(Some)).as_deref(), expected, "{stack:#?}");
}

#[test]
fn vectors_hold_their_elements() {
    check(
        &[
            "operator new(unsigned long)",
            "std::__new_allocator<Foo>::allocate(unsigned long, void const*)",
            "std::vector<Foo, std::allocator<Foo> >::reserve(unsigned long)",
            "main",
        ],
        Some("Foo"),
    );
    check(&["std::vector<Foo, std::allocator<Foo> >::_M_default_append(unsigned long)", "main"], Some("Foo"));
    check(
        &[
            "void std::vector<Foo, std::allocator<Foo> >::_M_realloc_insert<Foo>(__gnu_cxx::__normal_iterator<Foo*, std::vector<Foo, std::allocator<Foo> > >, Foo&&)",
        ],
        Some("Foo"),
    );
    check(
        &[
            "std::allocator_traits<std::allocator<std::pair<int, Foo> > >::allocate(std::allocator<std::pair<int, Foo> >&, unsigned long)",
        ],
        Some("std::pair<int, Foo>"),
    );
    check(&["std::__1::vector<app::Foo, std::__1::allocator<app::Foo>>::push_back(app::Foo&&)"], Some("app::Foo"));
    check(&["std::vector<main::{lambda(int)#1}, A>::reserve(unsigned long)"], Some("main::{lambda(int)#1}"));
    check(&["std::vector<void (*)(int, char), A>::reserve(unsigned long) [.cold]"], Some("void (*)(int, char)"));
}

#[test]
fn nodes_are_unwrapped() {
    check(
        &[
            "std::__new_allocator<std::_Rb_tree_node<std::pair<int const, Foo> > >::allocate(unsigned long, void const*)",
        ],
        Some("std::pair<int const, Foo>"),
    );
    check(
        &[
            "std::pair<std::_Rb_tree_iterator<Foo*>, bool> std::_Rb_tree<Foo*, Foo*, std::_Identity<Foo*>, std::less<Foo*>, std::allocator<Foo*> >::_M_insert_unique<Foo*>(Foo*&&)",
        ],
        Some("Foo*"),
    );
    check(
        &["std::map<int, Foo, std::less<int>, std::allocator<std::pair<int const, Foo> > >::operator[](int&&)"],
        Some("std::pair<int const, Foo>"),
    );
    check(
        &[
            "std::__detail::_Hash_node<std::pair<int const, Foo>, false>* std::__detail::_Hashtable_alloc<std::allocator<std::__detail::_Hash_node<std::pair<int const, Foo>, false> > >::_M_allocate_node<std::tuple<int&&>, std::tuple<> >(std::tuple<int&&>&&, std::tuple<>&&)",
        ],
        Some("std::pair<int const, Foo>"),
    );
    check(&["std::__new_allocator<std::_List_node<Foo> >::allocate(unsigned long, void const*)"], Some("Foo"));
    check(
        &[
            "std::__1::allocator<std::__1::__tree_node<std::__1::__value_type<int, Foo>, void*>>::allocate(unsigned long)",
        ],
        Some("std::pair<int const, Foo>"),
    );
}

#[test]
fn single_objects_have_their_type() {
    check(&["std::__detail::_MakeUniq<Foo>::__single_object std::make_unique<Foo>()", "main"], Some("Foo"));
    check(
        &[
            "std::__new_allocator<std::_Sp_counted_ptr_inplace<Foo, std::allocator<void>, (__gnu_cxx::_Lock_policy)2> >::allocate(unsigned long, void const*)",
        ],
        Some("Foo"),
    );
    check(
        &["std::shared_ptr<std::enable_if<!std::is_array<Foo>::value, Foo>::type> std::make_shared<Foo>()"],
        Some("Foo"),
    );
    check(&["app::Foo::operator new(unsigned long)", "main"], Some("app::Foo"));
}

#[test]
fn allocations_other_than_elements_have_no_type() {
    // Arrays of pointers to nodes.
    check(
        &[
            "std::__new_allocator<std::__detail::_Hash_node_base*>::allocate(unsigned long, void const*)",
            "std::unordered_map<int, Foo>::operator[](int&&)",
        ],
        None,
    );
    check(
        &["std::_Hashtable<int, std::pair<int const, Foo>, A>::_M_rehash(unsigned long, unsigned long const&)"],
        None,
    );
    check(&["std::_Deque_base<Foo, std::allocator<Foo> >::_Deque_base()"], None);
    // The program's own, and what it does for itself inside a container.
    check(
        &["operator new(unsigned long)", "Foo::Foo()", "std::vector<Foo, std::allocator<Foo> >::resize(unsigned long)"],
        None,
    );
    check(&["std::function<void ()>::function<F>(F&&)", "std::vector<Bar, A>::reserve(unsigned long)"], None);
    check(&["my::vector<Foo>::grow()"], None);
    check(&["std::allocator<void>::allocate()"], None);
    check(&["std::map<int>::at()", "main"], None);
    check(&["malloc", "main"], None);
    check(&[], None);
    assert_eq!(element([None, Some("std::vector<Foo, A>::reserve(unsigned long)")]), None);
}

#[test]
fn rust_generics_have_their_element_types() {
    let between = ["__rustc::__rust_alloc", "alloc::alloc::alloc", "<alloc::alloc::Global>::alloc_impl"];
    let global = "<alloc::alloc::Global as core::alloc::Allocator>::allocate";
    let of = |last: &'static str, expected: &str| {
        check(&[between.as_slice(), &[global, last, "r::main"]].concat(), Some(expected));
        check(&[last], Some(expected));
    };
    of("<alloc::raw_vec::RawVec<r::Foo>>::grow_one", "r::Foo");
    of("<alloc::vec::Vec<r::Foo>>::with_capacity_in", "r::Foo");
    of("<alloc::vec::Vec<r::Foo> as alloc::vec::spec_from_iter::SpecFromIter<r::Foo, I>>::from_iter", "r::Foo");
    of("<u64 as alloc::vec::spec_from_elem::SpecFromElem>::from_elem::<alloc::alloc::Global>", "u64");
    of("<u8 as <[_]>::to_vec_in::ConvertVec>::to_vec::<alloc::alloc::Global>", "u8");
    of("alloc::vec::from_elem::<(u32, u64)>", "(u32, u64)");
    of("<alloc::boxed::Box<r::Foo>>::new", "r::Foo");
    of("<alloc::boxed::Box<alloc::sync::ArcInner<r::Foo>>>::new", "r::Foo");
    of("<alloc::boxed::Box<alloc::collections::btree::node::LeafNode<u32, r::Foo>>>::new_uninit_in", "(u32, r::Foo)");
    of("<alloc::boxed::Box<alloc::collections::linked_list::Node<r::Foo>, &alloc::alloc::Global>>::new_in", "r::Foo");
    of("<alloc::collections::vec_deque::VecDeque<fn(u8) -> u16>>::grow", "fn(u8) -> u16");
    of("<hashbrown::raw::RawTable<(u32, r::Foo)>>::reserve_rehash::<r::make<u32>::{closure#0}>", "(u32, r::Foo)");
    of("<hashbrown::raw::RawTable<(r::Foo, ())>>::reserve_rehash", "r::Foo");
    check(
        &[
            "hashbrown::raw::alloc::inner::do_alloc::<alloc::alloc::Global>",
            "<hashbrown::raw::RawTableInner>::prepare_resize::<alloc::alloc::Global>",
            "<hashbrown::raw::RawTable<(u32, r::Foo)>>::reserve",
        ],
        Some("(u32, r::Foo)"),
    );
}

#[test]
fn legacy_rust_names_give_no_type() {
    check(&["alloc::raw_vec::RawVec<T,A>::grow_one", "alloc::vec::Vec<T,A>::push", "r::main"], None);
    check(&["alloc::boxed::Box<T>::new", "r::main"], None);
    check(&["<alloc::vec::Vec<T,A> as core::clone::Clone>::clone", "r::main"], None);
    // A class of C++ may be called so.
    check(&["std::vector<T, std::allocator<T> >::reserve(unsigned long)"], Some("T"));
}

#[test]
fn long_and_nested_names_are_handled() {
    let long = format!("std::vector<{}, A>::reserve(unsigned long)", "a".repeat(10_000));
    let found = element([Some(long.as_str())]).expect("it is a vector's");
    assert!(found.ends_with('…') && found.len() == ELEMENT_BYTES_MAX + '…'.len_utf8());
    let deep = format!("std::vector<{}int{} >::reserve()", "std::_List_node<".repeat(1000), ">".repeat(1000));
    assert!(element([Some(deep.as_str())]).is_some());
    for part in ["<", "std::vector<", "<alloc::vec::Vec<", "<&", "operator<", "alloc::vec::Vec<(", "a as b "] {
        let _ = element([Some(part.repeat(4000).as_str())]);
    }
}

proptest! {
    #[test]
    fn any_name_is_parsed(
        parts in proptest::collection::vec(
            prop_oneof![
                Just("std::vector<"), Just("alloc::vec::Vec"), Just("<"), Just(">"), Just("("), Just(")"), Just(", "), Just("::"),
                Just(" as "), Just("&"), Just("operator new"), Just("[]"), Just("ä"), Just("T"), Just("std::_List_node<"), Just("*"),
            ],
            0..40,
        )
    ) {
        let name = parts.concat();
        if let Some(found) = element([Some(name.as_str())]) {
            prop_assert!(!found.is_empty());
        }
    }
}
