//! Names of PHP's functions.

use heapbpf_base::shown;

use crate::object::interpreted::{CUT, CodeLines, Function};

/// Code outside of functions, in PHP's own words (`Exception::getTraceAsString`).
const MAIN: &str = "{main}";

/// A text of which the kernel side has copied a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub(super) bytes: &'a [u8],
    /// It is longer.
    pub(super) is_cut: bool,
}

/// The function with these names. Only functions in PHP have a file.
pub(super) fn function(name: Option<Part<'_>>, class: Option<Part<'_>>, file: Option<Part<'_>>) -> Function {
    let beginning = |part: Part<'_>| {
        // The name of an anonymous class has a zero and its place behind what PHP's messages show.
        let end = part.bytes.iter().position(|byte| *byte == 0);
        let text = shown::text(&part.bytes[..end.unwrap_or(part.bytes.len())]);
        if part.is_cut && end.is_none() { format!("{text}{CUT}") } else { text.into_owned() }
    };
    let name = name.map_or_else(|| MAIN.to_owned(), beginning);
    let name = class.map(beginning).map_or_else(|| name.clone(), |class| format!("{class}::{name}"));
    let file = file.map(|part| {
        let text = shown::text(part.bytes);
        if part.is_cut { format!("{CUT}{text}") } else { text.into_owned() }
    });
    let file = file.filter(|file| !file.is_empty()).map(Into::into);
    Function { name: Some(name.into()), file, lines: CodeLines::Numbers, script: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(text: &str) -> Option<Part<'_>> {
        Some(Part { bytes: text.as_bytes(), is_cut: false })
    }

    fn names(name: Option<Part<'_>>, class: Option<Part<'_>>, file: Option<Part<'_>>) -> (String, Option<String>) {
        let function = function(name, class, file);
        (function.name.expect("always named").to_string(), function.file.map(|file| file.to_string()))
    }

    #[test]
    fn functions_have_class_and_file() {
        let found = |name, class| names(part(name), part(class), part("/a.php"));
        assert_eq!(found("add", r"App\Store"), (r"App\Store::add".to_owned(), Some("/a.php".to_owned())));
        assert_eq!(found("add", "class@anonymous\0/a.php:3$0").0, "class@anonymous::add");
        assert_eq!(names(part("str_repeat"), None, None), ("str_repeat".to_owned(), None));
        assert_eq!(names(None, None, part("/a.php")).0, "{main}");
    }

    #[test]
    fn cut_texts_are_marked() {
        let cut = |text: &'static str| Some(Part { bytes: text.as_bytes(), is_cut: true });
        assert_eq!(names(cut("long"), None, cut("/a.php")), ("long…".to_owned(), Some("…/a.php".to_owned())));
        assert_eq!(names(part("add"), cut("class@anonymous\0/a"), None).0, "class@anonymous::add");
    }

    proptest! {
        #[test]
        fn any_bytes_are_names(name: Vec<u8>, class: Vec<u8>, file: Vec<u8>, is_cut: bool) {
            let part = |bytes| Some(Part { bytes, is_cut });
            let function = function(part(&name), part(&class), part(&file));
            prop_assert!(function.name.is_some_and(|name| name.contains("::")));
        }
    }
}
