//! Standard output and standard error have one door in the agent, which keeps control characters of targets off terminals:
//! `profiler/src/cli/terminal.rs`. Inspects tokens.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Findings;
use super::source::Source;

const FOLDER: &str = "profiler/src/";
const DOOR: &str = "profiler/src/cli/terminal.rs";

/// The rule.
pub(super) fn check(source: &Source, findings: &mut Findings<'_>) {
    let Some(rust) = &source.rust else { return };
    if !source.path.starts_with(FOLDER) || source.path == DOOR || source.is_test() {
        return;
    }
    walk(rust.tokens.clone(), findings);
}

fn walk(tokens: TokenStream, findings: &mut Findings<'_>) {
    let mut trees = tokens.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Group(group) => walk(group.stream(), findings),
            TokenTree::Ident(name) if name == "stdout" || name == "stderr" => {
                let is_call = matches!(trees.peek(), Some(TokenTree::Group(next))
                    if next.delimiter() == Delimiter::Parenthesis && next.stream().is_empty());
                if is_call {
                    findings.add(name.span().start().line, format!("`{name}()` belongs in `{DOOR}`"));
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

    #[test]
    fn there_is_one_door() {
        let print = "fn f() {\n    let _ = write!(std::io::stdout(), \"x\");\n}\n";
        assert_eq!(
            found(check, "profiler/src/cli/diff.rs", print),
            ["2: `stdout()` belongs in `profiler/src/cli/terminal.rs`"]
        );
        assert_eq!(found(check, DOOR, print), [""; 0]);
        assert_eq!(found(check, "xtask/src/demo.rs", print), [""; 0]);
        // A builder's method, and a field.
        let others = "fn f() {\n    command.stdout(Stdio::piped());\n    drop(child.stdout);\n}\n";
        assert_eq!(found(check, "profiler/src/cli/diff.rs", others), [""; 0]);
    }
}
