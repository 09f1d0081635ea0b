//! `cargo xtask`: what building, testing and showing heapbpf takes besides cargo itself. This file only dispatches;
//! each verb is a module of its own.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool for developers talks to them")]

mod bench;
mod build_ebpf;
mod command;
mod demo;
mod faults;
mod fuzz;
mod packages;
mod privilege;
mod repository;
mod test;
mod tidy;
mod viewers;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, tests and shows heapbpf.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

/// What each does is said where it is done.
#[derive(Subcommand)]
enum Verb {
    Bench(bench::Arguments),
    BuildEbpf(build_ebpf::Arguments),
    Demo(demo::Arguments),
    Fuzz(fuzz::Arguments),
    Faults(faults::Arguments),
    Test(test::Arguments),
    Tidy(tidy::Arguments),
    Viewers(viewers::Arguments),
    Vm(vm::Arguments),
}

fn main() -> ExitCode {
    if let Some(code) = build_ebpf::stand_in_for_rustc() {
        return code;
    }
    let outcome = match Arguments::parse().verb {
        Verb::Bench(arguments) => bench::run(&arguments),
        Verb::BuildEbpf(arguments) => build_ebpf::run(&arguments),
        Verb::Demo(arguments) => demo::run(&arguments),
        Verb::Fuzz(arguments) => fuzz::run(&arguments),
        Verb::Faults(arguments) => faults::run(&arguments),
        Verb::Test(arguments) => test::run(&arguments),
        Verb::Tidy(arguments) => tidy::run(&arguments),
        Verb::Viewers(arguments) => viewers::run(&arguments),
        Verb::Vm(arguments) => vm::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
