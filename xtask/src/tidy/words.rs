//! No names that say nothing. Looks at names that are defined here: what others have named so can still be used.

use proc_macro2::Ident;
use syn::visit::{self, Visit};

use super::Findings;
use super::source::Source;

/// Words that fit anything, as parts of names of files, modules, types, functions, fields and variables.
const FORBIDDEN: [&str; 9] =
    ["manager", "managers", "handler", "handlers", "helper", "helpers", "util", "utils", "utility"];
/// Names of files for whatever has no place.
const FORBIDDEN_FILES: [&str; 2] = ["common.rs", "misc.rs"];

/// The rule.
pub(super) fn check(source: &Source, findings: &mut Findings<'_>) {
    let parts = || source.path.split(['/', '.']);
    if let Some(word) = parts().find_map(forbidden_word) {
        findings.add(1, format!("`{word}` in the path says nothing: name what it is"));
    }
    if let Some(name) = FORBIDDEN_FILES.iter().find(|name| source.path.rsplit('/').next() == Some(name)) {
        findings.add(1, format!("`{name}` says nothing: name what it is"));
    }
    if let Some(rust) = &source.rust {
        Names { findings }.visit_file(&rust.syntax);
    }
}

/// The forbidden word in a name in snake_case, CamelCase or with hyphens.
fn forbidden_word(name: &str) -> Option<&'static str> {
    let mut words = vec![String::new()];
    let mut previous_is_small = false;
    for letter in name.chars() {
        let begins = letter == '_' || letter == '-' || letter.is_uppercase() && previous_is_small;
        if begins {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| letter.is_alphanumeric()) {
            word.extend(letter.to_lowercase());
        }
        previous_is_small = letter.is_lowercase();
    }
    FORBIDDEN.into_iter().find(|forbidden| words.iter().any(|word| word == forbidden))
}

struct Names<'a, 'b> {
    findings: &'a mut Findings<'b>,
}

impl Names<'_, '_> {
    fn judge(&mut self, name: &Ident) {
        if let Some(word) = forbidden_word(&name.to_string()) {
            self.findings.add(name.span().start().line, format!("`{word}` in `{name}` says nothing: name what it is"));
        }
    }
}

impl<'ast> Visit<'ast> for Names<'_, '_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Const(item) => self.judge(&item.ident),
            syn::Item::Enum(item) => self.judge(&item.ident),
            syn::Item::Macro(item) => item.ident.iter().for_each(|name| self.judge(name)),
            syn::Item::Mod(item) => self.judge(&item.ident),
            syn::Item::Static(item) => self.judge(&item.ident),
            syn::Item::Struct(item) => self.judge(&item.ident),
            syn::Item::Trait(item) => self.judge(&item.ident),
            syn::Item::Type(item) => self.judge(&item.ident),
            syn::Item::Union(item) => self.judge(&item.ident),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.judge(&signature.ident);
        visit::visit_signature(self, signature);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        field.ident.iter().for_each(|name| self.judge(name));
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.judge(&variant.ident);
        visit::visit_variant(self, variant);
    }

    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.judge(&pattern.ident);
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_use_rename(&mut self, rename: &'ast syn::UseRename) {
        self.judge(&rename.rename);
    }
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    #[test]
    fn words_are_found_in_every_style() {
        for name in ["SignalHandler", "io_helpers", "UTIL", "map-utils", "managerOf"] {
            assert!(forbidden_word(name).is_some(), "{name}");
        }
        for name in ["utilisation", "handle", "HandlerlessThing", "managed", "common", "CLI"] {
            assert_eq!(forbidden_word(name), None, "{name}");
        }
    }

    #[test]
    fn names_of_files() {
        assert_eq!(found(check, "src/string_util.rs", "").len(), 1);
        assert_eq!(found(check, "src/helpers/maps.rs", "").len(), 1);
        assert_eq!(found(check, "src/common.rs", "").len(), 1);
        assert_eq!(found(check, "profiler-common/src/lib.rs", ""), [""; 0]);
    }

    #[test]
    fn names_that_are_defined() {
        let text = "struct MapManager { helper: u8 }\nfn run(handler: u8) {\n    let util = handler;\n}\n";
        let lines: Vec<_> = found(check, "a.rs", text).iter().map(|finding| finding[..1].to_owned()).collect();
        assert_eq!(lines, ["1", "1", "2", "3"]);
        assert_eq!(found(check, "a.rs", "use aya_ebpf::helpers::bpf_get_smp_processor_id;\n"), [""; 0]);
        assert_eq!(found(check, "a.rs", "use x::y as x_helper;\n").len(), 1);
    }
}
