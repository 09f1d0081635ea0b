//! `cargo xtask bench`: measurements behind the figures in docs/. One folder per subject; what they share lies beside this
//! file, which only dispatches.

mod document;
mod machine;
mod process;
mod recording;
mod spread;
mod unwind;

use anyhow::Result;
use clap::Subcommand;

/// Measures heapbpf on this machine.
///
/// Builds heapbpf in release mode, starts real programs under load, and prints what it finds as tables. Times are
/// medians of several rounds: a machine with other work to do gives other numbers, so the tables name the machine.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Subcommand)]
enum Subject {
    Unwind(unwind::Arguments),
}

/// Runs the verb.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.subject {
        Subject::Unwind(arguments) => unwind::run(arguments),
    }
}
