//! Rules about lines of text: how a file opens, links, unfinished work, and paths of one machine.

use super::Findings;
use super::source::Source;

/// A Rust file begins with a `//!` comment.
pub(super) fn opening(source: &Source, findings: &mut Findings<'_>) {
    let opening = source.text.lines().next().and_then(|line| line.strip_prefix("//!"));
    if source.rust.is_some() && opening.is_none_or(|words| words.trim().is_empty()) {
        findings.add(1, "does not begin with a `//!` comment that describes the file");
    }
}

/// Pages about the kernel.
const KERNEL: [&str; 6] = [
    "github.com/torvalds/linux",
    "elixir.bootlin.com/linux",
    "git.kernel.org/",
    "docs.kernel.org/",
    "kernel.org/doc/",
    "raw.githubusercontent.com/torvalds/linux",
];
/// Pages that change with a branch.
const BRANCHES: [&str; 5] = ["/blob/master", "/blob/main", "/tree/master", "/tree/main", "/blob/HEAD"];
/// Minimum length of an abbreviated commit hash.
const COMMIT_DIGITS_MIN: usize = 12;

/// A link to a kernel's source or documentation names a version or a commit, and no link follows a branch: the page must
/// still have the cited content later.
pub(super) fn links(source: &Source, findings: &mut Findings<'_>) {
    for (index, line) in source.text.lines().enumerate() {
        for url in urls(line) {
            if BRANCHES.iter().any(|branch| url.contains(branch)) {
                findings.add(index + 1, format!("`{url}` follows a branch: link to a tag or a commit"));
            } else if KERNEL.iter().any(|place| url.contains(place)) && !is_fixed(url) {
                findings.add(index + 1, format!("`{url}` names no version: link to a tag or a commit"));
            }
        }
    }
}

fn urls(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("https://").chain(line.match_indices("http://")).map(|(at, _)| {
        let end = line[at..].find(|c: char| c.is_whitespace() || "<>()[]\"'`".contains(c));
        &line[at..end.map_or(line.len(), |length| at + length)]
    })
}

/// Whether a URL contains a version (`v6.13`, `6.1`) or a commit.
fn is_fixed(url: &str) -> bool {
    let is_commit = |part: &str| part.len() >= COMMIT_DIGITS_MIN && part.bytes().all(|digit| digit.is_ascii_hexdigit());
    let is_version = |part: &str| {
        let numbers = part.strip_prefix('v').unwrap_or(part).split('.');
        let leading = numbers.take(2).filter(|number| number.starts_with(|c: char| c.is_ascii_digit()));
        leading.count() == 2
    };
    url.split(['/', '=', '?', '&', '#', '~', '^']).any(|part| is_commit(part) || is_version(part))
}

/// Markers of unfinished work. Written in two pieces, because this file is checked, too.
const UNFINISHED: [&str; 4] =
    [concat!("FIX", "ME"), concat!("XX", "X"), concat!("todo", "!"), concat!("unimplemented", "!")];
/// Conflict markers of a merge.
const MERGE: [&str; 3] = [concat!("<<<<", "<<< "), concat!("||||", "||| "), concat!(">>>>", ">>> ")];

/// No leftovers of a merge or of unfinished work.
pub(super) fn markers(source: &Source, findings: &mut Findings<'_>) {
    for (index, line) in source.text.lines().enumerate() {
        if MERGE.iter().any(|mark| line.starts_with(mark)) {
            findings.add(index + 1, "conflict marker of a merge");
        }
        if let Some(word) = UNFINISHED.iter().find(|word| has_word(line, word)) {
            findings.add(index + 1, format!("`{word}`: finish it, or describe what is missing and why"));
        }
    }
}

/// Whether `word` occurs in `line` as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    line.match_indices(word).any(|(at, _)| {
        let after = line[at + word.len()..].chars().next();
        let bounded_after = word.ends_with('!') || !after.is_some_and(is_part);
        bounded_after && !line[..at].chars().next_back().is_some_and(is_part)
    })
}

/// Private folders. Written in two pieces, because this file is checked, too.
const PRIVATE: [&str; 2] = [concat!("/ro", "ot"), concat!("/wo", "rk")];

