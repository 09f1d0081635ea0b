//! Rules about Rust code: length, `unsafe`, and access to the terminal. Tokens are inspected, so that code in macros counts.

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use super::Findings;
use super::source::{self, Source};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;

pub(super) fn length(source: &Source, findings: &mut Findings<'_>) {
    let Some(rust) = &source.rust else { return };
    if !source.is_test() {
        let lines = source::lines_without_tests(source.text, &rust.syntax);
        if lines > FILE_LINES_MAX {
            findings.add(1, format!("{lines} lines without tests exceed the limit of {FILE_LINES_MAX}: split it"));
        }
    }
    Functions { findings }.visit_file(&rust.syntax);
}

struct Functions<'a, 'b> {
    findings: &'a mut Findings<'b>,
}

impl Functions<'_, '_> {
    fn measure(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let first = signature.span().start().line;
        let lines = body.span().end().line - first + 1;
        if lines > FUNCTION_LINES_MAX {
            let name = &signature.ident;
            self.findings.add(first, format!("`{name}` has {lines} lines, the limit is {FUNCTION_LINES_MAX}"));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_, '_> {
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

const UNSAFE_FOLDERS: [&str; 3] = ["profiler-ebpf/", "profiler/src/linux/", "tests/targets/"];
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

const AGENT_FOLDER: &str = "profiler/src/";
const TERMINAL_FILE: &str = "profiler/src/cli/terminal.rs";

/// Only one file of the agent may use standard output and error: it keeps control characters of targets off terminals.
pub(super) fn terminal(source: &Source, findings: &mut Findings<'_>) {
    let Some(rust) = &source.rust else { return };
    if !source.path.starts_with(AGENT_FOLDER) || source.path == TERMINAL_FILE || source.is_test() {
        return;
    }
    words(rust.tokens.clone(), &mut |word, next| {
        let is_call = matches!(next, Some(TokenTree::Group(next))
            if next.delimiter() == Delimiter::Parenthesis && next.stream().is_empty());
        if is_call && (word == "stdout" || word == "stderr") {
            findings.add(word.span().start().line, format!("`{word}()` belongs in `{TERMINAL_FILE}`"));
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
    fn files() {
        let lines = |count| "//\n".repeat(count);
        let long = "1: 501 lines without tests exceed the limit of 500: split it";
        assert_eq!(found(length, "src/a.rs", &lines(500)), [""; 0]);
        assert_eq!(found(length, "src/a.rs", &lines(501)), [long]);
        assert_eq!(found(length, "src/a/tests.rs", &lines(501)), [""; 0]);
        assert_eq!(found(length, "tests/tests/a.rs", &lines(501)), [""; 0]);
        assert_eq!(found(length, "README.md", &lines(501)), [""; 0]);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", lines(50));
        assert_eq!(found(length, "src/a.rs", &(lines(500) + &tests)), [""; 0]);
        assert_eq!(found(length, "src/a.rs", &(lines(250) + &tests + &lines(251))), [long]);
    }

    const BLOCK: &str = "fn f() {\n    unsafe { g() }\n}\n";
    const IMPLEMENTATION: &str = "unsafe impl Pod for S {}\n";
    const IN_MACRO: &str = "m! {\n    fn f() { unsafe { g() } }\n}\n";

    #[test]
    fn unsafe_is_accepted_in_some_folders() {
        for path in ["profiler-ebpf/src/main.rs", "profiler/src/linux/memory.rs", "tests/targets/churn.rs"] {
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
    fn one_file_writes_to_the_terminal() {
        let print = "fn f() {\n    let _ = write!(std::io::stdout(), \"x\");\n}\n";
        assert_eq!(
            found(terminal, "profiler/src/cli/diff.rs", print),
            ["2: `stdout()` belongs in `profiler/src/cli/terminal.rs`"]
        );
        assert_eq!(found(terminal, TERMINAL_FILE, print), [""; 0]);
        assert_eq!(found(terminal, "xtask/src/demo.rs", print), [""; 0]);
        // A builder's method, and a field.
        let others = "fn f() {\n    command.stdout(Stdio::piped());\n    drop(child.stdout);\n}\n";
        assert_eq!(found(terminal, "profiler/src/cli/diff.rs", others), [""; 0]);
    }
}
