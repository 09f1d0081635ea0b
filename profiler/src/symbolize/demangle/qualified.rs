//! Qualified names, without parameters, of symbols that no library demangles: of D, and of C++20 modules, which cpp_demangle 0.5
//! lacks. What is not understood gives no name.
//!
//! Sources: <https://dlang.org/spec/abi.html#name_mangling>; module names as GCC 11 and Clang 16 write them
//! (<https://github.com/itanium-cxx-abi/cxx-abi/issues/134>).

/// A D function or variable: `_D4file5Cache3addMFiZv` is `file.Cache.add`. `None` if it has back references.
pub(super) fn d(symbol: &str) -> Option<String> {
    if symbol == "_Dmain" {
        return Some("D main".to_owned());
    }
    let mut rest = symbol.strip_prefix("_D")?;
    let mut parts: Vec<String> = Vec::new();
    while let Some((part, after)) = source_name(rest) {
        // An instance of a template has the template's name, and its arguments.
        let instance = part.strip_prefix("__T").or_else(|| part.strip_prefix("__U"));
        parts.push(match instance {
            Some(instance) => format!("{}!(…)", source_name(instance)?.0),
            None => part.to_owned(),
        });
        rest = after;
        // Functions within functions: the type of the outer one, which has no return type, ends with `Z`.
        if let Some((_, after)) = rest.split_once('Z').filter(|(kind, _)| is_nesting(kind))
            && after.starts_with(|next: char| next.is_ascii_digit())
        {
            rest = after;
        }
    }
    if let Some(instance) = rest.strip_prefix("__T").or_else(|| rest.strip_prefix("__U")) {
        // Where the arguments end follows from their types.
        parts.push(format!("{}!(…)", source_name(instance)?.0));
    } else if rest.starts_with('Q') {
        return None;
    }
    (!parts.is_empty()).then(|| parts.join("."))
}

/// A type of a D function without parameters that are types with names of their own.
fn is_nesting(kind: &str) -> bool {
    kind.starts_with(['F', 'M']) && kind.bytes().all(|byte| byte.is_ascii_alphabetic() && byte != b'Q')
}

/// A C++ function or variable of a module: `_ZN4shopW4shopW4core3addEi` is `shop::add@shop.core`.
pub(super) fn of_module(symbol: &str) -> Option<String> {
    let encoding = symbol.strip_prefix("_Z")?;
    if let Some(module) = encoding.strip_prefix("GI") {
        let (module, rest) = module_name(module)?;
        return rest.is_empty().then(|| format!("initializer for module {module}"));
    }
    let nested = encoding.strip_prefix('N');
    let mut rest = nested.unwrap_or(encoding).trim_start_matches(['K', 'V', 'r']);
    let (mut name, mut module) = (String::new(), None);
    while nested.is_some() || name.is_empty() {
        if let Some((found, after)) = module_name(rest) {
            (module, rest) = (Some(found), after);
        }
        let (part, after) = unqualified(rest, &name)?;
        if !name.is_empty() {
            name.push_str("::");
        }
        name.push_str(&part);
        rest = after;
        if rest.starts_with('I') {
            // Where the arguments end follows from their types.
            name.push_str("<…>");
            break;
        }
        if rest.starts_with('E') {
            break;
        }
    }
    module.map(|module| format!("{name}@{module}"))
}

/// The next part of a C++ name, after `outer`.
fn unqualified<'a>(text: &'a str, outer: &str) -> Option<(String, &'a str)> {
    let own = || outer.rsplit("::").next().filter(|own| !own.is_empty());
    for (code, name) in [("C1", own()), ("C2", own()), ("C3", own()), ("St", Some("std"))] {
        if let (Some(after), Some(name)) = (text.strip_prefix(code), name) {
            return Some((name.to_owned(), after));
        }
    }
    for code in ["D0", "D1", "D2"] {
        if let (Some(after), Some(name)) = (text.strip_prefix(code), own()) {
            return Some((format!("~{name}"), after));
        }
    }
    source_name(text).map(|(name, after)| (name.to_owned(), after))
}

/// `W4shopW4core` is `shop.core`, and `W4shopWP4part` is `shop:part`.
fn module_name(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut rest = text;
    while let Some(part) = rest.strip_prefix('W') {
        let partition = part.strip_prefix('P');
        let (part, after) = source_name(partition.unwrap_or(part))?;
        match (partition, name.is_empty()) {
            (Some(_), _) => name.push(':'),
            (None, true) => {}
            (None, false) => name.push('.'),
        }
        name.push_str(part);
        rest = after;
    }
    (!name.is_empty()).then_some((name, rest))
}

/// An identifier after its length in bytes, and what follows it.
fn source_name(text: &str) -> Option<(&str, &str)> {
    let digits = text.find(|next: char| !next.is_ascii_digit())?;
    let length: usize = text[..digits].parse().ok()?;
    let name = text[digits..].get(..length).filter(|name| !name.is_empty())?;
    Some((name, &text[digits + length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_d_are_qualified() {
        for (symbol, name) in [
            ("_D4test3fooAa", "test.foo"),
            ("_D4file5Cache3addMFiZv", "file.Cache.add"),
            ("_D2rt8lifetime__T12_d_newarrayTTaZQsFNaNbNekZAa", "rt.lifetime._d_newarrayT!(…)"),
            ("_D3app4mainQfFZv", ""),
            ("_D4core6memory2GC6mallocFNaNbmkxC8TypeInfoZPv", "core.memory.GC.malloc"),
            ("_D3app10__T3mapTiZ3mapFiZi", "app.map!(…).map"),
            ("_D3app5outerFZ5innerMFNaNbZv", "app.outer.inner"),
            ("_Dmain", "D main"),
            ("_D", ""),
            ("_D9short", ""),
            ("_DYNAMIC", ""),
            ("_D99999999999999999999x", ""),
        ] {
            assert_eq!(d(symbol).unwrap_or_default(), name, "{symbol}");
        }
    }

    /// Symbols of GCC 12, with `-fmodules-ts`.
    #[test]
    fn names_of_modules_are_qualified() {
        for (symbol, name) in [
            ("_ZN5greetW5greetW4core4makeEiNS_S1_3BoxE", "greet::make@greet.core"),
            ("_ZN5greetW5greetW4core4manyINS_S1_3BoxEEEPT_i", "greet::many<…>@greet.core"),
            ("_ZW5greetW4core5plaini", "plain@greet.core"),
            ("_ZGIW5greetW4core", "initializer for module greet.core"),
            ("_ZNW5greetWP4part3BoxC1Ev", "Box::Box@greet:part"),
            ("_ZNKW5greet3BoxD2Ev", "Box::~Box@greet"),
            ("_ZN5greet4makeEi", ""),
            ("_ZW", ""),
            ("_ZNW5greet", ""),
            ("_ZN5größeW1a4makeEi", ""),
        ] {
            assert_eq!(of_module(symbol).unwrap_or_default(), name, "{symbol}");
        }
    }
}
