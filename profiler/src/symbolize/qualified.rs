/// Inline namespaces of standard libraries, which do not appear in source code.
const INLINE_NAMESPACES: [&str; 7] = ["__1", "__2", "__ndk1", "__cxx11", "__cxx1998", "__debug", "_V2"];

/// C++ operators with brackets in their names, each before its prefixes.
const OPERATORS: [&str; 14] = ["()", "[]", "<=>", "<<=", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "<", ">", "new[]"];

/// A name up to and including its first type arguments. Parsed in one pass with an explicit stack of brackets, so
/// that any nesting is safe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Qualified<'a> {
    /// Namespaces and name, joined by `::`, without arguments and inline namespaces: `std::vector`,
    /// `alloc::vec::Vec`.
    pub path: String,
    /// The arguments: those of `std::vector<Foo, std::allocator<Foo> >` are `Foo` and `std::allocator<Foo>`.
    pub arguments: Vec<&'a str>,
    /// The rest: `::push_back` of `std::vector<Foo>::push_back`.
    pub rest: &'a str,
}

impl<'a> Qualified<'a> {
    /// Parses the name of a function or type, without its return type and parameters.
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

/// Splits a list at the commas outside of brackets.
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

/// Returns type and trait of an implementation, `T as Trait`.
pub(crate) fn implemented(inside: &str) -> Option<(&str, &str)> {
    let spaces = outside(inside).into_iter().filter(|(_, byte)| *byte == b' ');
    let at = spaces.map(|(at, _)| at).find(|&at| inside[at..].starts_with(" as "))?;
    Some((&inside[..at], &inside[at + " as ".len()..]))
}

/// Returns the bytes outside of brackets with their positions, including the outermost brackets. Operators and arrows
/// are not brackets.
fn outside(text: &str) -> Vec<(usize, u8)> {
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
            b')' | b']' | b'}' => {
                let opening = match byte {
                    b')' => b'(',
                    b']' => b'[',
                    _ => b'{',
                };
                // Unclosed brackets inside were comparisons too.
                if let Some(place) = open.iter().rposition(|&bracket| bracket == opening) {
                    open.truncate(place);
                }
            }
            _ => {}
        }
        if is_outside || open.is_empty() {
            found.push((at, byte));
        }
        at += 1;
    }
    found
}

/// Returns the length of an operator's name, or an arrow, at this position.
fn operator(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    if rest.starts_with(b"->") {
        return Some(2);
    }
    let symbol = rest.strip_prefix(b"operator")?;
    let begins = at.checked_sub(1).is_none_or(|before| !is_word(bytes[before]));
    let symbol = OPERATORS.iter().find(|known| symbol.starts_with(known.as_bytes())).filter(|_| begins)?;
    Some("operator".len() + symbol.len())
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(name: &str, path: &str, arguments: &[&str], rest: &str) {
        let found = Qualified::of_function(name);
        assert_eq!((&*found.path, &*found.arguments, found.rest), (path, arguments, rest), "{name}");
    }

    #[test]
    fn names_come_apart() {
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
    fn operators_and_arrows_are_no_brackets() {
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
        fn any_name_is_survived(name in "([<>(){}:, ]|operator|->|std|::|Foo|ä| as | \\[\\.){0,60}") {
            let found = Qualified::of_function(&name);
            prop_assert!(found.path.len() <= name.len());
            let _ = implemented(&name);
        }

        #[test]
        fn any_text_is_survived(name in ".{0,80}") {
            let _ = Qualified::of_function(&name);
        }
    }

    #[test]
    fn long_names_take_no_longer_than_they_are() {
        for bracket in ["<", ">", "(", "a::", "operator<", "<(", "A<B, "] {
            let _ = Qualified::of_function(&bracket.repeat(100_000));
        }
    }
}
