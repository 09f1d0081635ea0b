//! `cargo xtask`: commands for developing heapbpf. Each command is a module; this file dispatches.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool for developers")]

mod architecture;
mod archive;
mod bench;
mod build;
mod build_ebpf;
mod build_page;
mod check;
mod command;
mod cross;
mod demo;
mod dist;
mod faults;
mod flaky;
mod fuzz;
mod inputs;
mod interpreters;
mod nightly;
mod packages;
mod prepare;
mod process;
mod screenshots;
mod snapshot;
mod test;
mod tidy;
mod typos;
mod viewers;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, tests and measures heapbpf.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    Bench(bench::Arguments),
    Build(build::Arguments),
    BuildEbpf(build_ebpf::Arguments),
    BuildPage(build_page::Arguments),
    Check(check::Arguments),
    Demo(demo::Arguments),
    Dist(dist::Arguments),
    Fuzz(fuzz::Arguments),
    Faults(faults::Arguments),
    Interpreters(interpreters::Arguments),
    Mended(flaky::Arguments),
    Nightly(nightly::Arguments),
    Prepare(prepare::Arguments),
    Screenshots(screenshots::Arguments),
    Snapshot(snapshot::Arguments),
    Test(test::Arguments),
    Tidy(tidy::Arguments),
    Viewers(viewers::Arguments),
    Vm(vm::Arguments),
}

fn main() -> ExitCode {
    if let Some(code) = build_ebpf::stand_in_for_rustc() {
        return code;
    }
    let outcome = match Arguments::parse().command {
        Subcommands::Bench(arguments) => bench::run(&arguments),
        Subcommands::Build(arguments) => build::run(&arguments),
        Subcommands::BuildEbpf(arguments) => build_ebpf::run(&arguments),
        Subcommands::BuildPage(arguments) => build_page::run(&arguments),
        Subcommands::Check(arguments) => check::run(&arguments),
        Subcommands::Demo(arguments) => demo::run(&arguments),
        Subcommands::Dist(arguments) => dist::run(&arguments),
        Subcommands::Fuzz(arguments) => fuzz::run(&arguments),
        Subcommands::Faults(arguments) => faults::run(&arguments),
        Subcommands::Interpreters(arguments) => interpreters::run(&arguments),
        Subcommands::Mended(arguments) => flaky::run(&arguments),
        Subcommands::Nightly(arguments) => nightly::run(&arguments),
        Subcommands::Prepare(arguments) => prepare::run(&arguments),
        Subcommands::Screenshots(arguments) => screenshots::run(&arguments),
        Subcommands::Snapshot(arguments) => snapshot::run(&arguments),
        Subcommands::Test(arguments) => test::run(&arguments),
        Subcommands::Tidy(arguments) => tidy::run(&arguments),
        Subcommands::Viewers(arguments) => viewers::run(&arguments),
        Subcommands::Vm(arguments) => vm::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
