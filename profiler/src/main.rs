//! The command line tool: parses, runs, exits. Everything else is the library's.

use std::process::ExitCode;
use std::thread;

/// Bytes of the stack that everything runs on. The main thread's is the user's to choose (`ulimit -s`), and parsing the command
/// line takes more than some choose.
const STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    let thread = thread::Builder::new().name("heapbpf".to_owned()).stack_size(STACK_BYTES).spawn(heapbpf::cli::run);
    match thread.map(thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        // The panic's message has been written.
        Ok(Err(_)) => ExitCode::from(101),
        // Without room for another stack, there may be enough on this one.
        Err(_) => heapbpf::cli::run(),
    }
}
