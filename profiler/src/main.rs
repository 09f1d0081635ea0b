//! The `heapbpf` binary.

use std::process::ExitCode;
use std::thread;

/// Size of the stack that heapbpf runs on. Parsing the command line takes more than the main thread has under a low
/// `ulimit -s`.
const STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    // These processes drop capabilities, users and namespaces, which are per thread: this must be the only one.
    let command = std::env::args_os().nth(1);
    let is = |other: &str| command.as_ref().is_some_and(|command| command == other);
    if is(heapbpf::SYMBOLIZER_COMMAND) {
        return heapbpf::serve_symbolizer().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    if is(heapbpf::READER_COMMAND) {
        return heapbpf::serve_reader().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let thread = thread::Builder::new().name("heapbpf".to_owned()).stack_size(STACK_BYTES).spawn(heapbpf::run);
    match thread.map(thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        // The panic hook has printed the message.
        Ok(Err(_)) => ExitCode::from(101),
        // Memory for another stack is not available; the main thread's may be large enough.
        Err(_) => heapbpf::run(),
    }
}
