//! Rules about the documentation: relative links lead to files and headings that exist, and commands of heapbpf have
//! options that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use super::Finding;

static LINK: LazyLock<Regex> = LazyLock::new(|| compile(r"\]\(([^()\s]+)\)"));
static ID: LazyLock<Regex> = LazyLock::new(|| compile(r#"<a id="([^"]+)"></a>"#));
static SPAN: LazyLock<Regex> = LazyLock::new(|| compile("`[^`]+`"));
static OPTION: LazyLock<Regex> = LazyLock::new(|| compile("^--([a-z][a-z0-9-]*)"));
/// What may precede heapbpf in a command line: other programs have options of their own.
static BEFORE: LazyLock<Regex> = LazyLock::new(|| compile(r"^(sudo|-E|\$|#|time|\w+=\S*)$"));

fn compile(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is valid")
}

/// `files` are all of the repository that are text; `exists` is for others.
pub(super) fn check(files: &[(String, String)], exists: &dyn Fn(&Path) -> bool) -> Vec<Finding> {
    let pages: BTreeMap<&str, &str> =
        files.iter().filter(|(path, _)| path.ends_with(".md")).map(|(path, text)| (&**path, &**text)).collect();
    let options = Options::new(&heapbpf::internals::command_line());
    let mut findings = Vec::new();
    for (&path, text) in &pages {
        let mut add = |line: usize, message: String| findings.push(Finding { path: path.to_owned(), line, message });
        for (line, target) in links(text) {
            if let Some(message) = broken(path, target, &pages, exists) {
                add(line, message);
            }
        }
        // The changelog also describes options that were removed.
        if path == "README.md" || path.starts_with("docs/") {
            commands(before_errors(text)).iter().for_each(|(line, command)| {
                options.unknown(command).into_iter().for_each(|option| {
                    add(*line, format!("heapbpf has no option `{option}` in `{command}`"));
                });
            });
        }
    }
    findings
}

/// Lines of a page, counted from 1, and whether they are code.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str, bool)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_fence).then_some((number, line, is_code))
    })
}

/// Wrong command lines are documented too, last.
fn before_errors(text: &str) -> &str {
    text.split("<!-- table of errors").next().unwrap_or(text)
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

/// Command lines of heapbpf: in blocks of code, and in prose between backticks.
fn commands(text: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut continued: Option<(usize, String)> = None;
    for (number, line, is_code) in lines(text) {
        if !is_code {
            all.extend(SPAN.find_iter(line).map(|span| (number, span.as_str().trim_matches('`').to_owned())));
            continue;
        }
        let (start, before) = continued.take().unwrap_or((number, String::new()));
        match line.strip_suffix('\\') {
            Some(part) => continued = Some((start, before + part)),
            None => all.push((start, before + line)),
        }
    }
    all.retain(|(_, command)| {
        let before = command.split_whitespace().take_while(|word| *word != "heapbpf");
        before.clone().count() < command.split_whitespace().count() && before.clone().all(|word| BEFORE.is_match(word))
    });
    all
}

/// Long options by command; those without a command under an empty name.
struct Options(BTreeMap<String, BTreeSet<String>>);

impl Options {
    fn new(all: &clap::Command) -> Self {
        let mut all = all.clone();
        all.build();
        let of = |command: &clap::Command| {
            let names = command.get_arguments().filter_map(clap::Arg::get_long);
            names.map(str::to_owned).chain(["help".to_owned()]).collect::<BTreeSet<_>>()
        };
        let subcommands = all.get_subcommands().map(|command| (command.get_name().to_owned(), of(command)));
        Self(subcommands.chain([(String::new(), of(&all))]).collect())
    }

    fn unknown(&self, command: &str) -> Vec<String> {
        let mut words = command.split_whitespace().skip_while(|word| *word != "heapbpf").skip(1).peekable();
        let name = words.peek().filter(|word| self.0.contains_key(**word)).copied().unwrap_or_default();
        let known = &self.0[name];
        let own = words.take_while(|word| !["--", "|", ";", "&&", "#"].contains(word));
        let options = own.filter_map(|word| Some(OPTION.captures(word)?[1].to_owned()));
        options.filter(|option| !known.contains(option)).map(|option| format!("--{option}")).collect()
    }
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

    #[test]
    fn options_must_exist() {
        for command in [
            "sudo heapbpf --pid 1 --interval=4KiB -o x.svg",
            "heapbpf leaks --follow-forks -- make --jobs",
            "heapbpf --help | grep --color x",
            "docker run --rm heapbpf --privileged",
            "heapbpf diff a b --fail-above 5%",
            "cargo build -p heapbpf --locked",
        ] {
            for text in [format!("```\n{command}\n```\n"), format!("Run `{command}`.\n")] {
                assert_eq!(found(&[("docs/a.md", &text)]), [""; 0], "{command}");
            }
        }
        let text = "See\n```\nHOME=x sudo heapbpf \\\n  --intervall 1\n```\nand `heapbpf diff --duration 1`.\n";
        assert_eq!(
            found(&[("README.md", text)]),
            [
                "README.md:3: heapbpf has no option `--intervall` in `HOME=x sudo heapbpf   --intervall 1`",
                "README.md:6: heapbpf has no option `--duration` in `heapbpf diff --duration 1`",
            ]
        );
        assert_eq!(found(&[("CHANGELOG.md", text)]), [""; 0]);
    }
}
