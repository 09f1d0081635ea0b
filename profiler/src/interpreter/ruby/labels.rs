//! Labels of Ruby's instruction sequences.

use std::sync::Arc;

use heapbpf_base::shown;
use profiler_common::interpreter::CODE_NAME_BYTES;
use profiler_common::ruby::OWNER_BYTES;

use crate::object::interpreted::CUT;

/// A label as Ruby's backtraces have it since 3.4 (`calculate_iseq_label` in `vm_backtrace.c`): with the class or module of the method.
pub(super) fn with_owner(label: &str, owner: Option<&str>, is_singleton: bool) -> String {
    let rest = after_blocks(label).unwrap_or(label);
    let blocks = &label[..label.len() - rest.len()];
    // `<main>`, `<class:Cache>`, `<top (required)>`; but `<=>` is a method.
    let is_method = !(rest.starts_with('<') && rest.ends_with('>') && rest.len() > 3);
    match owner.filter(|_| is_method) {
        Some(owner) => format!("{blocks}{owner}{}{rest}", if is_singleton { '.' } else { '#' }),
        None => label.to_owned(),
    }
}

/// What follows `block in ` or `block (2 levels) in `.
fn after_blocks(label: &str) -> Option<&str> {
    let rest = label.strip_prefix("block ")?;
    let rest = match rest.strip_prefix('(') {
        Some(rest) => rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).strip_prefix(" levels) ")?,
        None => rest,
    };
    rest.strip_prefix("in ")
}

/// The copied end of a text. One that is as long as its record can be cut.
pub(super) fn copied<const MAX: usize>(bytes: &[u8; MAX], length: u32) -> Option<Arc<str>> {
    const { assert!(MAX == CODE_NAME_BYTES || MAX == OWNER_BYTES) };
    let bytes = bytes.get(..usize::try_from(length).ok()?).filter(|bytes| !bytes.is_empty())?;
    if bytes.len() < MAX {
        return Some(shown::text(bytes).into());
    }
    // The first character can be the end of one.
    let begin = bytes.iter().position(|byte| byte & 0xc0 != 0x80).unwrap_or(0);
    Some(format!("{CUT}{}", shown::text(&bytes[begin..])).into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_have_the_owner_of_the_method() {
        for (label, expected, singleton) in [
            ("store", "Cache#store", "Cache.store"),
            ("block in store", "block in Cache#store", "block in Cache.store"),
            ("block (2 levels) in store", "block (2 levels) in Cache#store", "block (2 levels) in Cache.store"),
            ("<=>", "Cache#<=>", "Cache.<=>"),
            ("<<", "Cache#<<", "Cache.<<"),
            ("block in <main>", "block in <main>", "block in <main>"),
            ("<class:Cache>", "<class:Cache>", "<class:Cache>"),
            ("<top (required)>", "<top (required)>", "<top (required)>"),
            ("block", "Cache#block", "Cache.block"),
            ("block (x levels) in a", "Cache#block (x levels) in a", "Cache.block (x levels) in a"),
        ] {
            assert_eq!(with_owner(label, Some("Cache"), false), expected);
            assert_eq!(with_owner(label, Some("Cache"), true), singleton);
        }
        assert_eq!(with_owner("block in store", None, false), "block in store");
    }

    #[test]
    fn long_texts_are_cut() {
        let mut bytes = [b'a'; CODE_NAME_BYTES];
        assert_eq!(copied(&bytes, 3).as_deref(), Some("aaa"));
        // The end of `ü`.
        bytes[0] = 0xbc;
        assert_eq!(copied(&bytes, 256), Some(format!("…{}", "a".repeat(255)).into()));
        assert_eq!([copied(&bytes, 0), copied(&bytes, 257), copied(&bytes, u32::MAX)], [None, None, None]);
    }

    proptest! {
        #[test]
        fn any_label_is_decoded(label: String, owner: Option<String>, is_singleton: bool, length: u32) {
            let _ = with_owner(&label, owner.as_deref(), is_singleton);
            let mut bytes = [0x80; OWNER_BYTES];
            bytes.iter_mut().zip(label.bytes()).for_each(|(target, byte)| *target = byte);
            let _ = copied(&bytes, length % 200);
        }
    }
}
