//! Subjects of commits: at most 72 characters, so that `git log --oneline` shows them whole.

use std::path::Path;
use std::process::Command;

use super::Finding;
use crate::command;

/// Subjects are checked after this commit.
const BASE: &str = "2628097";
const CHARACTERS_MAX: usize = 72;

/// Checks the history; without git or without the base commit, such as in an archive or a shallow clone, there is none.
pub(super) fn check(root: &Path) -> Vec<Finding> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["log", "--no-merges", "--format=%h %s", &format!("{BASE}..HEAD")]);
    command::output(&mut git).map_or_else(|_| Vec::new(), |log| log.lines().filter_map(finding).collect())
}

/// Checks a line of `HASH SUBJECT`.
fn finding(line: &str) -> Option<Finding> {
    let (hash, subject) = line.split_once(' ')?;
    let characters = subject.chars().count();
    let message = format!("the subject has {characters} characters, the limit is {CHARACTERS_MAX}: {subject}");
    (characters > CHARACTERS_MAX).then(|| Finding { path: format!("commit {hash}"), line: 1, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_subjects_are_findings() {
        assert_eq!(finding(&format!("abc123 {}", "ä".repeat(72))), None);
        assert!(finding(&format!("abc123 {}", "ä".repeat(73))).is_some_and(|finding| finding.path == "commit abc123"));
    }
}
