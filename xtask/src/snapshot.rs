//! `cargo xtask snapshot`: copies a thread that waits in nested functions of an interpreter, for a test of the kernel side's walkers.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Context as _, Result, bail, ensure};

use crate::command::{self, Repository};
use crate::process::{Output, Program};

const FOLDER: &str = "profiler/src/session/testdata/walks";
/// The interpreter may be an emulated one.
const WAITS_WITHIN: Duration = Duration::from_secs(60);

/// Makes a snapshot of an interpreter that waits in nested functions.
///
/// COMMAND prints a line of JSON, a list of functions and lines with the innermost first, and then reads its input:
/// tests/targets/snapshot.* and Waiting.java do. A third element is the line that a function begins in, which code may have
/// instead. A test finds the pages that the kernel side's walkers read, and compares the functions that they find with
/// these. From then on, `cargo xtask test` does the same with the snapshot alone.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask snapshot cpython-3.11 -- python3 tests/targets/snapshot.py
  cargo xtask snapshot ruby-3.1 -- ruby tests/targets/snapshot.rb
  cargo xtask snapshot php-8.2 -- php tests/targets/snapshot.php
  cargo xtask snapshot node-18 -- node tests/targets/snapshot.js
  cargo xtask snapshot java-17-xcomp -- java -Xcomp -cp target/classes Waiting        (javac -d target/classes tests/targets/Waiting.java)")]
pub(crate) struct Arguments {
    /// Runtime and version; the processor's name is appended.
    name: String,

    /// Program with its arguments.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "snapshots can be made on x86-64 only");
    let repository = Repository::find()?;
    let folder = repository.root.join(FOLDER);
    fs::create_dir_all(&folder)?;
    let file = folder.join(format!("{}-{}.json.zst", arguments.name, std::env::consts::ARCH));
    let mut build = repository.cargo();
    command::run(build.args(["test", "--package", "heapbpf", "--lib", "--no-run"]))?;

    let (program, rest) = arguments.command.split_first().context("no command")?;
    let mut command = Command::new(program);
    command.args(rest);
    let program = Program::start(&mut command, Output::Standard)?;
    let stack = program.line()?;
    ensure!(stack.starts_with('['), "the program prints no list: `{stack}`");
    let tid = waiting_thread(program.pid())?;
    let mut test = repository.cargo();
    test.args([
        "test",
        "--quiet",
        "--package",
        "heapbpf",
        "--lib",
        "--",
        "--ignored",
        "--exact",
        "session::walks::make",
    ]);
    test.env("HEAPBPF_SNAPSHOT_PID", program.pid().to_string()).env("HEAPBPF_SNAPSHOT_TID", tid.to_string());
    test.env("HEAPBPF_SNAPSHOT_STACK", stack);
    command::run(test.env("HEAPBPF_SNAPSHOT_FILE", &file))?;
    println!("{} ({} bytes)", file.display(), fs::metadata(&file)?.len());
    Ok(())
}

/// The beginning of what procfs has of a thread that reads its standard input, on x86-64.
const READS_INPUT: &str = "0 0x0 ";

/// Returns the thread that waits for input, once it does: of Java, it is not the first.
fn waiting_thread(pid: u32) -> Result<u32> {
    let deadline = Instant::now() + WAITS_WITHIN;
    while Instant::now() < deadline {
        if let Some(tid) = reader_of_input(pid)? {
            return Ok(tid);
        }
        thread::sleep(Duration::from_millis(100));
    }
    bail!("no thread reads its input within {} s", WAITS_WITHIN.as_secs())
}

fn reader_of_input(pid: u32) -> io::Result<Option<u32>> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        let reads = fs::read_to_string(task.path().join("syscall")).is_ok_and(|call| call.starts_with(READS_INPUT));
        if let Some(tid) = task.file_name().to_str().and_then(|name| name.parse().ok()).filter(|_| reads) {
            return Ok(Some(tid));
        }
    }
    Ok(None)
}
