//! No leftovers: neither of a merge nor of work that somebody meant to finish.

use super::Findings;
use super::source::Source;

/// Words of unfinished work. Written in two pieces, or this file would break its own rule.
const UNFINISHED: [&str; 4] =
    [concat!("FIX", "ME"), concat!("XX", "X"), concat!("todo", "!"), concat!("unimplemented", "!")];
/// How lines begin that a merge left.
const MERGE: [&str; 3] = [concat!("<<<<", "<<< "), concat!("||||", "||| "), concat!(">>>>", ">>> ")];

/// The rule.
pub(super) fn check(source: &Source, findings: &mut Findings<'_>) {
    for (index, line) in source.text.lines().enumerate() {
        if MERGE.iter().any(|mark| line.starts_with(mark)) {
            findings.add(index + 1, "left by a merge");
        }
        if let Some(word) = UNFINISHED.iter().find(|word| has_word(line, word)) {
            findings.add(index + 1, format!("`{word}`: finish it, or say in a sentence what is missing and why"));
        }
    }
}

/// Whether `word` occurs in `line` and is not part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    line.match_indices(word).any(|(at, _)| {
        let after = line[at + word.len()..].chars().next();
        let bounded_after = word.ends_with('!') || !after.is_some_and(is_part);
        bounded_after && !line[..at].chars().next_back().is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    #[test]
    fn leftovers() {
        for word in UNFINISHED {
            let text = format!("fine\n// {word} later\n");
            assert_eq!(found(check, "notes.md", &text).len(), 1, "{text}");
        }
        for mark in MERGE {
            let text = format!("fine\n{mark}main\n");
            assert_eq!(found(check, "notes.md", &text), ["2: left by a merge"]);
        }
    }

    #[test]
    fn what_only_looks_like_one() {
        let template = "X".repeat(6);
        let text = format!("Title\n=======\nmktemp /tmp/a.{template}\nlet mastodon = 1;\n");
        assert_eq!(found(check, "notes.md", &text), [""; 0]);
    }
}
