//! `cargo xtask bench`: measurements behind the figures in docs/. One folder per subject; what they share lies beside this
//! file, which only dispatches.

pub(crate) mod document;
mod formats;
mod leaks;
pub(crate) mod machine;
mod mark;
mod overhead;
mod process;
pub(crate) mod recording;
mod soak;
mod spread;
mod unwind;

use anyhow::Result;
use clap::{Parser as _, Subcommand};

/// Measures heapbpf on this machine: all subjects, unless one is named.
///
/// Builds heapbpf in release mode, starts real programs under load, and prints what it finds as tables. Figures are
/// medians of several rounds in which everything compared takes turns; a machine with other work to do gives other ones,
/// so the tables name the machine.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    subject: Option<Subject>,
}

#[derive(Subcommand)]
enum Subject {
    Unwind(unwind::Arguments),
    Overhead(overhead::Arguments),
    Soak(soak::Arguments),
    Formats(formats::Arguments),
    Leaks(leaks::Arguments),
    Mark(mark::Arguments),
}

/// Runs the verb.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.subject {
        Some(Subject::Unwind(arguments)) => unwind::run(arguments),
        Some(Subject::Overhead(arguments)) => overhead::run(arguments),
        Some(Subject::Soak(arguments)) => soak::run(arguments),
        Some(Subject::Formats(arguments)) => formats::run(arguments),
        Some(Subject::Leaks(arguments)) => leaks::run(arguments),
        Some(Subject::Mark(arguments)) => mark::run(arguments),
        None => {
            unwind::run(&unwind::Arguments::parse_from([""]))?;
            overhead::run(&overhead::Arguments::parse_from([""]))?;
            soak::run(&soak::Arguments::parse_from([""]))?;
            formats::run(&formats::Arguments::parse_from([""]))?;
            leaks::run(&leaks::Arguments::parse_from([""]))?;
            mark::run(&mark::Arguments::parse_from([""]))
        }
    }
}
