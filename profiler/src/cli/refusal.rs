//! What cannot be parsed, in one line: the value, the reason, and what to do next.

use std::borrow::Cow;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::args::Cli;
use super::{exit, say};

/// Help and version go to standard output; what cannot be parsed is an error like any other, with the values marked as
/// everywhere else.
pub(super) fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::from(exit::DONE);
    }
    let words: Vec<OsString> = std::env::args_os().collect();
    say(&format!("heapbpf: error: {}", line(error, &words)));
    ExitCode::from(exit::USAGE)
}

fn line(error: &clap::Error, words: &[OsString]) -> String {
    let text = error.render().to_string();
    let mut parts = text.split("\n\n");
    let reason = parts.next().unwrap_or_default().trim_start_matches("error: ");
    // What is missing stands in lines of its own.
    let reason = reason.lines().flat_map(str::split_whitespace).map(shortened).collect::<Vec<_>>().join(" ");
    // The library would have every option behind `--` where it knows no better.
    let tips = text.lines().filter_map(|line| line.trim_start().strip_prefix("tip: "));
    let tips = tips.filter(|tip| !tip.starts_with("to pass")).map(in_backticks);
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap_or("heapbpf");
    let command = command(words);
    let starts_programs = usage.contains("COMMAND");
    let stray =
        stray(error).filter(|_| starts_programs).map(|word| format!("to start a program: `{command} -- {word}`"));
    let help = format!("see `{command} --help`");
    let advice: Vec<String> = tips.chain(stray).chain(std::iter::once(help)).collect();
    format!("{}; {}", in_backticks(&reason), advice.join("; "))
}

/// A word as it is shown: the library repeats values of any length.
fn shortened(word: &str) -> Cow<'_, str> {
    match word.char_indices().nth(WORD_CHARS_MAX) {
        Some((end, _)) => format!("{}…`", &word[..end]).into(),
        None => word.into(),
    }
}

/// Characters of a word that are shown.
const WORD_CHARS_MAX: usize = 200;

/// What these words begin: `heapbpf leaks`.
fn command(words: &[OsString]) -> String {
    let commands = Cli::command();
    let mut own = words.iter().skip(1).take_while(|&word| word != "--");
    let named = own.find_map(|word| commands.find_subcommand(word));
    named.map_or_else(|| "heapbpf".to_owned(), |command| format!("heapbpf {}", command.get_name()))
}

/// A word that is no option, where a program's name goes behind `--`.
fn stray(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::UnknownArgument && !word.starts_with('-') => {
            Some(word)
        }
        _ => None,
    }
}

/// The library's quotes become backticks; an apostrophe stands between letters.
fn in_backticks(text: &str) -> String {
    let mut before = ' ';
    let mut characters = text.trim_end().chars().peekable();
    let mut marked = String::with_capacity(text.len());
    while let Some(character) = characters.next() {
        let is_apostrophe = before.is_alphabetic() && characters.peek().is_some_and(|next| next.is_alphabetic());
        marked.push(if character == '\'' && !is_apostrophe { '`' } else { character });
        before = character;
    }
    marked
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn values_are_in_backticks_and_apostrophes_stay() {
        let check = |text: &str, expected: &str| assert_eq!(in_backticks(text), expected);
        check("invalid value 'x' for '--pid <PID>'", "invalid value `x` for `--pid <PID>`");
        check("'a b' cannot be a heap's name", "`a b` cannot be a heap's name");
        check("''", "``");
    }

    #[test]
    fn the_line_says_what_to_do_next() {
        let check = |words: &str, expected: &str| {
            let words = std::iter::once("heapbpf").chain(words.split_ascii_whitespace());
            let words: Vec<OsString> = words.map(OsString::from).collect();
            let error = Cli::try_parse_from(&words).expect_err("it cannot be parsed");
            assert_eq!(line(&error, &words), expected);
        };
        check("ls", "unexpected argument `ls` found; to start a program: `heapbpf -- ls`; see `heapbpf --help`");
        check(
            "leaks ls -l",
            "unexpected argument `ls` found; to start a program: `heapbpf leaks -- ls`; see `heapbpf leaks --help`",
        );
        check(
            "--pids 3",
            "unexpected argument `--pids` found; a similar argument exists: `--pid`; see `heapbpf --help`",
        );
        check("--xyzzy", "unexpected argument `--xyzzy` found; see `heapbpf --help`");
        check("diff a b c", "unexpected argument `c` found; see `heapbpf diff --help`");
        check(
            "leak --pid 3",
            "unexpected argument `leak` found; to start a program: `heapbpf -- leak`; see `heapbpf --help`",
        );
        check(
            "diff",
            "the following required arguments were not provided: <BEFORE> <AFTER>; see `heapbpf diff --help`",
        );
        check(
            "leaks --interval many",
            "invalid value `many` for `--interval <BYTES>`: not a size; write it like 4096, 4KiB or 1M; see `heapbpf leaks --help`",
        );
    }
}
