//! Rules about Rust code (length, `unsafe`; tokens are inspected, so that code in macros counts), and about lines of text (how a file opens, links, unfinished work, paths of one machine).

use std::sync::LazyLock;

use proc_macro2::{Ident, TokenStream, TokenTree};
use regex::Regex;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use super::Findings;
use super::source::{self, Source};

/// More lines than this, without tests, are noted.
const FILE_LINES_NOTED: usize = 1000;
const FUNCTION_LINES_MAX: usize = 70;

/// Returns a note about a long file. It is no finding: a file is as long as what belongs together.
pub(super) fn long(source: &Source) -> Option<String> {
    let rust = source.rust.as_ref().filter(|_| !source.is_test())?;
    let lines = source::lines_without_tests(source.text, &rust.syntax);
    (lines > FILE_LINES_NOTED)
        .then(|| format!("{}:1: {lines} lines without tests: is all of it one subject?", source.path))
}

/// Limits the lines of functions. Clippy's `too_many_lines` does not count comments, and does not see profiler-ebpf and fuzz, which
/// are outside of the workspace.
pub(super) fn length(source: &Source, findings: &mut Findings<'_>) {
    if let Some(rust) = &source.rust {
        findings.visit_file(&rust.syntax);
    }
}

impl Findings<'_> {
    fn measure(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let first = signature.span().start().line;
        let lines = body.span().end().line - first + 1;
        if lines > FUNCTION_LINES_MAX {
            let name = &signature.ident;
            self.add(first, format!("`{name}` has {lines} lines, the limit is {FUNCTION_LINES_MAX}"));
        }
    }
}

impl<'ast> Visit<'ast> for Findings<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.measure(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

const UNSAFE_FOLDERS: [&str; 3] = ["profiler-ebpf/", "profiler/crates/linux/src/", "tests/targets/"];
const UNSAFE_IMPL_FOLDER: &str = "profiler-common/";

pub(super) fn unsafe_code(source: &Source, findings: &mut Findings<'_>) {
    let Some(rust) = &source.rust else { return };
    if UNSAFE_FOLDERS.iter().any(|folder| source.path.starts_with(folder)) {
        return;
    }
    let implementations = source.path.starts_with(UNSAFE_IMPL_FOLDER);
    words(rust.tokens.clone(), &mut |word, next| {
        let implements = matches!(next, Some(TokenTree::Ident(next)) if next == "impl");
        if word == "unsafe" && !(implementations && implements) {
            findings.add(word.span().start().line, "`unsafe` is not allowed here: see `cargo xtask tidy --help`");
        }
    });
}

/// Visits each word and the token after it, also in macros.
fn words(tokens: TokenStream, visit: &mut impl FnMut(&Ident, Option<&TokenTree>)) {
    let mut trees = tokens.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Group(group) => words(group.stream(), visit),
            TokenTree::Ident(word) => visit(&word, trees.peek()),
            _ => {}
        }
    }
}

pub(super) fn opening(source: &Source, findings: &mut Findings<'_>) {
    let opening = source.text.lines().next().and_then(|line| line.strip_prefix("//!"));
    if source.rust.is_some() && opening.is_none_or(|words| words.trim().is_empty()) {
        findings.add(1, "does not begin with a `//!` comment that describes the file");
    }
}

fn compile(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is valid")
}

static URL: LazyLock<Regex> = LazyLock::new(|| compile(r#"https?://[^\s<>()\[\]"'`]*"#));
static KERNEL: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"(git\.|docs\.)kernel\.org/|kernel\.org/doc/|elixir\.bootlin\.com/linux|github(usercontent)?\.com/torvalds/linux",
    )
});
static BRANCH: LazyLock<Regex> = LazyLock::new(|| compile(r"/(blob|tree)/(master|main)|/blob/HEAD"));
/// A version (`v6.13`, `6.1`), or a commit of at least 12 digits.
static FIXED: LazyLock<Regex> =
    LazyLock::new(|| compile(r"(^|[/=?&#~^])(v?\d[^./=?&#~^]*\.\d[^/=?&#~^]*|[[:xdigit:]]{12,})($|[/=?&#~^])"));

