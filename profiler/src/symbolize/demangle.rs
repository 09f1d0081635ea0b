//! Demangles C++, Rust and D names, and bounds the result: a few hundred bytes can expand to gigabytes.

mod qualified;

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// Longer ones do occur, and are printed unchanged.
const MANGLED_BYTES_MAX: usize = 1 << 14;
pub(in crate::symbolize) const NAME_BYTES_MAX: usize = 1 << 14;
/// Deeply nested lambdas and templates stay below.
const NESTING_MAX: u32 = 192;

pub(crate) fn demangle(symbol: &str) -> String {
    let mut name = Bounded::default();
    // Check the prefix: to the C++ demangler, `f` alone is the type `float`.
    let is_short = symbol.len() <= MANGLED_BYTES_MAX;
    let mangled = is_short && (symbol.starts_with("_Z") || symbol.starts_with("_R"));
    if !(mangled && (rust(symbol, &mut name) || cpp(symbol, &mut name))) {
        name = Bounded::default();
        let qualified = if is_short { qualified::of_module(symbol).or_else(|| qualified::d(symbol)) } else { None };
        // It can only fail because of the length.
        let _ = name.write_str(qualified.as_deref().unwrap_or(symbol));
    }
    name.text
}

fn rust(symbol: &str, name: &mut Bounded) -> bool {
    rustc_demangle::try_demangle(symbol).is_ok_and(|demangled| write!(name, "{demangled:#}").is_ok() || name.full)
}

fn cpp(symbol: &str, name: &mut Bounded) -> bool {
    // Parts that the compiler splits off keep the mangled name and add `.cold`, `.part.0`, `.isra.0` and the like.
    let (mangled, suffix) = symbol.split_at(symbol.find('.').unwrap_or(symbol.len()));
    let Ok(parsed) = Symbol::new_with_options(mangled, &ParseOptions::default().recursion_limit(NESTING_MAX)) else {
        return false;
    };
    let written = parsed.structured_demangle(name, &DemangleOptions::default().recursion_limit(NESTING_MAX));
    if written.is_ok() && !suffix.is_empty() {
        let _ = write!(name, " [{suffix}]");
    }
    written.is_ok() || name.full
}

#[derive(Default)]
struct Bounded {
    text: String,
    full: bool,
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = NAME_BYTES_MAX.saturating_sub(self.text.len());
        if !self.full && text.len() <= left {
            self.text.push_str(text);
            return Ok(());
        }
        if !self.full {
            self.text.push_str(&text[..text.floor_char_boundary(left)]);
            self.text.push('…');
            self.full = true;
        }
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(symbol: &str, expected: &str) {
        assert_eq!(demangle(symbol), expected, "{symbol}");
    }

    #[test]
    fn names_become_readable() {
        check("_Znwm", "operator new(unsigned long)");
        check("_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back(int const&)");
        check("_ZN5alloc5alloc15exchange_malloc17h0123456789abcdefE", "alloc::alloc::exchange_malloc");
        check("_RNvC6_123foo3bar", "123foo::bar");
        check("_ZN3foo3barEv.cold", "foo::bar() [.cold]");
        check("_ZN5greetW5greetW4core4makeEiNS_S1_3BoxE", "greet::make@greet.core");
        check("_D4file5Cache3addMFiZv", "file.Cache.add");
    }

    #[test]
    fn c_names_stay_as_they_are() {
        for name in ["f", "i", "main", "Pc", "_start", "v", "", "größe", "_Zwrong", "_Rwrong"] {
            check(name, name);
        }
    }

    #[test]
    fn a_name_that_explodes_is_cut() {
        // Every argument is a pair of the one before it: 2^25 parts out of 200 bytes.
        let mut bomb = "_Z1f4pairIiiE".to_owned();
        for digit in "0123456789ABCDEFGHIJKLMNO".chars() {
            write!(bomb, "S_IS{digit}_S{digit}_E").expect("strings grow");
        }
        let name = demangle(&bomb);
        assert!(name.ends_with('…') && name.starts_with("f(pair<int, int>, "), "{name}");
        assert!(name.len() <= NAME_BYTES_MAX + '…'.len_utf8(), "{}", name.len());
        check(&"a".repeat(20_000), &("a".repeat(NAME_BYTES_MAX) + "…"));
    }

    proptest! {
        #[test]
        fn any_symbol_gives_a_bounded_name(tail in "[A-Za-z0-9_.$]{0,200}", prefix in "(_Z|_ZN|_ZNW|_ZGI|_R|_RNv|_D|)") {
            let name = demangle(&(prefix + &tail));
            prop_assert!(name.len() <= NAME_BYTES_MAX + 3);
        }
    }
}
