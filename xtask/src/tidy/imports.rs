//! The imports of profiler/src and of each crate in profiler/crates. A module of profiler/src may use what its line in the table of
//! layers lists, itself, and crates; tests may import anything. Imports form no cycle, neither between folders nor between the files of one folder: a file depends on
//! the file that defines what it uses, through re-exports; a module's own re-exports do not count. Tokens are inspected,
//! so that macros count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proc_macro2::{Delimiter, Ident, Spacing, TokenTree};

use super::source::{self, Source};
use super::{Finding, Findings};

/// Stands for every module of the lines above.
const ALL_ABOVE: &str = "*";

/// A module, and what it may use, separated by spaces: modules, or paths into a module whose other items are forbidden.
const LAYERS: &[(&str, &str)] = &[
    ("arch", ""),
    ("reader", ""),
    ("object", "arch reader"),
    ("process", "object"),
    ("allocator", "object process"),
    ("unwind", "arch object reader"),
    ("http", ""),
    ("debuginfod", "http object reader"),
    ("bpf", "unwind"),
    ("collect", ""),
    ("keeper", "bpf::load collect process::launch"),
    ("probe", "allocator arch object process bpf keeper"),
    ("interpreter", "arch object process unwind::ranges"),
    ("walk", "collect object"),
    ("account", "walk"),
    ("snapshot", "object process"),
    ("symbolize", "object process snapshot unwind::ranges debuginfod"),
    ("check", "collect keeper object snapshot symbolize process unwind walk"),
    ("recording", "object process snapshot symbolize"),
    ("go_heap", "object"),
    ("object_types", "interpreter object process"),
    ("guardrail", ""),
    ("session", "*"),
    ("live", "session snapshot symbolize"),
    ("push", "http live snapshot"),
    ("serve", "live push::PushStatus session::Progress snapshot"),
    ("top", "live"),
    ("doctor", "*"),
    ("fuzzing", "*"),
    ("cli", "*"),
    ("lib", "*"),
    ("main", "*"),
];

const FOLDER: &str = "profiler/src/";
/// Folders of crates that the agent is made of.
const CRATES: &str = "profiler/crates/";
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
    let Some((module, imports)) = collect(source, FOLDER) else { return };
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

/// Returns the module of a non-test file of a crate, and the paths that it uses. `folder` is the crate's folder of sources.
fn collect(source: &Source, folder: &str) -> Option<(Vec<String>, Imports)> {
    let (path, rust) = (source.path.strip_prefix(folder)?, source.rust.as_ref()?);
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
    if module == layer {
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

pub(super) fn is_punct(tree: Option<&TokenTree>, expected: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == expected)
}

pub(super) fn follows_separator(trees: &[TokenTree], at: usize) -> bool {
    matches!(trees.get(at..at + 2), Some([TokenTree::Punct(first), TokenTree::Punct(second)])
        if first.as_char() == ':' && first.spacing() == Spacing::Joint && second.as_char() == ':')
}

/// From the crate's root.
type Module = Vec<String>;

/// Follows at most so many re-exports: they may form a cycle in code that does not compile.
const REEXPORTS_MAX: usize = 8;

struct File<'a> {
    path: &'a str,
    imports: Vec<Import>,
    /// What `use` declarations name, from the crate's root.
    aliases: BTreeMap<String, Vec<String>>,
}

/// Dependencies by name, each with the file and line of one import.
#[derive(Default)]
struct Graph(BTreeMap<String, BTreeMap<String, (String, usize)>>);

pub(super) fn cycles(sources: &[Source]) -> Vec<Finding> {
    let crates = sources.iter().filter_map(|source| source.path.strip_suffix("lib.rs"));
    let crates = crates.filter(|folder| *folder == FOLDER || folder.starts_with(CRATES));
    crates.flat_map(|folder| cycles_in(folder, sources)).collect()
}

/// Returns the cycles of one crate, whose sources are in `root`.
fn cycles_in(root: &str, sources: &[Source]) -> Vec<Finding> {
    let files = files(root, sources);
    let (mut folders, mut within) = (Graph::default(), BTreeMap::<&str, Graph>::new());
    for (module, file) in &files {
        let Some(folder) = module.first() else { continue };
        for import in &file.imports {
            let Some(used) = definition(&files, module, import) else { continue };
            let Some(used_folder) = used.first() else { continue };
            let place = (file.path.to_owned(), import.line);
            // A crate is a module of its own.
            let (folder, used_folder) =
                if root == FOLDER { (folder.as_str(), used_folder.as_str()) } else { (root, root) };
            if used_folder != folder {
                folders.add(folder.to_owned(), used_folder.to_owned(), place);
            } else if used != *module {
                within.entry(folder).or_default().add(module.join("/"), used.join("/"), place);
            }
        }
    }
    let mut findings = folders.cycles("folders");
    findings.extend(within.values().flat_map(|graph| graph.cycles("files")));
    findings
}

