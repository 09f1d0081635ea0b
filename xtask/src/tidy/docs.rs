//! Rules about the documentation: relative links lead to files and headings that exist, and the tables of tested kernels are those
//! of the stored results.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use super::Finding;
use crate::vm::matrix::{Matrix, PAGE, RESULTS};

static LINK: LazyLock<Regex> = LazyLock::new(|| compile(r"\]\(([^()\s]+)\)"));
static ID: LazyLock<Regex> = LazyLock::new(|| compile(r#"<a id="([^"]+)"></a>"#));

pub(super) fn compile(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is valid")
}

/// `files` are all of the repository that are text; `exists` is for others.
pub(super) fn check(files: &[(String, String)], exists: &dyn Fn(&Path) -> bool) -> Vec<Finding> {
    let pages: BTreeMap<&str, &str> =
        files.iter().filter(|(path, _)| path.ends_with(".md")).map(|(path, text)| (&**path, &**text)).collect();
    let mut findings = Vec::new();
    for (&path, text) in &pages {
        let mut add = |line: usize, message: String| findings.push(Finding { path: path.to_owned(), line, message });
        for (line, target) in links(text) {
            if let Some(message) = broken(path, target, &pages, exists) {
                add(line, message);
            }
        }
    }
    let page = |path: &str| files.iter().find(|(found, _)| found == path).map(|(_, text)| text.as_str());
    if let (Some(results), Some(text)) = (page(RESULTS), page(PAGE))
        && let Some(message) = stale(results, text)
    {
        findings.push(Finding { path: PAGE.to_owned(), line: 1, message });
    }
    findings
}

fn stale(results: &str, page: &str) -> Option<String> {
    match Matrix::parse(results).and_then(|matrix| matrix.apply(page)) {
        Ok(renewed) if renewed == page => None,
        Ok(_) => Some(format!("the tables are not those of `{RESULTS}`: run `cargo xtask vm --tables`")),
        Err(error) => Some(format!("{error:#}")),
    }
}

/// Lines of a page, counted from 1, and whether they are code.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str, bool)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_fence).then_some((number, line, is_code))
    })
}

fn links(text: &str) -> Vec<(usize, &str)> {
    let prose = lines(text).filter(|(.., is_code)| !is_code);
    let all = prose.flat_map(|(number, line, _)| LINK.captures_iter(line).map(move |found| (number, found)));
    all.filter_map(|(number, found)| Some((number, found.get(1)?.as_str()))).collect()
}

fn broken(page: &str, link: &str, pages: &BTreeMap<&str, &str>, exists: &dyn Fn(&Path) -> bool) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { page.into() } else { normal(&Path::new(page).with_file_name("").join(file)) };
    if !exists(&path) {
        return Some(format!("broken link: `{}` does not exist", path.display()));
    }
    let (anchor, text) = (anchor?, pages.get(path.to_str()?)?);
    (!anchors(text).contains(anchor)).then(|| format!("broken link: `{}` has no heading `#{anchor}`", path.display()))
}

/// Without `..`, which can lead through a folder that does not exist.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// The anchors of headings, as GitHub makes them, and those that are explicit.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = lines(text).filter(|(_, line, is_code)| !is_code && line.starts_with('#'));
    let explicit = lines(text).filter(|(.., is_code)| !is_code).flat_map(|(_, line, _)| ID.captures_iter(line));
    let mut anchors: BTreeSet<String> = explicit.map(|found| found[1].to_owned()).collect();
    for (_, line, _) in headings {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|&c| c.is_alphanumeric() || " -_".contains(c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let numbered = std::iter::once(anchor.clone()).chain((1..).map(|number| format!("{anchor}-{number}")));
        anchors.extend(numbered.into_iter().find(|anchor| !anchors.contains(anchor)));
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, String)> =
            files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let exists = |path: &Path| files.iter().any(|(file, _)| Path::new(file) == path);
        check(&files, &exists).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn tables_of_kernels_must_be_those_of_the_results() {
        let empty = "<!-- tables of tested kernels: generated by `cargo xtask vm --record` -->\n<!-- end -->\n";
        let check = |results: &str, page: &str| found(&[(RESULTS, results), (PAGE, page)]).join("\n");
        assert_eq!(check("{}", empty), "");
        assert!(check("{}", &empty.replace("<!-- end", "edited\n<!-- end")).contains("cargo xtask vm --tables"));
        assert!(check("{}", "no tables").contains("has no"));
        assert!(check("no results", empty).contains("cannot parse"));
    }

    #[test]
    fn links_must_lead_somewhere() {
        let target = ("docs/b.md", "# A title: `x`, y\n## Twice\n## Twice\n```\n# code\n```\n<a id=\"older\"></a>\n");
        for link in [
            "b.md",
            "b.md#a-title-x-y",
            "b.md#twice-1",
            "b.md#older",
            "../README.md",
            "https://example.com/x#y",
            "#here",
        ] {
            let page = format!("# Here\n[text]({link})\n");
            assert_eq!(found(&[("docs/a.md", &page), target, ("README.md", "")]), [""; 0], "{link}");
        }
        for (link, expected) in [
            ("c.md", "docs/a.md:2: broken link: `docs/c.md` does not exist"),
            ("b.md#code", "docs/a.md:2: broken link: `docs/b.md` has no heading `#code`"),
            ("#there", "docs/a.md:2: broken link: `docs/a.md` has no heading `#there`"),
        ] {
            assert_eq!(found(&[("docs/a.md", &format!("# Here\n[text]({link})\n")), target]), [expected]);
        }
    }
}
