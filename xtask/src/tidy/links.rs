//! A link to a kernel's source or documentation names a version or a commit, and a link to a repository's file does not
//! follow a branch: what such a page says must still be there when somebody looks.

use super::Findings;
use super::source::Source;

/// Pages about one kernel or another.
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
/// Digits of a commit's name that are enough to be one.
const COMMIT_DIGITS_MIN: usize = 12;

/// The rule.
pub(super) fn check(source: &Source, findings: &mut Findings<'_>) {
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

/// Whether a page's address holds a version (`v6.13`, `6.1`) or a commit.
fn is_fixed(url: &str) -> bool {
    let is_commit = |part: &str| part.len() >= COMMIT_DIGITS_MIN && part.bytes().all(|digit| digit.is_ascii_hexdigit());
    let is_version = |part: &str| {
        let numbers = part.strip_prefix('v').unwrap_or(part).split('.');
        let leading = numbers.take(2).filter(|number| number.starts_with(|c: char| c.is_ascii_digit()));
        leading.count() == 2
    };
    url.split(['/', '=', '?', '&', '#', '~', '^']).any(|part| is_commit(part) || is_version(part))
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    const KERNEL_HOME: &str = concat!("https://github.com/", "torvalds/linux/");

    #[test]
    fn links_that_move() {
        let moving = [
            format!("{KERNEL_HOME}{}/arch/x86/kernel/uprobes.c#L1", concat!("blob/", "master")),
            format!("{KERNEL_HOME}issues"),
            concat!("https://elixir.bootlin.com/", "linux/latest/source/kernel/events/uprobes.c").to_owned(),
            concat!("https://docs.", "kernel.org/bpf/maps.html").to_owned(),
            format!("https://github.com/a/b/{}/c.rs", concat!("blob/", "main")),
        ];
        for url in moving {
            let text = format!("fine\n// See <{url}> for it.\n");
            let found = found(check, "a.md", &text);
            assert_eq!(found.len(), 1, "{url}");
            assert!(found[0].starts_with("2: ") && found[0].contains(&url), "{found:?}");
        }
    }

    #[test]
    fn links_that_stay() {
        let fixed = [
            format!("{KERNEL_HOME}blob/v6.13/arch/x86/kernel/uprobes.c#L1"),
            format!("{KERNEL_HOME}commit/d920179b3d4842a0e27cae54fdddbe5ef3977e73"),
            concat!("https://elixir.bootlin.com/", "linux/v6.1.12/source/mm/slab.c").to_owned(),
            concat!("https://git.", "kernel.org/pub/linux/kernel.git/tree/mm?h=v6.12-rc3").to_owned(),
            concat!("https://docs.", "kernel.org/6.12/bpf/maps.html").to_owned(),
            "https://lwn.net/Articles/787740/".to_owned(),
        ];
        for url in fixed {
            assert_eq!(found(check, "a.md", &format!("see ({url}).\n")), [""; 0], "{url}");
        }
    }
}
