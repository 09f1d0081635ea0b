//! The command line: options to configuration, results to files, text and an exit code. The only folder that prints.

mod agent;
mod args;
mod commands;
mod completion;
mod config;
mod convert;
mod diff;
#[cfg(test)]
mod documents;
mod exit;
mod leaks;
mod log;
mod naming;
mod open;
mod output;
mod process;
mod push;
mod record;
mod refusal;
mod report_args;
mod runtime;
mod screen;
mod serve;
mod similar;
mod source;
mod status;
mod symbolize;
mod symbols;
mod terminal;
mod top;
mod top_settings;
mod top_view;
mod types;
mod user;
mod values;
mod views;
mod windows;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::FromArgMatches;
use commands::{Cli, Command, commands, ordered};
use exit::ParseError;
use heapbpf_linux::proc::process::is_between_pid_namespaces;
use heapbpf_linux::signals::{self, Inherited};
use naming::Naming;
use report_args::DoctorArgs;

use crate::doctor::{Diagnosis, report, serve, serve_attempt};
use crate::keeper;
use crate::process::target::running;

pub fn run() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if words.get(1).is_some_and(|command| command == keeper::COMMAND) {
        return run_keeper();
    }
    // The state is captured before heapbpf changes any signal disposition or limit: started programs inherit the original ones.
    let inherited = Inherited::now();
    signals::ignore_file_size_signal();
    match completion::answer(commands, &words) {
        Ok(false) => {}
        answered => return ExitCode::from(answered.map_or_else(|error| exit::fail(&error), |_| exit::DONE)),
    }
    let commands = commands();
    let words = ordered(words, &commands);
    let cli = match parse(&words, &commands) {
        Ok(cli) => cli,
        Err(error) => return error.report(&commands, &words),
    };
    log::start(cli.verbose, is_quiet(&cli), matches!(cli.command, Some(Command::Agent(_))));
    ExitCode::from(execute(cli, inherited).unwrap_or_else(|error| exit::fail(&refusal::explained(error))))
}

fn parse(words: &[OsString], commands: &clap::Command) -> Result<Cli, ParseError> {
    let matches = commands.clone().try_get_matches_from(words)?;
    let matches = match config::with_defaults(words, &matches, commands)? {
        None => matches,
        Some((words, sources)) => {
            let parsed = commands.clone().try_get_matches_from(words);
            parsed.map_err(|error| ParseError::Defaults { error, sources })?
        }
    };
    Ok(Cli::from_arg_matches(&matches)?)
}

fn execute(cli: Cli, inherited: Inherited) -> Result<u8> {
    if is_between_pid_namespaces() {
        bail!(
            "heapbpf cannot have threads: it was started for another PID namespace than its own; use `unshare --pid --fork`"
        );
    }
    match cli.command {
        None => record::run(cli.record, inherited),
        Some(Command::Record(args)) => record::run(*args, inherited),
        Some(Command::Convert(args)) => convert::convert(&args, Naming::Recorded),
        Some(Command::Symbolize(args)) => symbolize::symbolize(&args),
        Some(Command::Agent(args)) => agent::run(&args),
        Some(Command::Doctor(args)) => doctor(&args),
        Some(Command::Diff(args)) => diff::diff(&args),
        Some(Command::Leaks(args)) => leaks::run(*args, inherited),
        Some(Command::Top(args)) => top::run(*args, inherited),
        Some(Command::Open(args)) => open::run(&args),
        Some(Command::Types(args)) => types::run(&args),
        Some(Command::DoctorTarget) => {
            serve(std::io::stdin().lock(), terminal::output()).map(|()| exit::DONE).map_err(Into::into)
        }
        Some(Command::DoctorAttempt { name }) => {
            serve_attempt(&name, &mut terminal::output()).map(|()| exit::DONE).map_err(Into::into)
        }
        Some(Command::Completions { shell }) => {
            completion::write_script(&shell, &mut terminal::output())?;
            Ok(exit::DONE)
        }
        Some(Command::Man { of }) => manual(of.as_deref()),
    }
}

/// Runs the keeper process, without parsing the command line, which takes milliseconds.
fn run_keeper() -> ExitCode {
    match keeper::serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::say(&format!("heapbpf: error: `{}` is an internal command of heapbpf: {error}", keeper::COMMAND));
            ExitCode::from(exit::USAGE)
        }
    }
}

fn doctor(args: &DoctorArgs) -> Result<u8> {
    let pid = match &args.process {
        Some(word) => Some(process::find(word, "heapbpf doctor")?),
        None => args.pid,
    };
    let pid = pid.map(|pid| process::of_number(pid, false));
    // The report takes a second, and would contain nothing about the process.
    if let Some(pid) = pid {
        running(pid)?;
    }
    let runtime = runtime::async_runtime()?;
    let _guard = runtime.enter();
    let diagnosis = Diagnosis::make(pid, args.placement, &refusal::command_line());
    if args.json {
        report::write_json(&diagnosis, &mut terminal::output())?;
    } else {
        let (_, colour) = terminal::layout();
        terminal::coloured_output().write_all(report::text(&diagnosis, colour).as_bytes())?;
    }
    Ok(if diagnosis.works() { exit::DONE } else { exit::FAILED })
}

fn manual(of: Option<&str>) -> Result<u8> {
    let mut command = commands();
    // Building sets the full names of subcommands.
    command.build();
    let page = match of {
        None => command,
        Some(name) => command
            .find_subcommand(name)
            .cloned()
            .ok_or_else(|| exit::usage(format!("unknown command `{name}`; see `heapbpf --help`")))?,
    };
    clap_mangen::Man::new(page).render(&mut terminal::output())?;
    Ok(exit::DONE)
}

/// Takes the terminal as `heapbpf top` does, and panics.
pub fn panic_on_screen() -> ! {
    let _taken = screen::TakenTerminal::take().expect("standard input is a terminal");
    panic!("a panic on the screen");
}

fn is_quiet(cli: &Cli) -> bool {
    match &cli.command {
        None => cli.record.common.output.quiet,
        Some(Command::Record(args)) => args.common.output.quiet,
        Some(Command::Top(args)) => args.record.common.output.quiet,
        Some(Command::Leaks(args)) => args.common.output.quiet,
        Some(_) => false,
    }
}
