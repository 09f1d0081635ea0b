//! `unsafe` stands only where it must: beside the kernel, in the syscall door, in plain-data marks, and in programs that
//! tests profile. Looks at tokens, so that macros hide nothing.

use proc_macro2::{TokenStream, TokenTree};

use super::Findings;
use super::source::Source;

/// Folders whose files may use it freely.
const ALLOWED: [&str; 3] = ["profiler-ebpf/", "profiler/src/linux/", "tests/targets/"];
/// Folder whose files may implement unsafe traits, and no more.
const IMPLEMENTATIONS: &str = "profiler-common/";

/// The rule.
pub(super) fn check(source: &Source, findings: &mut Findings<'_>) {
    let Some(rust) = &source.rust else { return };
    if ALLOWED.iter().any(|folder| source.path.starts_with(folder)) {
        return;
    }
    let implementations = source.path.starts_with(IMPLEMENTATIONS);
    walk(rust.tokens.clone(), implementations, findings);
}

fn walk(tokens: TokenStream, implementations: bool, findings: &mut Findings<'_>) {
    let mut trees = tokens.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Group(group) => walk(group.stream(), implementations, findings),
            TokenTree::Ident(name) if name == "unsafe" => {
                let implements = matches!(trees.peek(), Some(TokenTree::Ident(next)) if next == "impl");
                if !(implementations && implements) {
                    findings.add(name.span().start().line, "`unsafe` has no place here: see `cargo xtask tidy --help`");
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    const BLOCK: &str = "fn f() {\n    unsafe { g() }\n}\n";
    const IMPLEMENTATION: &str = "unsafe impl Pod for S {}\n";
    const IN_MACRO: &str = "m! {\n    fn f() { unsafe { g() } }\n}\n";

    #[test]
    fn it_stands_where_it_must() {
        for path in ["profiler-ebpf/src/main.rs", "profiler/src/linux/memory.rs", "tests/targets/churn.rs"] {
            assert_eq!(found(check, path, BLOCK), [""; 0], "{path}");
        }
        assert_eq!(found(check, "profiler-common/src/pod.rs", IMPLEMENTATION), [""; 0]);
        assert_eq!(found(check, "profiler/src/bpf/load.rs", "// unsafe\nconst A: &str = \"unsafe\";\n"), [""; 0]);
    }

    #[test]
    fn it_stands_nowhere_else() {
        for path in ["profiler/src/bpf/load.rs", "profiler-common/src/pod.rs", "xtask/src/main.rs"] {
            for text in [BLOCK, IN_MACRO] {
                let found = found(check, path, text);
                assert!(found.len() == 1 && found[0].starts_with("2: "), "{path}: {found:?}");
            }
        }
        assert_eq!(found(check, "profiler/src/bpf/load.rs", IMPLEMENTATION).len(), 1);
    }
}
