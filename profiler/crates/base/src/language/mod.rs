//! Programming languages, as far as a report has to know them. This is the only list of them: each has its facts in a file here, and
//! what reads its processes in a folder of `interpreter/`.

mod dotnet;
pub mod facts;
mod go;
mod java;
mod javascript;
mod php;
mod python;
mod ruby;

use profiler_common::interpreter::CodeKind;
use serde::{Deserialize, Serialize};
use strum::{EnumIter, IntoEnumIterator};

use self::facts::{Facts, Functions, GeneratedName};
use crate::address::TargetAddr;

/// A language, or programs whose heaps have the same remedies. Recordings contain its number here, reports its name here: a new one
/// is added at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumIter, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
#[cfg_attr(
    any(test, feature = "testing"),
    schemars(rename = "Runtime", description = "A language runtime with an allocator of its own.")
)]
pub enum Language {
    #[serde(rename = "cpython")]
    Python,
    Php,
    Chromium,
    #[serde(rename = "node")]
    JavaScript,
    #[serde(rename = "jvm")]
    Java,
    Go,
    Ruby,
    Dotnet,
    Deno,
    Bun,
}

impl Language {
    pub const fn facts(self) -> &'static Facts {
        match self {
            Self::Python => &python::FACTS,
            Self::Php => &php::FACTS,
            Self::Chromium => &javascript::OF_CHROMIUM,
            Self::JavaScript => &javascript::FACTS,
            Self::Java => &java::FACTS,
            Self::Go => &go::FACTS,
            Self::Ruby => &ruby::FACTS,
            Self::Dotnet => &dotnet::FACTS,
            Self::Deno => &javascript::OF_DENO,
            Self::Bun => &javascript::OF_BUN,
        }
    }

    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    pub fn functions(self) -> Option<&'static Functions> {
        self.facts().functions.as_ref()
    }

    /// Languages whose functions stacks have words for.
    pub fn with_functions() -> impl Iterator<Item = (Self, &'static Functions)> {
        Self::iter().filter_map(|language| Some((language, language.functions()?)))
    }

    /// The place of generated code whose name has a language's form.
    pub fn generated_name(name: &str) -> Option<GeneratedName<'_>> {
        Self::iter().filter_map(|language| language.facts().generated_name).find_map(|parse| parse(name))
    }

    /// The language whose functions this module stands for.
    pub fn of_module(path: &str) -> Option<Self> {
        Self::with_functions().find(|(_, functions)| functions.module == path).map(|(language, _)| language)
    }

    /// The language of this code; `None` only if no language has the kind.
    pub fn of_kind(kind: CodeKind) -> Option<Self> {
        let has = |functions: &Functions| (functions.kinds[0] as u8..=functions.kinds[1] as u8).contains(&(kind as u8));
        Self::with_functions().find(|(_, functions)| has(functions)).map(|(language, _)| language)
    }
}

impl Functions {
    /// The first of their words in stacks, and the first word behind them.
    pub fn words(&self) -> [TargetAddr; 2] {
        let [first, last] = self.kinds;
        let next = CodeKind::from_wire(last as u8 + 1);
        [TargetAddr(first.first_word()), TargetAddr(next.map_or(CodeKind::END, CodeKind::first_word))]
    }
}

#[cfg(test)]
mod tests {
    use profiler_common::interpreter::{INSTRUCTION_UNKNOWN, InterpretedFrame};

    use super::*;

    #[test]
    fn languages_have_their_words() {
        for kind in (0..).map_while(CodeKind::from_wire) {
            let word = InterpretedFrame { kind, code: u64::MAX, instruction: INSTRUCTION_UNKNOWN }.to_word();
            let has = |[start, end]: [TargetAddr; 2]| (start..end).contains(&TargetAddr(word));
            let of: Vec<Language> = Language::with_functions()
                .filter(|(_, functions)| has(functions.words()))
                .map(|(language, _)| language)
                .collect();
            assert_eq!(of, Vec::from_iter(Language::of_kind(kind)), "{kind:?}");
            assert_eq!(of.len(), 1, "{kind:?}");
        }
    }

    #[test]
    fn modules_stand_for_languages() {
        for (language, functions) in Language::with_functions() {
            assert_eq!(Language::of_module(functions.module), Some(language));
        }
        assert_eq!([Language::of_module("/usr/bin/php"), Language::of_module("")], [None, None]);
    }

    /// Recordings and reports of earlier versions are read.
    #[test]
    fn numbers_and_names_stay() {
        let names = ["cpython", "php", "chromium", "node", "jvm", "go", "ruby", "dotnet", "deno", "bun"];
        for ((number, name), language) in (0_u8..).zip(names).zip(Language::iter()) {
            assert_eq!(serde_json::to_value(language).expect("a name"), name);
            assert_eq!(postcard::to_stdvec(&language).expect("a number"), [number]);
        }
        assert_eq!(Language::iter().count(), names.len());
    }
}
