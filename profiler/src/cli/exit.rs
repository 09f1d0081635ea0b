//! Exit codes, and the errors that select them.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use thiserror::Error;

use super::terminal::say;
use crate::process::launch::LaunchError;
use crate::session::TooSmall;

// A contract: see `heapbpf --help`.
pub(super) const DONE: u8 = 0;
pub(super) const FAILED: u8 = 1;
pub(super) const USAGE: u8 = 2;
pub(super) const INCOMPLETE: u8 = 3;
pub(super) const LEAKS: u8 = 4;
pub(super) const INTERRUPTED: u8 = 130;

/// Maximum length of a word in messages: clap repeats values of any length.
const WORD_CHARS_MAX: usize = 200;

#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);

pub(super) fn usage(text: impl Into<String>) -> anyhow::Error {
    UsageError(text.into()).into()
}

pub(super) fn fail(error: &anyhow::Error) -> u8 {
    // A reader that closed its end (`heapbpf … | head`) has what it wanted.
    if is_broken_pipe(error) {
        return DONE;
    }
    say(&format!("heapbpf: error: {error:#}"));
    if error.is::<UsageError>() || error.is::<TooSmall>() {
        return USAGE;
    }
    error.downcast_ref().and_then(LaunchError::exit_code).unwrap_or(FAILED)
}

/// Whether the reader of an output is gone; includes terminals that hung up (see [`Lines`](super::terminal::Lines)).
pub(super) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe))
}

/// Prints help and version to standard output, and parse errors as one line in the form of all other errors.
pub(super) fn report_parse_error(error: &clap::Error, commands: &clap::Command) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::from(DONE);
    }
    let words: Vec<OsString> = std::env::args_os().collect();
    say(&format!("heapbpf: error: {}", message(error, commands, &words)));
    ExitCode::from(USAGE)
}

fn message(error: &clap::Error, commands: &clap::Command, words: &[OsString]) -> String {
    let text = error.render().to_string();
    let mut parts = text.split("\n\n");
    let reason = parts.next().unwrap_or_default().trim_start_matches("error: ");
    let (reason, values) = reason.split_once("[possible values: ").unwrap_or((reason, ""));
    let values: Vec<String> =
        values.trim_end_matches(']').split_terminator(", ").map(|name| format!("`{name}`")).collect();
    let values = if values.is_empty() { String::new() } else { format!(": use one of {}", values.join(", ")) };
    // clap lists missing arguments on lines of their own.
    let reason = reason.lines().flat_map(str::split_whitespace).map(shortened).collect::<Vec<_>>().join(" ");
    // By default, clap suggests `--` for every unknown option.
    let tips = text.lines().filter_map(|line| line.trim_start().strip_prefix("tip: "));
    let tips = tips.filter(|tip| !tip.starts_with("to pass")).map(in_backticks);
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap_or("heapbpf");
    let mut own_words = words.iter().skip(1).take_while(|&word| word != "--");
    let subcommand = own_words.find_map(|word| commands.find_subcommand(word));
    let command = subcommand.map_or_else(|| "heapbpf".to_owned(), |command| format!("heapbpf {}", command.get_name()));
    let stray = stray_word(error).filter(|_| usage.contains("COMMAND"));
    let stray = stray.map(|word| format!("to start a program: `{command} -- {word}`"));
    let help = format!("see `{command} --help`");
    let advice: Vec<String> = tips.chain(stray).chain(std::iter::once(help)).collect();
    format!("{}{values}; {}", in_backticks(&reason), advice.join("; "))
}

fn shortened(word: &str) -> Cow<'_, str> {
    match word.char_indices().nth(WORD_CHARS_MAX) {
        Some((end, _)) => format!("{}…`", &word[..end]).into(),
        None => word.into(),
    }
}

fn stray_word(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::UnknownArgument && !word.starts_with('-') => {
            Some(word)
        }
        _ => None,
    }
}

/// Replaces clap's quotes by backticks. An apostrophe is between letters and stays.
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
    use clap::{CommandFactory as _, Parser as _};

    use super::super::Cli;
    use super::*;

    #[test]
    fn quotes_become_backticks_except_apostrophes() {
        let check = |text: &str, expected: &str| assert_eq!(in_backticks(text), expected);
        check("invalid value 'x' for '--pid <PID>'", "invalid value `x` for `--pid <PID>`");
        check("'a b' cannot be a heap's name", "`a b` cannot be a heap's name");
        check("''", "``");
    }

    #[test]
    fn parse_errors_suggest_the_next_step() {
        let check = |words: &str, expected: &str| {
            let words = std::iter::once("heapbpf").chain(words.split_ascii_whitespace());
            let words: Vec<OsString> = words.map(OsString::from).collect();
            let error = Cli::try_parse_from(&words).expect_err("it cannot be parsed");
            assert_eq!(message(&error, &Cli::command(), &words), expected);
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
            "--by heap,threads",
            "invalid value `threads` for `--by <WHAT>`: use one of `thread`, `command`, `cgroup`, `heap`; a similar value exists: `thread`; see `heapbpf --help`",
        );
        check(
            "--hold all",
            "invalid value `all` for `--hold <WHICH>`: use one of `never`, `execs`, `forks`; see `heapbpf --help`",
        );
        check(
            "--threshold -5%",
            "invalid value `-5%` for `--threshold <SHARE>`: `-5%` is not a valid share: there is no number before the `%`; see `heapbpf --help`",
        );
        check(
            "leaks --interval many",
            "invalid value `many` for `--interval <BYTES>`: not a size; write it like 4096, 4KiB or 1M; see `heapbpf leaks --help`",
        );
    }
}
