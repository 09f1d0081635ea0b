//! The string table: every text once, known by its number.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

/// See the module. Number 0 is the empty text.
pub(super) struct Strings<'a> {
    numbers: FxHashMap<Cow<'a, str>, i64>,
    texts: Vec<Cow<'a, str>>,
}

impl Default for Strings<'_> {
    fn default() -> Self {
        let mut strings = Self { numbers: FxHashMap::default(), texts: Vec::new() };
        strings.number("".into());
        strings
    }
}

impl<'a> Strings<'a> {
    /// The number of a text.
    pub(super) fn number(&mut self, text: Cow<'a, str>) -> i64 {
        if let Some(&number) = self.numbers.get(&text) {
            return number;
        }
        let number = i64::try_from(self.texts.len()).expect("texts fit into memory");
        self.texts.push(text.clone());
        self.numbers.insert(text, number);
        number
    }

    /// All texts, in the order of their numbers.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(AsRef::as_ref)
    }
}
