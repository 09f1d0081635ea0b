//! Names of this repository in the documentation: paths, `Type::function`, `Type::Variant`, `module::function` and, on the pages
//! for developers, `TypeOfTwoWords` exist.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use super::{Finding, docs};

static CODE: LazyLock<Regex> = LazyLock::new(|| docs::compile("`([^`]+)`"));
/// A file with a folder, a folder, and a file of Rust.
static PATH: LazyLock<Regex> =
    LazyLock::new(|| docs::compile(r"^(([\w.-]+/)+([\w.-]+\.(rs|md|toml|json|c|cpp|h|sh|py|ts|tsx|js))?|[\w-]+\.rs)$"));
static ITEM: LazyLock<Regex> = LazyLock::new(|| docs::compile(r"^(?:\w+::)*(\w+)::(\w+)(?:\(.*\))?$"));
/// Other pages name types of other programs.
static TYPE: LazyLock<Regex> = LazyLock::new(|| docs::compile(r"^([A-Z][a-z]+){2,}$"));
const PAGES_WITH_TYPES: [&str; 2] = ["ARCHITECTURE.md", "CONTRIBUTING.md"];
/// A name to be chosen by the reader, as in recipes.
static PLACEHOLDER: LazyLock<Regex> = LazyLock::new(|| docs::compile(r"\b(NAME|TARGET)\b"));

/// What is not in the tree: folders and files of users, and what commands write. The page, and the name.
const EXCEPTIONS: [(&str, &str); 6] = [
    ("CONTRIBUTING.md", "tests/ledger.toml"),
    ("docs/configuration.md", ".config/heapbpf/config.toml"),
    ("docs/debug-files.md", ".debug/"),
    ("docs/parquet.md", "fleet/"),
    ("fuzz/README.md", "artifacts/"),
    ("fuzz/README.md", "corpus/"),
];

/// `files` are all of the repository that are text.
pub(super) fn check(files: &[(String, String)]) -> Vec<Finding> {
    let paths = files.iter().flat_map(|(path, _)| Path::new(path).ancestors()).filter_map(Path::to_str).collect();
    let mut findings = Vec::new();
    for (page, text) in files.iter().filter(|(path, _)| path.ends_with(".md") && path != "CHANGELOG.md") {
        for (line, text, _) in docs::lines(text).filter(|(.., is_code)| !is_code) {
            for name in CODE.captures_iter(text).filter_map(|found| found.get(1)).map(|name| name.as_str()) {
                let is_other = PLACEHOLDER.is_match(name) || EXCEPTIONS.contains(&(page, name));
                let is_type = PAGES_WITH_TYPES.contains(&&**page) && TYPE.is_match(name);
                if !is_other && !exists(name, is_type, &paths, files) {
                    let message = format!("`{name}` is not in the tree: see xtask/src/tidy/names.rs");
                    findings.push(Finding { path: page.clone(), line, message });
                }
            }
        }
    }
    findings
}

/// Returns whether a path in the tree ends with these folders and this file. The `src` of a crate may be left out.
fn ends_with(path: &str, name: &str) -> bool {
    Path::new(path).ends_with(name) || Path::new(&path.replace("/src/", "/")).ends_with(name)
}

/// Returns whether code in a page is the name of something in the tree, or is no such name. A path may lack its first folders.
fn exists(name: &str, is_type: bool, paths: &BTreeSet<&str>, files: &[(String, String)]) -> bool {
    if PATH.is_match(name) {
        return paths.iter().any(|path| ends_with(path, name));
    }
    let mut sources =
        files.iter().filter(|(path, _)| [".rs", ".ts", ".tsx"].iter().any(|ending| path.ends_with(ending)));
    let Some(item) = ITEM.captures(name) else {
        return !is_type || sources.any(|(_, text)| docs::compile(&format!(r"\b{name}\b")).is_match(text));
    };
    let (owner, member) = (&item[1], &item[2]);
    let is_function = owner.starts_with(char::is_uppercase) && member.starts_with(char::is_lowercase);
    let definition = if is_function { format!(r"\bfn {member}\b|\b{member}: ") } else { format!(r"\b{member}\b") };
    let definition = docs::compile(&definition);
    if owner.starts_with(char::is_uppercase) {
        return sources.any(|(_, text)| text.contains(owner) && definition.is_match(text));
    }
    let modules = [format!("{owner}.rs"), format!("{owner}/mod.rs"), format!("{owner}/lib.rs")];
    let mut modules = sources.filter(|(path, _)| modules.iter().any(|module| ends_with(path, module))).peekable();
    let is_module = |path: &&str| Path::new(path).ends_with(format!("{member}.rs"));
    // Without a module of the owner's name, it is somebody else's.
    modules.peek().is_none() || modules.any(|(_, text)| definition.is_match(text)) || paths.iter().any(is_module)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_page(text: &str, expected: &[&str]) {
        check_named("docs/a.md", text, expected);
    }

    fn check_named(page: &str, text: &str, expected: &[&str]) {
        let files = [
            (page, text),
            (
                "profiler/crates/report/src/json.rs",
                "struct LongNames;\nstruct Names { count: u8 }\nenum Kind { Short }\nimpl Names {\n    fn first() {}\n}\n",
            ),
            ("profiler/src/mounts.rs", "fn is_local() {}\n"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        assert_eq!(check(&files).iter().map(|finding| finding.to_string()).collect::<Vec<_>>(), expected, "{text}");
    }

    #[test]
    fn paths_are_whole_or_lack_their_first_folders() {
        check_page("`profiler/crates/report/src/json.rs`, `report/json.rs`, `report/`, `json.rs`\n", &[]);
        check_page("`report/NAME.rs`, `/etc/a.toml`, `runtime/pprof`, `a/b.c d`\n```\n`x/y.rs`\n```\n", &[]);
        check_page(
            "a\n`ort/json.rs`\n",
            &["docs/a.md:2: `ort/json.rs` is not in the tree: see xtask/src/tidy/names.rs"],
        );
        check_page("`jso.rs`, `a.toml`\n", &["docs/a.md:1: `jso.rs` is not in the tree: see xtask/src/tidy/names.rs"]);
        check_page("`repor/`\n", &["docs/a.md:1: `repor/` is not in the tree: see xtask/src/tidy/names.rs"]);
    }

    #[test]
    fn pages_for_developers_name_types_that_exist() {
        check_named("ARCHITECTURE.md", "`Names`, `LongNames`, `Foreign`, `JSON`\n", &[]);
        let finding = "ARCHITECTURE.md:1: `LongName` is not in the tree: see xtask/src/tidy/names.rs";
        check_named("ARCHITECTURE.md", "`LongName`\n", &[finding]);
        check_page("`LongName`\n", &[]);
    }

    #[test]
    fn items_are_in_a_file_with_their_type_or_module() {
        check_page(
            "`Names::first`, `Names::count`, `json::Names::first()`, `Kind::Short`, `mounts::is_local`, `report::mounts`, `std::bad_alloc`\n",
            &[],
        );
        for missing in ["Names::last", "Names::firs", "Name2::first", "Kind::Long", "mounts::is_distant"] {
            let finding = format!("docs/a.md:1: `{missing}` is not in the tree: see xtask/src/tidy/names.rs");
            check_page(&format!("`{missing}`\n"), &[&finding]);
        }
    }
}
