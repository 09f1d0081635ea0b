//! `heapbpf PROGRAM_OR_PID`: one word that names one running process.

use anyhow::Result;
use heapbpf_base::ids::{Pid, Tid};
use heapbpf_linux::proc::process::of_thread;
use heapbpf_report::text::{counted, printable};

use super::exit::usage;
use super::similar::similar;
use super::terminal::say;
use super::values;
use crate::process::pattern::Pattern;
use crate::process::selection::{self, ProcessFacts, Selection};

const LISTED_MAX: usize = 10;

/// Finds the process that `word` names. `command` completes suggestions: `heapbpf` or `heapbpf leaks`.
pub(super) fn find(word: &str, command: &str) -> Result<Pid> {
    if word.bytes().all(|byte| byte.is_ascii_digit()) {
        return values::pid(word).map_err(|reason| usage(format!("`{word}`: {reason}")));
    }
    let pattern: Pattern = word.parse().map_err(|error| usage(format!("{error}")))?;
    let matching = selection::scan(&Selection { patterns: vec![pattern], ..Selection::default() })?;
    match matching.as_slice() {
        [only] => Ok(only.pid()),
        [] => Err(usage(unknown(word, command))),
        several => Err(usage(ambiguous(word, several, command))),
    }
}

/// Returns the process with this number, or that of the thread with it.
pub(super) fn of_number(pid: Pid, quiet: bool) -> Pid {
    let Some(process) = of_thread(Tid(pid.0)).filter(|process| *process != pid) else { return pid };
    if !quiet {
        say(&format!("heapbpf: {pid} is a thread of process {process}, which is taken instead"));
    }
    process
}

fn unknown(word: &str, command: &str) -> String {
    if let Some(name) = similar(word).filter(|_| command == "heapbpf") {
        return format!("no running program is called `{word}`; a similar command exists: `heapbpf {name}`");
    }
    let later =
        if command == "heapbpf" { format!("; to wait for it: `heapbpf --cmdline {word}`") } else { String::new() };
    let started =
        if command == "heapbpf doctor" { String::new() } else { format!("; to start it: `{command} -- {word}`") };
    format!("no running program is called `{word}`; `ps -e` lists processes{later}{started}")
}

fn ambiguous(word: &str, several: &[ProcessFacts], command: &str) -> String {
    let title = |facts: &ProcessFacts| {
        let title = facts.arguments.join(" ");
        let title = if title.is_empty() { &facts.comm } else { &title };
        let title = printable(title);
        let cut: String = title.chars().take(TITLE_CHARS_MAX).collect();
        format!("{} ({cut})", facts.pid())
    };
    let listed: Vec<String> = several.iter().take(LISTED_MAX).map(title).collect();
    let more = several.len().saturating_sub(LISTED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let all = if command == "heapbpf" { format!(", or all of them with `--cmdline {word}`") } else { String::new() };
    format!(
        "`{word}` matches {}: {}{more}; choose one with `--pid`{all}",
        counted(several.len() as u64, "process"),
        listed.join(", ")
    )
}

const TITLE_CHARS_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use heapbpf_base::testing::{Running, Workshop};

    #[test]
    fn a_number_is_a_pid() {
        assert_eq!(find("1234", "heapbpf").expect("a number"), Pid(1234));
        assert!(find("0", "heapbpf").is_err() && find("99999999999", "heapbpf").is_err());
    }

    #[test]
    fn a_name_must_be_that_of_one_process() {
        let name = format!("heapbpf-named-{}", std::process::id());
        let error = find(&name, "heapbpf").expect_err("there is none").to_string();
        assert!(error.contains(&format!("`heapbpf -- {name}`")), "{error}");
        let workshop = Workshop::new();
        let program = workshop.path(&name);
        std::fs::copy("/bin/sleep", &program).expect("writable");
        let first = Running::sleep(&program);
        assert_eq!(find(&name, "heapbpf").expect("there is one"), first.pid());
        let mut second = Command::new(&program).arg("1000").spawn().expect("it starts");
        let ambiguous = loop {
            match find(&name, "heapbpf") {
                Err(error) => break error.to_string(),
                // Between the fork and the exec, it is a copy of this program.
                Ok(_) => std::thread::yield_now(),
            }
        };
        second.kill().and_then(|()| second.wait()).expect("it is our child");
        for pid in [first.pid(), Pid(second.id())] {
            assert!(ambiguous.contains(&format!("{pid} (")), "{ambiguous}");
        }
        assert!(ambiguous.contains("matches 2 processes") && ambiguous.contains("`--cmdline"), "{ambiguous}");
    }

    #[test]
    fn a_mistyped_command_is_recognized() {
        let error = find("recrod", "heapbpf").expect_err("there is none").to_string();
        assert!(error.contains("a similar command exists: `heapbpf record`"), "{error}");
    }
}
