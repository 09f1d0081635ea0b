//! Completions of values that a shell cannot know: processes, programs, formats. Shells call heapbpf for them.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueHint;
use clap::builder::PossibleValuesParser;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::{CompleteEnv, Shells};
use heapbpf_base::shown;
use heapbpf_report::text::printable;
use heapbpf_report::{Format, diff};

use crate::allocator::hook_set::built_in_names;
use crate::process::selection::{self, ProcessFacts, Selection};

/// Environment variable that names the shell in calls by its completion script.
const VARIABLE: &str = "HEAPBPF_COMPLETE";
const NAME: &str = "heapbpf";

/// Prints completions if a shell requests them. Returns whether it does.
pub(super) fn answer(commands: fn() -> clap::Command, words: &[OsString]) -> Result<bool> {
    let folder = std::env::current_dir().ok();
    let commands = CompleteEnv::with_factory(|| with_own_paths(commands()));
    let answered = commands.var(VARIABLE).bin(NAME).completer(NAME);
    answered.try_complete(words.iter().cloned(), folder.as_deref()).context("cannot complete")
}

pub(super) fn shells() -> PossibleValuesParser {
    PossibleValuesParser::new(Shells::builtins().names())
}

pub(super) fn write_script(shell: &str, out: &mut dyn Write) -> Result<()> {
    let shells = Shells::builtins();
    let completer = shells.completer(shell).context("unknown shell")?;
    Ok(completer.write_registration(VARIABLE, NAME, NAME, NAME, out)?)
}

fn processes() -> Vec<ProcessFacts> {
    selection::scan(&Selection { all: true, ..Selection::default() }).unwrap_or_default()
}

fn is_start(current: &OsStr, candidate: &str) -> bool {
    current.to_str().is_some_and(|current| candidate.starts_with(current))
}

fn candidate(value: &str, help: String) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(help.into()))
}

fn find_pids(current: &OsStr) -> Vec<CompletionCandidate> {
    let all = processes().into_iter().map(|facts| (facts.pid().to_string(), facts.comm));
    all.filter(|(pid, _)| is_start(current, pid)).map(|(pid, comm)| candidate(&pid, printable(&comm).into())).collect()
}

fn find_programs(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut names: Vec<String> = processes().iter().filter_map(|facts| facts.names().cut.into_iter().next()).collect();
    names.retain(|name| is_start(current, name) && is_word(name));
    names.sort_unstable();
    let runs = names.chunk_by(|a, b| a == b);
    runs.map(|run| candidate(&run[0], format!("{} running", run.len()))).collect()
}

/// Completes paths by [`paths`] where clap would offer all files.
fn with_own_paths(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|option| {
        let is_path = !matches!(option.get_value_hint(), ValueHint::Unknown | ValueHint::Other);
        if !is_path || option.get::<ArgValueCompleter>().is_some() {
            return option;
        }
        option.add(ArgValueCompleter::new(|current: &OsStr| paths(&PathCompleter::any(), current)))
    });
    command.mut_subcommands(with_own_paths)
}

/// Completes files and folders, without those whose names a shell would evaluate: bash inserts them as they are.
fn paths(completer: &PathCompleter, current: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = completer.complete(current);
    found.retain(|candidate| is_offered(Path::new(candidate.get_value()), current));
    found
}

/// Whether a path is offered. The folders before the name are as the user has typed them.
fn is_offered(path: &Path, current: &OsStr) -> bool {
    let is_option = |word: &[u8]| word.len() > 1 && word[0] == b'-';
    let (value, current) = (path.as_os_str().as_encoded_bytes(), current.as_encoded_bytes());
    path.file_name().is_none_or(|name| name.to_str().is_some_and(is_word)) && (!is_option(value) || is_option(current))
}

/// Whether a name is the same word to any shell, and to the terminal: programs, and those who name files, choose them.
fn is_word(name: &str) -> bool {
    name.chars().all(|c| c.is_alphanumeric() || "+-._/:@,".contains(c))
}

pub(super) fn pids() -> ArgValueCompleter {
    ArgValueCompleter::new(find_pids)
}

pub(super) fn programs() -> ArgValueCompleter {
    ArgValueCompleter::new(find_programs)
}

pub(super) fn programs_and_pids() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let is_number = current.as_encoded_bytes().first().is_some_and(u8::is_ascii_digit);
        if is_number { find_pids(current) } else { find_programs(current) }
    })
}

