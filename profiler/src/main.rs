//! The command line tool: parses, runs, exits. Everything else is the library's.

use std::process::ExitCode;
use std::thread;

/// Bytes of the stack that everything runs on. The main thread's is the user's to choose (`ulimit -s`), and parsing the command
/// line takes more than some choose.
const STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    // Capabilities and namespaces are a thread's, so the symbolizer gives them up while there is one.
    if std::env::args_os().nth(1).is_some_and(|command| command == heapbpf::SYMBOLIZER_COMMAND) {
        return heapbpf::serve_symbolizer().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let thread = thread::Builder::new().name("heapbpf".to_owned()).stack_size(STACK_BYTES).spawn(heapbpf::run);
    match thread.map(thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        // The panic's message has been written.
        Ok(Err(_)) => ExitCode::from(101),
        // Without room for another stack, there may be enough on this one.
        Err(_) => heapbpf::run(),
    }
}
