//! Files of at most 400 lines, tests apart, and functions of at most 70: what is longer is two things.

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use super::Findings;
use super::source::{self, Source};

const FILE_LINES_MAX: usize = 400;
const FUNCTION_LINES_MAX: usize = 70;

/// The rule.
pub(super) fn check(source: &Source, findings: &mut Findings<'_>) {
    let Some(rust) = &source.rust else { return };
    if !source.is_test() {
        let in_tests: usize = source::test_lines(&rust.syntax).iter().map(|(first, last)| last - first + 1).sum();
        let lines = source.text.lines().count() - in_tests;
        if lines > FILE_LINES_MAX {
            findings.add(1, format!("{lines} lines without tests, and {FILE_LINES_MAX} is the most: split it"));
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
            self.findings.add(first, format!("`{name}` has {lines} lines, and {FUNCTION_LINES_MAX} is the most"));
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

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    fn function(lines: usize) -> String {
        format!("/// About it.\n#[inline]\nfn long() {{\n{}}}\n", "    f();\n".repeat(lines - 2))
    }

    #[test]
    fn functions() {
        assert_eq!(found(check, "a.rs", &function(70)), [""; 0]);
        assert_eq!(found(check, "a.rs", &function(71)), ["3: `long` has 71 lines, and 70 is the most"]);
        let method = format!("struct S;\nimpl S {{\n{}}}", function(71));
        assert_eq!(found(check, "a.rs", &method), ["5: `long` has 71 lines, and 70 is the most"]);
    }

    #[test]
    fn files() {
        let lines = |count| "//\n".repeat(count);
        let long = "1: 401 lines without tests, and 400 is the most: split it";
        assert_eq!(found(check, "src/a.rs", &lines(400)), [""; 0]);
        assert_eq!(found(check, "src/a.rs", &lines(401)), [long]);
        assert_eq!(found(check, "src/a/tests.rs", &lines(401)), [""; 0]);
        assert_eq!(found(check, "tests/tests/a.rs", &lines(401)), [""; 0]);
        assert_eq!(found(check, "README.md", &lines(401)), [""; 0]);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", lines(50));
        assert_eq!(found(check, "src/a.rs", &(lines(400) + &tests)), [""; 0]);
        assert_eq!(found(check, "src/a.rs", &(lines(200) + &tests + &lines(201))), [long]);
    }
}
