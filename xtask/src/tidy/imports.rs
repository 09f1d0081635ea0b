//! Collects the paths that a file of profiler/src uses, and checks them against the table of layers: a module may use
//! what its line lists, itself and [`BASE`]; tests may import anything. Tokens are inspected, so that macros count.

use proc_macro2::{Delimiter, Ident, Spacing, TokenTree};

use super::Findings;
use super::source::{self, Source};

/// Small value types, which every module may use.
const BASE: [&str; 3] = ["units", "ids", "address"];
/// Stands for every module of the lines above.
const ALL_ABOVE: &str = "*";

/// A module, and what it may use, separated by spaces: modules, or paths into a module whose other items are forbidden.
const LAYERS: &[(&str, &str)] = &[
    ("units", ""),
    ("ids", ""),
    ("address", ""),
    ("memory", ""),
    ("linux", ""),
    ("object", "linux"),
    ("process", "linux object"),
    ("allocator", "object linux::files process"),
    ("unwind", "object linux::proc"),
    ("bpf", "linux unwind"),
    ("collect", "memory object::fixture linux"),
    ("keeper", "bpf::load collect linux process::launch"),
    ("probe", "allocator object linux process bpf keeper model::ProbeCosts"),
    ("ingest", ""),
    ("ledger", "ingest"),
    ("walk", "collect memory object linux::proc"),
    ("model", "ledger"),
    ("leak", "ledger memory model"),
    ("snapshot", "leak ledger model object process"),
    (
        "symbolize",
        "leak ledger object process model snapshot linux::proc linux::companion \
         linux::confinement",
    ),
    ("report", "leak::fold ledger model"),
    (
        "check",
        "collect keeper leak ledger memory model object report snapshot symbolize linux::proc linux::clock \
         process walk",
    ),
    (
        "recording",
        "ingest leak ledger object linux::proc linux::files process model snapshot \
         symbolize",
    ),
    ("guardrail", "ledger"),
    ("session", "*"),
    ("doctor", "*"),
    ("fuzzing", "*"),
    ("cli", "*"),
    ("lib", "*"),
    ("main", "*"),
];

const FOLDER: &str = "profiler/src/";
/// The library's name, which stands for `crate` in the binary.
const LIBRARY: &str = "heapbpf";

#[derive(Debug)]
pub(super) struct Import {
    pub(super) line: usize,
    /// From the crate's root, or, if `is_relative`, as written.
    pub(super) path: Vec<String>,
    pub(super) is_relative: bool,
    pub(super) alias: Option<String>,
    /// Whether it is of a `use` declaration with a visibility.
    pub(super) is_reexport: bool,
}

#[derive(Default)]
pub(super) struct Imports {
    /// Of the file, and of the inline modules around.
    module: Vec<String>,
    pub(super) found: Vec<Import>,
    pub(super) declared: Vec<Vec<String>>,
    /// Inside of a `use` declaration: whether it has a visibility.
    in_use: Option<bool>,
}

pub(super) fn check(source: &Source, findings: &mut Findings<'_>) {
    let Some((module, imports)) = collect(source) else { return };
    let root_file = source.path.trim_start_matches(FOLDER).trim_end_matches(".rs");
    let layer = module.first().map_or(root_file, String::as_str);
    if !LAYERS.iter().any(|(name, _)| *name == layer) {
        findings.add(1, format!("`{layer}` has no line in xtask/src/tidy/imports.rs"));
        return;
    }
    for import in imports.found.iter().filter(|import| !import.is_relative && !is_allowed(layer, &import.path)) {
        let path = import.path.join("::");
        findings.add(import.line, format!("`{layer}` may not use `{path}`: see xtask/src/tidy/imports.rs"));
    }
}

/// The module of a non-test file of profiler/src, and the paths it uses.
pub(super) fn collect(source: &Source) -> Option<(Vec<String>, Imports)> {
    let (path, rust) = (source.path.strip_prefix(FOLDER)?, source.rust.as_ref()?);
    if source.is_test() {
        return None;
    }
    let module = module_path(path);
    let mut imports = Imports { module: module.clone(), ..Imports::default() };
    imports.walk(&source::without_tests(rust.tokens.clone()));
    Some((module, imports))
}

/// `ledger/live.rs` → `ledger`, `live`; empty for crate roots.
fn module_path(path: &str) -> Vec<String> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let is_root = path == "lib" || path == "main";
    if is_root { Vec::new() } else { path.split('/').map(String::from).collect() }
}

