//! The import graph of profiler/src: a finding for each cycle between its folders, and between the files of one folder.
//! A file depends on the file that defines what it uses, through re-exports; a module's own re-exports do not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Finding;
use super::imports::{self, Import};
use super::source::Source;

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

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let files = files(sources);
    let (mut folders, mut within) = (Graph::default(), BTreeMap::<&str, Graph>::new());
    for (module, file) in &files {
        let Some(folder) = module.first() else { continue };
        for import in &file.imports {
            let Some(used) = definition(&files, module, import) else { continue };
            let Some(used_folder) = used.first() else { continue };
            let place = (file.path.to_owned(), import.line);
            if used_folder != folder {
                folders.add(folder.clone(), used_folder.clone(), place);
            } else if used != *module {
                within.entry(folder).or_default().add(module.join("/"), used.join("/"), place);
            }
        }
    }
    let mut findings = folders.cycles("folders");
    findings.extend(within.values().flat_map(|graph| graph.cycles("files")));
    findings
}

fn files<'a>(sources: &[Source<'a>]) -> BTreeMap<Module, File<'a>> {
    let mut files = BTreeMap::new();
    let mut declared = BTreeSet::new();
    for source in sources.iter().filter(|source| source.path != "profiler/src/main.rs") {
        let Some((module, imports)) = imports::collect(source) else { continue };
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
mod tests {
    use super::*;

    const LIB: (&str, &str) = ("profiler/src/lib.rs", "mod a; mod b; mod c;");

    fn check_cycles(files: &[(&str, &str)], expected: &[&str]) {
        let sources: Vec<_> = [LIB].iter().chain(files).map(|(path, text)| Source::parse(path, text)).collect();
        let sources: Vec<_> = sources.into_iter().map(|source| source.expect("samples parse")).collect();
        let found: Vec<_> = check(&sources).into_iter().map(|finding| finding.to_string()).collect();
        assert_eq!(found, expected, "{files:?}");
    }

    #[test]
    fn cycles_between_folders() {
        let a = ("profiler/src/a/mod.rs", "mod x;\npub(crate) use x::X;");
        let x = ("profiler/src/a/x.rs", "use crate::b::B;");
        let to_c = ("profiler/src/b.rs", "fn f() { crate::c::g() }");
        check_cycles(&[a, x, to_c, ("profiler/src/c.rs", "")], &[]);
        let back = ("profiler/src/c.rs", "\nuse crate::a::X;");
        check_cycles(&[a, x, to_c, back], &["profiler/src/a/x.rs:1: cycle between folders: a → b → c → a"]);
        let in_test = ("profiler/src/c.rs", "#[cfg(test)]\nmod tests { use crate::a::X; }");
        check_cycles(&[a, x, to_c, in_test], &[]);
    }

    #[test]
    fn cycles_between_files_of_a_folder() {
        let cycle = &["profiler/src/a/x.rs:1: cycle between files: a/x → a/y → a/x"];
        let a = |text| ("profiler/src/a/mod.rs", text);
        let x = |text| ("profiler/src/a/x.rs", text);
        let y = |text| ("profiler/src/a/y.rs", text);
        check_cycles(&[a("mod x; mod y;"), x("use super::y::Y;"), y("use crate::a::x::X;")], cycle);
        // Through a re-export, and through the name of a module.
        check_cycles(
            &[a("mod x; mod y; pub(super) use x::X;"), x("use super::y;\nfn f() {}"), y("use super::X;")],
            &[],
        );
        check_cycles(
            &[a("mod x; mod y; pub(super) use x::X;"), x("fn f() { super::y::g() }"), y("use super::X;")],
            cycle,
        );
        let by_name = ["profiler/src/a/x.rs:2: cycle between files: a/x → a/y → a/x"];
        check_cycles(
            &[a("mod x; mod y; use x::X;"), x("use super::y;\nfn f() { y::g() }"), y("use super::X;")],
            &by_name,
        );
    }

    #[test]
    fn parents_and_children() {
        let x = ("profiler/src/a/x.rs", "use super::Shared;");
        check_cycles(&[("profiler/src/a/mod.rs", "mod x;\npub(crate) use x::X;\nstruct Shared;"), x], &[]);
        let parent = ("profiler/src/a/mod.rs", "mod x;\nuse x::X;\nstruct Shared;");
        check_cycles(&[parent, x], &["profiler/src/a/mod.rs:2: cycle between files: a → a/x → a"]);
        let in_tests = ("profiler/src/a/mod.rs", "#[cfg(test)]\nmod x;\nfn f() { x::g() }\nstruct Shared;");
        check_cycles(&[in_tests, x], &[]);
    }
}
