//! Lists, reads and parses the files that tidy checks.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use ignore::{DirEntry, WalkBuilder};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned as _;

pub(super) struct Source<'a> {
    /// Relative to the repository's root.
    pub(super) path: &'a str,
    pub(super) text: &'a str,
    pub(super) rust: Option<Rust>,
}

/// A Rust file as a syntax tree, and as tokens, which include the content of macros.
pub(super) struct Rust {
    pub(super) syntax: syn::File,
    pub(super) tokens: TokenStream,
}

impl<'a> Source<'a> {
    pub(super) fn parse(path: &'a str, text: &'a str) -> syn::Result<Self> {
        let rust = if path.ends_with(".rs") {
            Some(Rust { syntax: syn::parse_file(text)?, tokens: text.parse::<TokenStream>()? })
        } else {
            None
        };
        Ok(Self { path, text, rust })
    }

    pub(super) fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.split('/').rev().skip(1).any(|folder| folder == "tests")
    }
}

fn is_cfg_test(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
}

/// Paths of the files, and prefixes of the files below them, of modules that a file declares for tests: `#[cfg(test)] mod name;`.
pub(super) fn test_modules(source: &Source) -> Vec<String> {
    let (folder, file) = source.path.rsplit_once('/').unwrap_or(("", source.path));
    let own_folder = match file {
        "mod.rs" | "lib.rs" | "main.rs" => folder.to_owned(),
        _ => format!("{folder}/{}", file.trim_end_matches(".rs")),
    };
    let items = source.rust.iter().flat_map(|rust| &rust.syntax.items);
    let declarations = items.filter_map(|item| match item {
        syn::Item::Mod(item) if item.content.is_none() && item.attrs.iter().any(is_cfg_test) => Some(item),
        _ => None,
    });
    let stem = |item: &syn::ItemMod| {
        let path = item.attrs.iter().filter(|attribute| attribute.path().is_ident("path")).find_map(|attribute| {
            let syn::Expr::Lit(value) = &attribute.meta.require_name_value().ok()?.value else { return None };
            let syn::Lit::Str(path) = &value.lit else { return None };
            Some(format!("{folder}/{}", path.value().trim_end_matches(".rs")))
        });
        path.unwrap_or_else(|| format!("{own_folder}/{}", item.ident))
    };
    declarations.map(stem).flat_map(|stem| [format!("{stem}.rs"), format!("{stem}/")]).collect()
}

pub(super) fn lines_without_tests(text: &str, file: &syn::File) -> usize {
    let items = file.items.iter().filter(|item| attributes(item).iter().any(is_cfg_test)).map(|item| item.span());
    text.lines().count() - items.map(|span| span.end().line - span.start().line + 1).sum::<usize>()
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

pub(super) fn without_tests(tokens: TokenStream) -> Vec<TokenTree> {
    let mut kept = Vec::new();
    let mut trees = tokens.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let is_hash = matches!(&tree, TokenTree::Punct(punct) if punct.as_char() == '#');
        let cfg_test = |group: &TokenTree| {
            matches!(group, TokenTree::Group(group)
            if group.delimiter() == Delimiter::Bracket && squeezed(&group.stream()) == "cfg(test)")
        };
        if is_hash && trees.peek().is_some_and(cfg_test) {
            // An item ends with its braces or with a semicolon.
            trees.by_ref().find(|tree| match tree {
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                TokenTree::Punct(punct) => punct.as_char() == ';',
                _ => false,
            });
        } else {
            kept.push(tree);
        }
    }
    kept
}

fn squeezed(tokens: &TokenStream) -> String {
    tokens.to_string().split_whitespace().collect()
}

/// Every file that git tracks or would track; works also in an archive, which has no history.
pub(super) fn list(root: &Path) -> Result<Vec<String>> {
    let is_source = |entry: &DirEntry| entry.file_name() != "target" && entry.file_name() != ".git";
    let entries = WalkBuilder::new(root).hidden(false).require_git(false).filter_entry(is_source).build();
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.context("could not list the repository")?;
        if entry.file_type().is_some_and(|kind| kind.is_file()) {
            paths.extend(entry.path().strip_prefix(root)?.to_str().map(str::to_owned));
        }
    }
    paths.sort();
    Ok(paths)
}

/// The content of a text file; `None` for binary files, and for deleted files that are still tracked.
pub(super) fn read(root: &Path, path: &str) -> Result<Option<String>> {
    match fs::read(root.join(path)) {
        Ok(content) if content.contains(&0) => Ok(None),
        Ok(content) => Ok(String::from_utf8(content).ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::IsADirectory => Ok(None),
        Err(error) => Err(error).with_context(|| format!("could not read `{path}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_recognized_by_path() {
        let check = |path, expected| {
            assert_eq!(Source::parse(path, "").expect("empty files parse").is_test(), expected, "{path}");
        };
        check("profiler/src/ledger/tests.rs", true);
        check("tests/src/lib.rs", true);
        check("tests/tests/attach.rs", true);
        check("profiler/src/ledger/live.rs", false);
        check("xtask/src/test.rs", false);
    }

    #[test]
    fn modules_that_are_declared_for_tests() {
        let check = |path, text, expected: &[&str]| {
            assert_eq!(test_modules(&Source::parse(path, text).expect("parses")), expected, "{path}");
        };
        let text = "#[cfg(test)]\nmod fixture;\nmod code;\n#[cfg(test)]\nmod tests {}\n";
        check("src/a/mod.rs", text, &["src/a/fixture.rs", "src/a/fixture/"]);
        check("src/a/b.rs", text, &["src/a/b/fixture.rs", "src/a/b/fixture/"]);
        let named = "#[cfg(test)]\n#[path = \"launch/exit.rs\"]\nmod exit;\n";
        check("src/launch.rs", named, &["src/launch/exit.rs", "src/launch/exit/"]);
    }

    #[test]
    fn test_items_are_removed_from_tokens() {
        let text = "use a; #[cfg(test)] use b; #[cfg(test)] #[expect(x)] mod tests { use c; } #[cfg(linux)] use d;";
        let kept: TokenStream = without_tests(text.parse().expect("tokens")).into_iter().collect();
        assert_eq!(squeezed(&kept), "usea;#[cfg(linux)]used;");
    }

    #[test]
    fn ignored_files_are_not_listed() {
        let folder = tempfile::tempdir().expect("a folder");
        for path in ["a.rs", "src/b.rs", "target/debug/c.rs", "src/target/d.rs", "fuzz/corpus/e", ".git/f"] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("has a parent")).expect("a folder");
            fs::write(path, "x").expect("a file");
        }
        fs::write(folder.path().join("fuzz/.gitignore"), "/corpus\n").expect("a file");
        assert_eq!(list(folder.path()).expect("is readable"), ["a.rs", "fuzz/.gitignore", "src/b.rs"]);
        assert_eq!(read(folder.path(), "a.rs").expect("exists").as_deref(), Some("x"));
        assert_eq!(read(folder.path(), "gone.rs").expect("is no error"), None);
    }
}
