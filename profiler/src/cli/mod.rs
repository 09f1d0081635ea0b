//! The command line: what the user typed becomes a configuration, a session's result becomes files, text and an exit
//! code. Nothing below this folder prints or knows of arguments.

mod args;
mod checking;
mod convert;
mod diff;
mod doctor;
mod events;
mod leaks;
mod numbered;
mod output;
mod privilege;
mod profile_file;
mod progress;
mod quantity;
mod record;
mod recorded;
mod refusal;
mod stops;
mod terminal;
mod writing;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command};
use terminal::say;

use crate::keeper;
use crate::linux::inherited::Inherited;
use crate::linux::signals;
use crate::process::launch::LaunchError;
use crate::session::TooSmall;

/// Exit codes (a contract: see `heapbpf --help`).
mod exit {
    pub(super) const DONE: u8 = 0;
    pub(super) const FAILED: u8 = 1;
    pub(super) const USAGE: u8 = 2;
    pub(super) const INCOMPLETE: u8 = 3;
    pub(super) const LEAKS: u8 = 4;
    pub(super) const INTERRUPTED: u8 = 130;
}

/// Runs the command line and returns the process's exit code.
pub fn run() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|command| command == keeper::COMMAND) {
        return be_keeper();
    }
    // Before any signal is listened for or ignored and any limit is raised: what is started finds them as heapbpf did.
    let inherited = Inherited::now();
    signals::ignore_file_size_signal();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refusal::refuse(&error),
    };
    start_log(cli.verbose, is_quiet(&cli));
    let result = match cli.command {
        None => record::run(&cli.record, inherited),
        Some(Command::Record(args)) => record::run(&args, inherited),
        Some(Command::Convert(args)) => convert::run(&args),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Diff(args)) => diff::run(&args),
        Some(Command::Leaks(args)) => leaks::run(&args, inherited),
        Some(Command::DoctorTarget) => doctor::target(),
        Some(Command::Completions { shell }) => {
            clap_complete::generate(shell, &mut Cli::command(), "heapbpf", &mut terminal::output());
            Ok(exit::DONE)
        }
        Some(Command::Man { of }) => manual(of.as_deref()),
    };
    ExitCode::from(result.unwrap_or_else(|error| {
        // A reader that went away (`heapbpf … | head`) wants no more; that is no failure.
        if is_broken_pipe(&error) {
            return exit::DONE;
        }
        say(&format!("heapbpf: error: {error:#}"));
        let not_run = error.downcast_ref().and_then(LaunchError::exit_code);
        let is_usage = error.is::<record::UsageError>() || error.is::<TooSmall>();
        if is_usage { exit::USAGE } else { not_run.unwrap_or(exit::FAILED) }
    }))
}

/// Is the keeper: without parsing the command line, which takes milliseconds.
fn be_keeper() -> ExitCode {
    match keeper::serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("heapbpf: error: `{}` is a command for heapbpf itself: {error}", keeper::COMMAND));
            ExitCode::from(exit::USAGE)
        }
    }
}

/// Writes the manual page of heapbpf, or of one of its commands.
fn manual(of: Option<&str>) -> anyhow::Result<u8> {
    let mut command = Cli::command();
    // Gives commands their whole names.
    command.build();
    let page = match of {
        None => command,
        Some(name) => command.find_subcommand(name).cloned().ok_or_else(|| {
            record::UsageError(format!(
                "heapbpf has no command `{name}`, so there is no manual page; see `heapbpf --help`"
            ))
        })?,
    };
    clap_mangen::Man::new(page).render(&mut terminal::output())?;
    Ok(exit::DONE)
}

/// Whether an output's reader is gone. Of a terminal whose session has ended, too: see [`terminal::Lines`].
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Whether nothing but errors is to be said.
fn is_quiet(cli: &Cli) -> bool {
    match &cli.command {
        None => cli.record.quiet,
        Some(Command::Record(args)) => args.quiet,
        Some(Command::Leaks(args)) => args.quiet,
        Some(_) => false,
    }
}

/// Log lines are for those who look into heapbpf itself: `RUST_LOG`, or `-v` for a first look.
fn start_log(verbose: u8, quiet: bool) {
    let default = match verbose {
        0 if quiet => "error",
        0 => "warn",
        1 => "heapbpf=info",
        2 => "heapbpf=debug",
        _ => "heapbpf=trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| default.into());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(progress::Log::new).without_time();
    // What cannot be written cannot be complained of either.
    log.log_internal_errors(false).init();
}