pub(super) fn hook_sets() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let sets = built_in_names().filter(|name| is_start(current, name));
        let mut all: Vec<_> = sets.map(|name| candidate(name, "built-in set".to_owned())).collect();
        all.extend(paths(&PathCompleter::file(), current));
        all
    })
}

/// Completes files, and the extensions of formats after a name and a dot.
fn files(current: &OsStr, formats: &[Format]) -> Vec<CompletionCandidate> {
    let mut all = paths(&PathCompleter::any().stdio(), current);
    let name = Path::new(current).file_name().map_or(String::new(), |name| shown::os_text(name).into_owned());
    if let (Some((stem, begun)), Some(current)) = (name.split_once('.'), current.to_str()) {
        let folder = &current[..current.len().saturating_sub(name.len())];
        let formats = formats.iter().map(|format| format.spec()).filter(|format| format.extension.starts_with(begun));
        all.extend(
            formats.map(|format| {
                candidate(&format!("{folder}{stem}.{}", format.extension), format.description.to_owned())
            }),
        );
    }
    all
}

pub(super) fn outputs() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| files(current, &Format::ALL))
}

pub(super) fn differences() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| files(current, &diff::FORMATS))
}

#[cfg(test)]
mod tests {
    use super::super::commands::commands;
    use super::*;

    fn values(candidates: &[CompletionCandidate]) -> Vec<String> {
        candidates.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
    }

    /// Returns the completions of the last word.
    fn completed(line: &str) -> Vec<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let last = words.len() - 1;
        values(&clap_complete::engine::complete(&mut with_own_paths(commands()), words, last, None).expect("completes"))
    }

    #[test]
    fn pids_and_programs_of_running_processes_are_completed() {
        let pid = std::os::unix::process::parent_id().to_string();
        assert!(completed(&format!("heapbpf --pid {pid}")).contains(&pid));
        assert!(completed(&format!("heapbpf {pid}")).contains(&pid));
        let name = processes()[0].names().cut[0].clone();
        assert!(completed(&format!("heapbpf --cmdline {name}")).contains(&name), "{name}");
        assert!(completed(&format!("heapbpf leaks {name}")).contains(&name), "{name}");
    }

    #[test]
    fn names_that_a_shell_would_evaluate_are_left_out() {
        for name in ["redis-server", "kworker/0:1", "größe", "a.b_c@d", "g++"] {
            assert!(is_word(name), "{name}");
        }
        for name in ["$(id)", "a b", "a\nb", "a;b", "\x1b[31m", "`id`", "a\\b", "'", "*", "a\u{202e}b"] {
            assert!(!is_word(name), "{name}");
        }
    }

    #[test]
    fn files_whose_names_a_shell_would_evaluate_are_left_out() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for name in ["a$(touch x)b.json", "a b.json", "a\x1b[31m.json", "a`id`.json", "a\nb.json", "ab.json"] {
            std::fs::write(folder.path().join(name), "").expect("ours");
        }
        std::fs::create_dir(folder.path().join("a;b")).expect("ours");
        let begun = folder.path().join("a").to_str().expect("UTF-8").to_owned();
        let only = [format!("{begun}b.json")];
        for line in ["diff", "diff b.json", "diff a b -o", "-o", "--hooks", "--suppressions", "convert", "open"] {
            assert_eq!(completed(&format!("heapbpf {line} {begun}")), only, "{line}");
        }
        assert!(is_offered(Path::new("$HOME/reports/a.json"), OsStr::new("$HOME/reports/")), "typed by the user");
        assert!(!is_offered(Path::new("--serve"), OsStr::new("")));
        assert!(is_offered(Path::new("-"), OsStr::new("")));
    }

    #[test]
    fn formats_are_completed() {
        assert!(completed("heapbpf --format per").contains(&"perfetto".to_owned()));
        let outputs = completed("heapbpf -o out/heap.sp");
        assert_eq!(outputs, ["out/heap.speedscope.json"]);
        assert_eq!(completed("heapbpf diff a b -o no-such-file.s"), ["no-such-file.svg"]);
        assert!(completed("heapbpf --by th").contains(&"thread".to_owned()));
    }

    #[test]
    fn commands_and_options_are_completed() {
        assert!(completed("heapbpf le").contains(&"leaks".to_owned()));
        assert!(completed("heapbpf leaks --snap").contains(&"--snapshot".to_owned()));
    }

    #[test]
    fn every_shell_has_a_script() {
        for shell in Shells::builtins().names() {
            let mut script = Vec::new();
            write_script(shell, &mut script).expect("a vector takes all bytes");
            assert!(String::from_utf8(script).expect("text").contains(VARIABLE), "{shell}");
        }
    }
}