fn is_allowed(layer: &str, path: &[String]) -> bool {
    let Some(module) = path.first().map(String::as_str) else { return true };
    let row = |name: &str| LAYERS.iter().position(|(module, _)| *module == name);
    // An item of the crate's root, not a module.
    let is_item = path.len() == 1 || !module.starts_with(|c: char| c.is_lowercase());
    let Some(used_row) = row(module) else { return is_item };
    if module == layer || BASE.contains(&module) {
        return true;
    }
    let Some(own_row) = row(layer) else { return false };
    LAYERS[own_row].1.split_whitespace().any(|allowed| {
        let segments: Vec<_> = allowed.split("::").collect();
        let is_into_allowed = path.len() >= segments.len() && segments.iter().zip(path).all(|(a, b)| a == b);
        is_into_allowed || allowed == ALL_ABOVE && used_row < own_row
    })
}

impl Imports {
    fn walk(&mut self, trees: &[TokenTree]) {
        let mut at = 0;
        while at < trees.len() {
            let step = match &trees[at] {
                TokenTree::Ident(name) if name == "mod" => self.module_item(&trees[at..]),
                TokenTree::Ident(name) if name == "use" && !is_punct(trees.get(at + 1), '<') => {
                    self.in_use = Some(has_visibility(&trees[..at]));
                    1
                }
                TokenTree::Ident(_) => self.path(&trees[at..]),
                TokenTree::Group(group) => {
                    self.walk(&source::without_tests(group.stream()));
                    1
                }
                tree => {
                    if is_punct(Some(tree), ';') {
                        self.in_use = None;
                    }
                    1
                }
            };
            at += step;
        }
    }

    /// `mod name { … }` or `mod name;`, from `mod` on. Returns the number of trees consumed.
    fn module_item(&mut self, trees: &[TokenTree]) -> usize {
        let [_, TokenTree::Ident(name), end, ..] = trees else { return 1 };
        self.module.push(name.to_string());
        match end {
            TokenTree::Group(body) => self.walk(&source::without_tests(body.stream())),
            _ => self.declared.push(self.module.clone()),
        }
        self.module.pop();
        3
    }

    /// A path that starts here. Returns the number of trees consumed.
    fn path(&mut self, trees: &[TokenTree]) -> usize {
        let TokenTree::Ident(first) = &trees[0] else { return 1 };
        if !follows_separator(trees, 1) {
            return 1;
        }
        let mut base = self.module.clone();
        let mut is_relative = false;
        match first.to_string().as_str() {
            "crate" => base.clear(),
            LIBRARY if self.module.is_empty() => base.clear(),
            "super" => drop(base.pop()),
            "self" => {}
            name => {
                base = vec![name.to_owned()];
                is_relative = true;
            }
        }
        3 + self.segments(base, is_relative, &trees[3..])
    }

    /// The rest of a path after `::`, with its groups. Returns the number of trees consumed.
    fn segments(&mut self, mut base: Vec<String>, is_relative: bool, trees: &[TokenTree]) -> usize {
        match trees.first() {
            Some(TokenTree::Ident(name)) => {
                match name.to_string().as_str() {
                    "super" => drop(base.pop()),
                    "self" => {}
                    segment => base.push(segment.to_owned()),
                }
                if follows_separator(trees, 1) {
                    return 3 + self.segments(base, is_relative, &trees[3..]);
                }
                let alias = match trees {
                    [_, TokenTree::Ident(renamed), TokenTree::Ident(alias), ..] if renamed == "as" => Some(alias),
                    _ => None,
                };
                let alias = alias.map(Ident::to_string).or_else(|| base.last().cloned());
                self.add(name.span().start().line, base, is_relative, alias);
                1
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<_> = group.stream().into_iter().collect();
                for part in inner.split(|tree| is_punct(Some(tree), ',')) {
                    self.segments(base.clone(), is_relative, part);
                }
                1
            }
            // A glob, or type arguments: the path so far is used.
            Some(other) => {
                self.add(other.span().start().line, base, is_relative, None);
                0
            }
            None => 0,
        }
    }

    fn add(&mut self, line: usize, path: Vec<String>, is_relative: bool, alias: Option<String>) {
        let alias = alias.filter(|_| self.in_use.is_some());
        self.found.push(Import { line, path, is_relative, alias, is_reexport: self.in_use == Some(true) });
    }
}

fn has_visibility(trees: &[TokenTree]) -> bool {
    let is_pub = |tree: &TokenTree| matches!(tree, TokenTree::Ident(name) if name == "pub");
    match trees {
        [.., visibility, TokenTree::Group(_)] if is_pub(visibility) => true,
        [.., last] => is_pub(last),
        [] => false,
    }
}

fn is_punct(tree: Option<&TokenTree>, expected: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == expected)
}

fn follows_separator(trees: &[TokenTree], at: usize) -> bool {
    matches!(trees.get(at..at + 2), Some([TokenTree::Punct(first), TokenTree::Punct(second)])
        if first.as_char() == ':' && first.spacing() == Spacing::Joint && second.as_char() == ':')
}

#[cfg(test)]
mod tests;
