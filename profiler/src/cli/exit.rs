//! Exit codes, and the errors that select them.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use heapbpf_linux::signals::ExitAtSignal;
use thiserror::Error;

use super::similar::similar;
use super::terminal::{coloured_output, error_message, layout, say, say_in_handler};
use crate::process::launch::LaunchError;
use crate::session::TooSmall;

// These codes are a contract: see docs/exit-codes.md.
pub(super) const DONE: u8 = 0;
pub(super) const FAILED: u8 = 1;
pub(super) const USAGE: u8 = 2;
pub(super) const INCOMPLETE: u8 = 3;
pub(super) const LEAKS: u8 = 4;
pub(super) const GREW: u8 = 5;
pub(super) const INTERRUPTED: u8 = 130;

/// Maximum length of a word in messages: clap repeats values of any length.
const WORD_CHARS_MAX: usize = 200;

#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);

pub(super) fn usage(text: impl Into<String>) -> anyhow::Error {
    UsageError(text.into()).into()
}

/// Message of an interruption while nothing is recorded or checked yet.
const INTERRUPTION: &str = "heapbpf: interrupted before anything was recorded or written";

/// Reports that heapbpf was interrupted. Returns the exit code.
pub(super) fn interrupted() -> u8 {
    say(INTERRUPTION);
    INTERRUPTED
}

/// RAII guard during which the first SIGINT or SIGTERM exits.
pub(super) fn exit_when_interrupted() -> io::Result<ExitAtSignal> {
    ExitAtSignal::first(INTERRUPTED, || say_in_handler(INTERRUPTION))
}

/// RAII guard during which the second SIGINT exits.
pub(super) fn exit_when_interrupted_again() -> io::Result<ExitAtSignal> {
    ExitAtSignal::second_interrupt(INTERRUPTED, || say_in_handler(INTERRUPTION))
}

pub(super) fn fail(error: &anyhow::Error) -> u8 {
    // A reader that closed its end (`heapbpf … | head`) has all that it needs.
    if is_broken_pipe(error) {
        return DONE;
    }
    say(&error_message(error));
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

#[derive(Debug, Error)]
pub(super) enum ParseError {
    /// The words cannot be parsed, or request help.
    #[error(transparent)]
    Words(#[from] clap::Error),
    /// The words cannot be parsed with the user defaults, which come from `sources`.
    #[error("{sources}: {error}")]
    Defaults { error: clap::Error, sources: String },
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

impl ParseError {
    /// Prints help and version to standard output, and parse errors as one line in the form of all other errors.
    pub(super) fn report(&self, commands: &clap::Command, words: &[OsString]) -> ExitCode {
        let (error, prefix) = match self {
            Self::Other(error) => return ExitCode::from(fail(error)),
            Self::Words(error) if !error.use_stderr() => {
                let (_, colour) = layout();
                let text = error.render();
                let text = if colour { text.ansi().to_string() } else { text.to_string() };
                let _ = coloured_output().write_all(text.as_bytes());
                return ExitCode::from(DONE);
            }
            Self::Words(error) => (error, String::new()),
            Self::Defaults { error, sources } => (error, format!("{sources}: ")),
        };
        say(&error_message(format_args!("{prefix}{}", message(error, commands, words))));
        ExitCode::from(USAGE)
    }
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
    let subcommand = own_words.clone().find_map(|word| commands.find_subcommand(word));
    let command = subcommand.map_or_else(|| "heapbpf".to_owned(), |command| format!("heapbpf {}", command.get_name()));
    let similar = own_words.next().and_then(|word| self::similar(word.to_str()?)).filter(|_| subcommand.is_none());
    let similar = similar.map(|name| format!("a similar command exists: `heapbpf {name}`"));
    let program = program(error, words, subcommand).filter(|_| usage.contains("COMMAND") && similar.is_none());
    let program = program.map(|word| format!("to start a program: `{command} -- {word}`"));
    let help = format!("see `{command} --help`");
    let advice: Vec<String> = tips.chain(similar).chain(program).chain(std::iter::once(help)).collect();
    format!("{}{values}; {}", in_backticks(&reason), advice.join("; "))
}

fn shortened(word: &str) -> Cow<'_, str> {
    match word.char_indices().nth(WORD_CHARS_MAX) {
        Some((end, _)) => format!("{}…`", &word[..end]).into(),
        None => word.into(),
    }
}

/// Finds a program whose own options were given to heapbpf.
fn program<'a>(error: &'a clap::Error, words: &'a [OsString], subcommand: Option<&clap::Command>) -> Option<&'a str> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    if !unknown.starts_with('-') {
        return Some(unknown);
    }
    let first = words.get(1 + usize::from(subcommand.is_some()))?.to_str()?;
    (!first.starts_with('-')).then_some(first)
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
    use heapbpf_base::testing::check_table;

    use super::*;

    #[test]
    fn exit_codes_are_documented() {
        let rows = [
            (DONE, "all", "done; of `doctor`: profiling works; of `leaks`: no leaks"),
            (FAILED, "all", "failed: for example, a file cannot be read or written, or a process does not exist"),
            (USAGE, "all", "wrong usage: an option, a value or a format that heapbpf does not know"),
            (
                INCOMPLETE,
                "all but `doctor`",
                "done, but the profile is incomplete; of `convert` and `diff`: or the input is damaged",
            ),
            (LEAKS, "`leaks`", "leaks found"),
            (GREW, "`diff`", "growth above the limit of `--fail-above`"),
            (INTERRUPTED, "`record`, `leaks`", "interrupted before anything was written"),
        ];
        let rows: String = rows.map(|(code, of, meaning)| format!("| {code} | {of} | {meaning} |\n")).concat();
        check_table(
            "exit-codes.md",
            "table of codes",
            &format!("| code | commands | meaning |\n|---:|---|---|\n{rows}"),
        );
    }

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
            let commands = super::super::commands::commands();
            let error = commands.clone().try_get_matches_from(&words).expect_err("it cannot be parsed");
            assert_eq!(message(&error, &commands, &words), expected);
        };
        check("ls -x", "unexpected argument `-x` found; to start a program: `heapbpf -- ls`; see `heapbpf --help`");
        check("ls a", "unexpected argument `a` found; to start a program: `heapbpf -- a`; see `heapbpf --help`");
        check(
            "leaks ls -x",
            "unexpected argument `-x` found; to start a program: `heapbpf leaks -- ls`; see `heapbpf leaks --help`",
        );
        check(
            "--pids 3",
            "unexpected argument `--pids` found; a similar argument exists: `--pid`; see `heapbpf --help`",
        );
        check("--xyzzy", "unexpected argument `--xyzzy` found; see `heapbpf --help`");
        check("diff a b c", "unexpected argument `c` found; see `heapbpf diff --help`");
        check(
            "leak --pid 3",
            "the argument `[PROGRAM_OR_PID]` cannot be used with `--pid <PID>`; a similar command exists: `heapbpf leaks`; see `heapbpf --help`",
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
