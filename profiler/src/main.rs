//! The command line tool: parses, runs, exits. Everything else is the library's.

use std::process::ExitCode;

fn main() -> ExitCode {
    heapbpf::cli::run()
}