fn files<'a>(folder: &str, sources: &[Source<'a>]) -> BTreeMap<Module, File<'a>> {
    let mut files = BTreeMap::new();
    let mut declared = BTreeSet::new();
    for source in sources.iter().filter(|source| source.path != "profiler/src/main.rs") {
        let Some((module, imports)) = collect(source, folder) else { continue };
        declared.extend(imports.declared);
        files.insert(module, File { path: source.path, imports: imports.found, aliases: BTreeMap::new() });
    }
    files.retain(|module, _| module.is_empty() || declared.contains(module));
    let modules: BTreeSet<Module> = files.keys().cloned().collect();
    for (module, file) in &mut files {
        let path = |import: &Import| {
            Some((import.alias.clone()?, absolute(|path| modules.contains(path), &BTreeMap::new(), module, import)?))
        };
        file.aliases = file.imports.iter().filter_map(path).collect();
    }
    files
}

/// A path from the crate's root; `None` for what is not in this crate.
fn absolute(
    is_module: impl Fn(&[String]) -> bool,
    aliases: &BTreeMap<String, Vec<String>>,
    module: &Module,
    import: &Import,
) -> Option<Vec<String>> {
    if !import.is_relative {
        return Some(import.path.clone());
    }
    let (first, rest) = import.path.split_first()?;
    let child: Vec<String> = module.iter().chain([first]).cloned().collect();
    let base = aliases.get(first).cloned().or_else(|| is_module(&child).then_some(child))?;
    Some(base.into_iter().chain(rest.iter().cloned()).collect())
}

/// The module that defines what a file uses; `None` for other crates, for names of modules and for re-exports of children.
fn definition(files: &BTreeMap<Module, File<'_>>, module: &Module, import: &Import) -> Option<Module> {
    let mut path = absolute(|path| files.contains_key(path), &files[module].aliases, module, import)?;
    for _ in 0..REEXPORTS_MAX {
        let length = (0..=path.len()).rev().find(|&length| files.contains_key(&path[..length]))?;
        let reexported = path.get(length).and_then(|name| files[&path[..length]].aliases.get(name));
        let Some(reexported) = reexported.filter(|it| **it != path) else {
            let is_module_name = length == path.len() && import.alias.is_some();
            path.truncate(length);
            let is_child = path.len() > module.len() && path.starts_with(module);
            return (!(is_module_name || import.is_reexport && is_child)).then_some(path);
        };
        path = reexported.iter().chain(&path[length + 1..]).cloned().collect();
    }
    None
}

impl Graph {
    fn add(&mut self, from: String, to: String, place: (String, usize)) {
        self.0.entry(from).or_default().entry(to).or_insert(place);
    }

    /// For each dependency that is part of a cycle, the shortest one; each cycle once.
    fn cycles(&self, kind: &str) -> Vec<Finding> {
        let mut found = BTreeMap::new();
        for (from, uses) in &self.0 {
            for (to, place) in uses {
                let Some(mut cycle) = self.shortest(to, from) else { continue };
                let first = cycle.iter().enumerate().min_by_key(|(_, name)| **name).map_or(0, |(index, _)| index);
                cycle.rotate_left(first);
                found.entry(cycle).or_insert(place);
            }
        }
        let finding = |(cycle, (path, line)): (Vec<&str>, &(String, usize))| {
            let message = format!("cycle between {kind}: {} → {}", cycle.join(" → "), cycle[0]);
            Finding { path: path.clone(), line: *line, message }
        };
        found.into_iter().map(finding).collect()
    }

    fn shortest<'a>(&'a self, from: &'a str, to: &str) -> Option<Vec<&'a str>> {
        let mut before: BTreeMap<&str, Option<&str>> = BTreeMap::from([(from, None)]);
        let mut open = VecDeque::from([from]);
        while let Some(name) = open.pop_front() {
            if name == to {
                let mut path: Vec<_> = std::iter::successors(Some(name), |name| before[name]).collect();
                path.reverse();
                return Some(path);
            }
            for next in self.0.get(name).into_iter().flat_map(BTreeMap::keys) {
                before.entry(next).or_insert_with(|| {
                    open.push_back(next);
                    Some(name)
                });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