/// No private folders of one machine.
pub(super) fn machine_paths(source: &Source, findings: &mut Findings<'_>) {
    for (index, line) in source.text.lines().enumerate() {
        if let Some(folder) = PRIVATE.iter().find(|folder| names_folder(line, folder)) {
            findings.add(index + 1, format!("`{folder}` is a private folder"));
        }
    }
}

/// Whether `folder` occurs at the start of a path and as a whole component, unlike `/proc/1/root`.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + folder.len()..].chars().next();
        let begins = before.is_none_or(|c| c.is_whitespace() || "\"'`=(:,<>[".contains(c));
        begins && !after.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-')
    })
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    #[test]
    fn rust_files_open_with_a_comment() {
        assert_eq!(found(opening, "a.rs", "//! Owns a.\n"), [""; 0]);
        assert_eq!(found(opening, "a.md", "Owns a.\n"), [""; 0]);
        for text in ["", "//!\n", "// Owns a.\n", "\n//! Owns a.\n", "use b;\n"] {
            assert_eq!(found(opening, "a.rs", text).len(), 1, "{text:?}");
        }
    }

    const KERNEL_HOME: &str = concat!("https://github.com/", "torvalds/linux/");

    #[test]
    fn links_without_version() {
        let moving = [
            format!("{KERNEL_HOME}{}/arch/x86/kernel/uprobes.c#L1", concat!("blob/", "master")),
            format!("{KERNEL_HOME}issues"),
            concat!("https://elixir.bootlin.com/", "linux/latest/source/kernel/events/uprobes.c").to_owned(),
            concat!("https://docs.", "kernel.org/bpf/maps.html").to_owned(),
            format!("https://github.com/a/b/{}/c.rs", concat!("blob/", "main")),
        ];
        for url in moving {
            let text = format!("fine\n// See <{url}> for it.\n");
            let findings = found(links, "a.md", &text);
            assert_eq!(findings.len(), 1, "{url}");
            assert!(findings[0].starts_with("2: ") && findings[0].contains(&url), "{findings:?}");
        }
    }

    #[test]
    fn links_with_version() {
        let fixed = [
            format!("{KERNEL_HOME}blob/v6.13/arch/x86/kernel/uprobes.c#L1"),
            format!("{KERNEL_HOME}commit/d920179b3d4842a0e27cae54fdddbe5ef3977e73"),
            concat!("https://elixir.bootlin.com/", "linux/v6.1.12/source/mm/slab.c").to_owned(),
            concat!("https://git.", "kernel.org/pub/linux/kernel.git/tree/mm?h=v6.12-rc3").to_owned(),
            concat!("https://docs.", "kernel.org/6.12/bpf/maps.html").to_owned(),
            "https://lwn.net/Articles/787740/".to_owned(),
        ];
        for url in fixed {
            assert_eq!(found(links, "a.md", &format!("see ({url}).\n")), [""; 0], "{url}");
        }
    }

    #[test]
    fn leftovers() {
        for word in UNFINISHED {
            let text = format!("fine\n// {word} later\n");
            assert_eq!(found(markers, "notes.md", &text).len(), 1, "{text}");
        }
        for mark in MERGE {
            let text = format!("fine\n{mark}main\n");
            assert_eq!(found(markers, "notes.md", &text), ["2: conflict marker of a merge"]);
        }
    }

    #[test]
    fn similar_text_is_accepted() {
        let template = "X".repeat(6);
        let text = format!("Title\n=======\nmktemp /tmp/a.{template}\nlet mastodon = 1;\n");
        assert_eq!(found(markers, "notes.md", &text), [""; 0]);
    }

    #[test]
    fn private_folders() {
        for folder in PRIVATE {
            for text in
                [format!("cd {folder}/project"), format!("let path = \"{folder}\";"), format!("PATH={folder}/bin")]
            {
                assert_eq!(found(machine_paths, "notes.md", &text).len(), 1, "{text}");
            }
        }
    }

    #[test]
    fn public_paths_are_accepted() {
        for folder in PRIVATE {
            for text in [format!("/proc/PID{folder}/lib"), format!("{folder}shop"), format!("{{pid}}{folder}")] {
                assert_eq!(found(machine_paths, "notes.md", &text), [""; 0], "{text}");
            }
        }
    }
}
