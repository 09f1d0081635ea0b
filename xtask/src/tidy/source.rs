//! Lists, reads, parses and measures the files that tidy checks.

use std::collections::BTreeMap;
use std::fmt::Write as _;
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
        && attribute
            .meta
            .require_list()
            .is_ok_and(|list| is_test_condition(&format!("cfg({})", squeezed(&list.tokens))))
}

/// Those that are compiled into heapbpf, not into its tests alone.
pub(super) fn without_test_files<'a, 'b>(sources: &'a [Source<'b>]) -> impl Iterator<Item = &'a Source<'b>> {
    let test_modules: Vec<String> = sources.iter().flat_map(test_modules).collect();
    let is_test =
        move |source: &Source| source.is_test() || test_modules.iter().any(|module| source.path.starts_with(module));
    sources.iter().filter(move |source| !is_test(source))
}

/// Paths of the files, and prefixes of the files below them, of modules that a file declares for tests: `#[cfg(test)] mod name;`.
fn test_modules(source: &Source) -> Vec<String> {
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
            if group.delimiter() == Delimiter::Bracket && is_test_condition(&squeezed(&group.stream())))
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

/// Returns whether an attribute, without spaces, keeps an item out of programs that are released.
fn is_test_condition(attribute: &str) -> bool {
    matches!(attribute, "cfg(test)" | "cfg(feature=\"testing\")" | "cfg(any(test,feature=\"testing\"))")
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

const PARTS: [&str; 4] = ["profiler/", "xtask/", "profiler-common/", "profiler-ebpf/"];

#[derive(Clone, Copy, Default)]
struct Size {
    files: usize,
    lines: usize,
    public: usize,
}

impl Size {
    fn add(&mut self, other: Self) {
        self.files += other.files;
        self.lines += other.lines;
        self.public += other.public;
    }
}

pub(super) fn statistics(sources: &[Source]) -> String {
    // Parts, their sum and folders, in this order.
    let mut sizes = BTreeMap::<(u8, String), Size>::new();
    for source in without_test_files(sources) {
        let part = PARTS.into_iter().find(|part| source.path.starts_with(part));
        if let (Some(part), Some(size)) = (part, size(source)) {
            let names = [(0, part.to_owned()), (1, "total".to_owned()), (2, format!("  {}", folder(source.path)))];
            names.into_iter().for_each(|name| sizes.entry(name).or_default().add(size));
        }
    }
    let is_documentation = |path: &str| path == "README.md" || path.starts_with("docs/") && path.ends_with(".md");
    let pages = sources.iter().filter(|source| is_documentation(source.path));
    let tokens: Vec<&str> = pages.flat_map(|page| page.text.split_whitespace()).collect();
    let words = tokens.iter().filter(|token| token.contains(char::is_alphanumeric)).count();
    let mut text = format!(
        "Rust without tests: `tests.rs`, folders `tests`, and files and items declared `#[cfg(test)]` are excluded\n{:<36} \
         {:>6} {:>7} {:>5}\n",
        "", "files", "lines", "pub"
    );
    for ((_, name), Size { files, lines, public }) in &sizes {
        let _ = writeln!(text, "{name:<36} {files:>6} {lines:>7} {public:>5}");
    }
    let tokens = tokens.len();
    let _ = writeln!(text, "\nwords in docs/*.md and README.md: {words} ({tokens} with table rules and other signs)");
    text
}

fn size(source: &Source) -> Option<Size> {
    let rust = source.rust.as_ref()?;
    let is_public = |line: &&str| line.trim_start().strip_prefix("pub ").is_some_and(is_item);
    let public = source.text.lines().filter(is_public).count();
    Some(Size { files: 1, lines: lines_without_tests(source.text, &rust.syntax), public })
}

/// Whether a line after `pub` declares an item, and neither a field nor a re-export.
fn is_item(declaration: &str) -> bool {
    const KEYWORDS: [&str; 10] = ["async", "const", "enum", "extern", "fn", "mod", "static", "struct", "trait", "type"];
    let first = declaration.split_whitespace().next().unwrap_or_default();
    first == "unsafe" || KEYWORDS.contains(&first)
}

/// The folder of a source file, at most one level below `src`.
fn folder(path: &str) -> String {
    let folders: Vec<&str> = path.split('/').collect();
    let depth = folders.iter().position(|folder| *folder == "src").map_or(1, |src| src + 2);
    folders[..depth.min(folders.len() - 1)].join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_recognized_by_path() {
        let check = |path, expected| {
            assert_eq!(Source::parse(path, "").expect("empty files parse").is_test(), expected, "{path}");
        };
        check("profiler/crates/ledger/src/tests.rs", true);
        check("tests/src/lib.rs", true);
        check("tests/tests/attach.rs", true);
        check("profiler/crates/ledger/src/live.rs", false);
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

    #[test]
    fn sizes_exclude_tests() {
        let text = "//! A.\npub struct A;\nimpl A {\n    pub fn f() {}\n    fn g() {}\n}\npub(crate) fn h() {}\n\
                    #[cfg(test)]\nmod tests {\n    fn t() {}\n}\n";
        let source = Source::parse("profiler/src/a/b/c.rs", text).expect("parses");
        let size = size(&source).expect("is code");
        assert_eq!((size.files, size.lines, size.public), (1, 7, 2));
        assert_eq!(folder(source.path), "profiler/src/a");
        assert_eq!(folder("profiler/src/lib.rs"), "profiler/src");
        let declaration = Source::parse("profiler/src/a/b/mod.rs", "#[cfg(test)]\nmod c;\n").expect("parses");
        let lines = |table: String| table.lines().find(|line| line.starts_with("total")).map(str::to_owned);
        assert_eq!(
            lines(statistics(&[source])).as_deref(),
            Some(&*format!("{:<36} {:>6} {:>7} {:>5}", "total", 1, 7, 2))
        );
        let source = Source::parse("profiler/src/a/b/c.rs", text).expect("parses");
        let only_declaration = statistics(&[source, declaration]);
        assert_eq!(lines(only_declaration).as_deref(), Some(&*format!("{:<36} {:>6} {:>7} {:>5}", "total", 1, 0, 0)));
    }
}
