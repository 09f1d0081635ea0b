//! A module of profiler/src imports only what its line in `layers` allows. Looks at `crate::…` and `super::…` paths as
//! tokens, wherever they stand; tests may import anything.

use proc_macro2::{Delimiter, Spacing, TokenTree};

use super::Findings;
use super::layers::{ALL_ABOVE, BASE, LAYERS};
use super::source::{self, Source};

const FOLDER: &str = "profiler/src/";
/// The library's name, which stands for `crate` in the binary.
const LIBRARY: &str = "heapbpf";

/// The rule.
pub(super) fn check(source: &Source, findings: &mut Findings<'_>) {
    let (Some(path), Some(rust)) = (source.path.strip_prefix(FOLDER), &source.rust) else { return };
    if source.is_test() {
        return;
    }
    let module = module_path(path);
    let root_file = path.strip_suffix(".rs").unwrap_or(path);
    let layer = module.first().map_or(root_file, String::as_str).to_owned();
    if !LAYERS.iter().any(|(name, _)| *name == layer) {
        findings.add(1, format!("`{layer}` has no line in xtask/src/tidy/layers.rs"));
        return;
    }
    let mut imports = Imports { module, found: Vec::new() };
    imports.walk(&source::without_tests(rust.tokens.clone()));
    for (line, path) in imports.found {
        if !is_allowed(&layer, &path) {
            findings.add(line, format!("`{layer}` may not use `{}`: see xtask/src/tidy/layers.rs", path.join("::")));
        }
    }
}

/// `ledger/live.rs` → `ledger`, `live`; nothing for the roots of crates.
fn module_path(path: &str) -> Vec<String> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let is_root = path == "lib" || path == "main";
    if is_root { Vec::new() } else { path.split('/').map(String::from).collect() }
}

/// Whether a path from the crate's root may be used in a layer.
fn is_allowed(layer: &str, path: &[String]) -> bool {
    let Some(module) = path.first().map(String::as_str) else { return true };
    let row = |name: &str| LAYERS.iter().position(|(module, _)| *module == name);
    // Something of the crate's root itself, which is no module; the compiler knows whether it exists.
    let Some(used_row) = row(module) else { return !module.starts_with(|c: char| c.is_lowercase()) };
    if module == layer || BASE.contains(&module) {
        return true;
    }
    let Some(own_row) = row(layer) else { return false };
    LAYERS[own_row].1.iter().any(|allowed| {
        let segments: Vec<_> = allowed.split("::").collect();
        let is_into_allowed = path.len() >= segments.len() && segments.iter().zip(path).all(|(a, b)| a == b);
        is_into_allowed || *allowed == ALL_ABOVE && used_row < own_row
    })
}

/// Collects paths from the crate's root, with their lines.
struct Imports {
    /// Of the file, and of the inline modules around.
    module: Vec<String>,
    found: Vec<(usize, Vec<String>)>,
}

impl Imports {
    fn walk(&mut self, trees: &[TokenTree]) {
        let mut at = 0;
        while at < trees.len() {
            let step = match &trees[at] {
                TokenTree::Ident(name) if name == "mod" => self.inline_module(&trees[at..]),
                TokenTree::Ident(_) => self.path(&trees[at..]),
                TokenTree::Group(group) => {
                    self.walk(&source::without_tests(group.stream()));
                    1
                }
                _ => 1,
            };
            at += step;
        }
    }

    /// `mod name { … }`, from `mod` on. Returns how many trees it took.
    fn inline_module(&mut self, trees: &[TokenTree]) -> usize {
        let [_, TokenTree::Ident(name), TokenTree::Group(body), ..] = trees else { return 1 };
        self.module.push(name.to_string());
        self.walk(&source::without_tests(body.stream()));
        self.module.pop();
        3
    }

    /// A path that begins here; recorded if it begins at the crate's root or goes up. Returns how many trees it took.
    fn path(&mut self, trees: &[TokenTree]) -> usize {
        let TokenTree::Ident(first) = &trees[0] else { return 1 };
        let first_name = first.to_string();
        if !follows_separator(trees, 1) {
            return 1;
        }
        match first_name.as_str() {
            "crate" => 3 + self.segments(Vec::new(), &trees[3..]),
            LIBRARY if self.module.is_empty() => 3 + self.segments(Vec::new(), &trees[3..]),
            "super" => {
                let mut base = self.module.clone();
                base.pop();
                3 + self.segments(base, &trees[3..])
            }
            // The rest of a path that begins elsewhere must not be taken for one of its own.
            _ => 3 + self.elsewhere(&trees[3..]),
        }
    }

    /// Skips the idents of a path that begins outside of this crate, but not what stands in its braces or brackets.
    fn elsewhere(&mut self, trees: &[TokenTree]) -> usize {
        let is_ident = matches!(trees.first(), Some(TokenTree::Ident(_)));
        match is_ident {
            true if follows_separator(trees, 1) => 3 + self.elsewhere(&trees[3..]),
            true => 1,
            false => 0,
        }
    }

    /// The rest of a path after `::`, with its groups. Returns how many trees it took.
    fn segments(&mut self, mut base: Vec<String>, trees: &[TokenTree]) -> usize {
        match trees.first() {
            Some(TokenTree::Ident(name)) => {
                let line = name.span().start().line;
                match name.to_string().as_str() {
                    "super" => drop(base.pop()),
                    "self" => {}
                    segment => base.push(segment.to_owned()),
                }
                if follows_separator(trees, 1) {
                    return 3 + self.segments(base, &trees[3..]);
                }
                self.found.push((line, base));
                1
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<_> = group.stream().into_iter().collect();
                let is_comma = |tree: &TokenTree| matches!(tree, TokenTree::Punct(punct) if punct.as_char() == ',');
                for part in inner.split(is_comma) {
                    self.segments(base.clone(), part);
                }
                1
            }
            // A glob, or type arguments: the path so far is what is used.
            Some(other) => {
                self.found.push((other.span().start().line, base));
                0
            }
            None => 0,
        }
    }
}

/// Whether `::` stands at `at`.
fn follows_separator(trees: &[TokenTree], at: usize) -> bool {
    matches!(trees.get(at..at + 2), Some([TokenTree::Punct(first), TokenTree::Punct(second)])
        if first.as_char() == ':' && first.spacing() == Spacing::Joint && second.as_char() == ':')
}

#[cfg(test)]
mod tests;
