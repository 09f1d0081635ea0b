//! `cargo xtask tidy --stats`: how large the code and the documentation are.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::source::{self, Source};

const PARTS: [&str; 4] = ["profiler/src/", "xtask/", "profiler-common/", "profiler-ebpf/"];

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

pub(super) fn table(sources: &[Source]) -> String {
    // Parts, their sum and folders, in this order.
    let mut sizes = BTreeMap::<(u8, String), Size>::new();
    let test_modules: Vec<String> = sources.iter().flat_map(source::test_modules).collect();
    let is_test = |path: &str| test_modules.iter().any(|module| path.starts_with(module));
    for source in sources.iter().filter(|source| !is_test(source.path)) {
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
    let rust = source.rust.as_ref().filter(|_| !source.is_test())?;
    let is_public = |line: &&str| line.trim_start().strip_prefix("pub ").is_some_and(is_item);
    let public = source.text.lines().filter(is_public).count();
    Some(Size { files: 1, lines: source::lines_without_tests(source.text, &rust.syntax), public })
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
        assert_eq!(lines(table(&[source])).as_deref(), Some(&*format!("{:<36} {:>6} {:>7} {:>5}", "total", 1, 7, 2)));
        let source = Source::parse("profiler/src/a/b/c.rs", text).expect("parses");
        let only_declaration = table(&[source, declaration]);
        assert_eq!(lines(only_declaration).as_deref(), Some(&*format!("{:<36} {:>6} {:>7} {:>5}", "total", 1, 0, 0)));
    }
}