/// Links to a kernel's source or documentation name a version or a commit: the page must keep the cited content.
pub(super) fn links(source: &Source, findings: &mut Findings<'_>) {
    for (index, line) in source.text.lines().enumerate() {
        for url in URL.find_iter(line).map(|url| url.as_str()) {
            if BRANCH.is_match(url) {
                findings.add(index + 1, format!("`{url}` follows a branch: link to a tag or a commit"));
            } else if KERNEL.is_match(url) && !FIXED.is_match(url) {
                findings.add(index + 1, format!("`{url}` names no version: link to a tag or a commit"));
            }
        }
    }
}

/// What no line may contain, and the message about the captured text. The patterns do not match themselves.
static FORBIDDEN: LazyLock<[(Regex, &str); 3]> = LazyLock::new(|| {
    [
        (compile(r"^(<{7}|\|{7}|>{7}) "), "conflict marker of a merge"),
        (compile(r"\b(FIXM[E]\b|XX[X]\b|tod[o]!|unimplemente[d]!)"), "finish it, or describe what is missing and why"),
        (compile(r#"(?:^|[\s"'`=(:,<>\[])(/roo[t]|/wor[k])(?:$|[^\w-])"#), "is a private folder"),
    ]
});

pub(super) fn leftovers(source: &Source, findings: &mut Findings<'_>) {
    for (index, line) in source.text.lines().enumerate() {
        for (pattern, message) in &*FORBIDDEN {
            if let Some(found) = pattern.captures(line) {
                findings.add(index + 1, format!("`{}`: {message}", &found[1]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    fn function(lines: usize) -> String {
        format!("/// About it.\n#[inline]\nfn long() {{\n{}}}\n", "    f();\n".repeat(lines - 2))
    }

    #[test]
    fn functions() {
        assert_eq!(found(length, "a.rs", &function(70)), [""; 0]);
        assert_eq!(found(length, "a.rs", &function(71)), ["3: `long` has 71 lines, the limit is 70"]);
        let method = format!("struct S;\nimpl S {{\n{}}}", function(71));
        assert_eq!(found(length, "a.rs", &method), ["5: `long` has 71 lines, the limit is 70"]);
    }

    #[test]
    fn long_files_are_noted() {
        let lines = |count| "//\n".repeat(count);
        let note = |path, text: &str| long(&Source::parse(path, text).expect("comments parse"));
        assert_eq!(note("src/a.rs", &lines(1000)), None);
        let noted = Some("src/a.rs:1: 1001 lines without tests: is all of it one subject?".to_owned());
        assert_eq!(note("src/a.rs", &lines(1001)), noted);
        assert_eq!(note("src/a/tests.rs", &lines(1001)), None);
        assert_eq!(note("tests/tests/a.rs", &lines(1001)), None);
        assert_eq!(note("README.md", &lines(1001)), None);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", lines(50));
        assert_eq!(note("src/a.rs", &(lines(1000) + &tests)), None);
        assert_eq!(note("src/a.rs", &(lines(500) + &tests + &lines(501))), noted);
    }

    const BLOCK: &str = "fn f() {\n    unsafe { g() }\n}\n";
    const IMPLEMENTATION: &str = "unsafe impl Pod for S {}\n";
    const IN_MACRO: &str = "m! {\n    fn f() { unsafe { g() } }\n}\n";

    #[test]
    fn unsafe_is_accepted_in_some_folders() {
        for path in ["profiler-ebpf/src/main.rs", "profiler/crates/linux/src/memory.rs", "tests/targets/churn.rs"] {
            assert_eq!(found(unsafe_code, path, BLOCK), [""; 0], "{path}");
        }
        assert_eq!(found(unsafe_code, "profiler-common/src/pod.rs", IMPLEMENTATION), [""; 0]);
        assert_eq!(found(unsafe_code, "profiler/src/bpf/load.rs", "// unsafe\nconst A: &str = \"unsafe\";\n"), [""; 0]);
    }

    #[test]
    fn unsafe_is_rejected_elsewhere() {
        for path in ["profiler/src/bpf/load.rs", "profiler-common/src/pod.rs", "xtask/src/main.rs"] {
            for text in [BLOCK, IN_MACRO] {
                let findings = found(unsafe_code, path, text);
                assert!(findings.len() == 1 && findings[0].starts_with("2: "), "{path}: {findings:?}");
            }
        }
        assert_eq!(found(unsafe_code, "profiler/src/bpf/load.rs", IMPLEMENTATION).len(), 1);
    }

    #[test]
    fn rust_files_open_with_a_comment() {
        assert_eq!(found(opening, "a.rs", "//! Owns a.\n"), [""; 0]);
        assert_eq!(found(opening, "a.md", "Owns a.\n"), [""; 0]);
        for text in ["", "//!\n", "// Owns a.\n", "\n//! Owns a.\n", "use b;\n"] {
            assert_eq!(found(opening, "a.rs", text).len(), 1, "{text:?}");
        }
    }

    const KERNEL_HOME: &str = concat!("https://github.com/", "torvalds/linux/");

    #[test]
    fn links_without_version() {
        let moving = [
            format!("{KERNEL_HOME}{}/arch/x86/kernel/uprobes.c#L1", concat!("blob/", "master")),
            format!("{KERNEL_HOME}issues"),
            concat!("https://elixir.bootlin.com/", "linux/latest/source/kernel/events/uprobes.c").to_owned(),
            concat!("https://docs.", "kernel.org/bpf/maps.html").to_owned(),
            format!("https://github.com/a/b/{}/c.rs", concat!("blob/", "main")),
        ];
        for url in moving {
            let text = format!("fine\n// See <{url}> for it.\n");
            let findings = found(links, "a.md", &text);
            assert_eq!(findings.len(), 1, "{url}");
            assert!(findings[0].starts_with("2: ") && findings[0].contains(&url), "{findings:?}");
        }
    }

    #[test]
    fn links_with_version() {
        let fixed = [
            format!("{KERNEL_HOME}blob/v6.13/arch/x86/kernel/uprobes.c#L1"),
            format!("{KERNEL_HOME}commit/d920179b3d4842a0e27cae54fdddbe5ef3977e73"),
            concat!("https://elixir.bootlin.com/", "linux/v6.1.12/source/mm/slab.c").to_owned(),
            concat!("https://git.", "kernel.org/pub/linux/kernel.git/tree/mm?h=v6.12-rc3").to_owned(),
            concat!("https://docs.", "kernel.org/6.12/bpf/maps.html").to_owned(),
            "https://lwn.net/Articles/787740/".to_owned(),
        ];
        for url in fixed {
            assert_eq!(found(links, "a.md", &format!("see ({url}).\n")), [""; 0], "{url}");
        }
    }

    #[test]
    fn leftovers_are_found() {
        let unfinished =
            [concat!("FIX", "ME"), concat!("XX", "X"), concat!("todo", "!"), concat!("unimplemented", "!")];
        for word in unfinished {
            let text = format!("fine\n// {word} later\n");
            assert_eq!(found(leftovers, "notes.md", &text).len(), 1, "{text}");
        }
        for mark in ["<", "|", ">"].map(|mark| mark.repeat(7)) {
            let text = format!("fine\n{mark} main\n");
            assert_eq!(found(leftovers, "notes.md", &text), [format!("2: `{mark}`: conflict marker of a merge")]);
        }
    }

    #[test]
    fn similar_text_is_accepted() {
        let template = "X".repeat(6);
        let text = format!("Title\n=======\nmktemp /tmp/a.{template}\nlet mastodon = 1;\n");
        assert_eq!(found(leftovers, "notes.md", &text), [""; 0]);
    }

    const PRIVATE: [&str; 2] = [concat!("/ro", "ot"), concat!("/wo", "rk")];

    #[test]
    fn private_folders() {
        for folder in PRIVATE {
            for text in
                [format!("cd {folder}/project"), format!("let path = \"{folder}\";"), format!("PATH={folder}/bin")]
            {
                assert_eq!(found(leftovers, "notes.md", &text).len(), 1, "{text}");
            }
        }
    }

    #[test]
    fn public_paths_are_accepted() {
        for folder in PRIVATE {
            for text in [format!("/proc/PID{folder}/lib"), format!("{folder}shop"), format!("{{pid}}{folder}")] {
                assert_eq!(found(leftovers, "notes.md", &text), [""; 0], "{text}");
            }
        }
    }
}
