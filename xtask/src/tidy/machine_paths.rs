//! No folders of somebody's machine: a path that exists on one machine only tells a reader nothing.

use super::Findings;
use super::source::Source;

/// Folders that are somebody's own. Written in two pieces, or this file would break its own rule.
const PRIVATE: [&str; 2] = [concat!("/ro", "ot"), concat!("/wo", "rk")];

/// The rule.
pub(super) fn check(source: &Source, findings: &mut Findings<'_>) {
    for (index, line) in source.text.lines().enumerate() {
        if let Some(folder) = PRIVATE.iter().find(|folder| names_folder(line, folder)) {
            findings.add(index + 1, format!("`{folder}` is a folder of one machine"));
        }
    }
}

/// Whether `folder` occurs as the beginning of a path and as a whole component: `/proc/1/root` is another thing.
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
    fn private_folders() {
        for folder in PRIVATE {
            for text in
                [format!("cd {folder}/project"), format!("let path = \"{folder}\";"), format!("PATH={folder}/bin")]
            {
                assert_eq!(found(check, "notes.md", &text).len(), 1, "{text}");
            }
        }
    }

    #[test]
    fn paths_that_every_machine_has() {
        for folder in PRIVATE {
            for text in [format!("/proc/PID{folder}/lib"), format!("{folder}shop"), format!("{{pid}}{folder}")] {
                assert_eq!(found(check, "notes.md", &text), [""; 0], "{text}");
            }
        }
    }
}
