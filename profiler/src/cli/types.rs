//! Command `heapbpf types`: counts the objects in a process's runtimes by type.

use std::io::Write;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use heapbpf_base::ids::Pid;
use heapbpf_ledger::model::ObjectTypes;
use heapbpf_report::types::{json, text};

use super::completion;
use super::exit::{self, usage};
use super::process;
use super::terminal;
use super::values;
use crate::object_types::{Counted, Objects};
use crate::process::target::running;

#[derive(Args, Clone, Debug)]
pub(super) struct TypesArgs {
    /// Process to count: its number, or the name of a program that runs once.
    #[arg(value_name = "PROGRAM_OR_PID", conflicts_with = "pid", add = completion::programs_and_pids())]
    process: Option<String>,

    /// Process to count.
    #[arg(short, long, value_name = "PID", value_parser = values::pid, allow_hyphen_values = true, add = completion::pids())]
    pid: Option<Pid>,

    /// Count again after TIME, and show what grew meanwhile.
    #[arg(short, long, value_name = "TIME", value_parser = values::duration, allow_hyphen_values = true)]
    watch: Option<Duration>,

    /// Show the ROWS largest types.
    #[arg(long, value_name = "ROWS", default_value_t = 30)]
    top: usize,

    /// Print JSON, with all types.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &TypesArgs) -> Result<u8> {
    let pid = match (&args.process, args.pid) {
        (Some(word), _) => process::find(word, "heapbpf types")?,
        (None, Some(pid)) => pid,
        (None, None) => return Err(usage("name a process: `heapbpf types PROGRAM_OR_PID`")),
    };
    let pid = process::of_number(pid, args.json);
    running(pid)?;
    let objects = Objects::open(pid)?;
    let mut counted = counted(pid, objects.count()?)?;
    if let Some(time) = args.watch {
        std::thread::sleep(time);
        let first = std::mem::replace(&mut counted, self::counted(pid, objects.count()?)?);
        // A process can have two runtimes of a language, which have one order.
        if counted.len() == first.len() {
            counted.iter_mut().zip(&first).for_each(|(now, then)| now.compare(then));
        }
    }
    if args.json {
        let mut output = terminal::output();
        serde_json::to_writer(&mut output, &json(&counted))?;
        writeln!(output)?;
    } else {
        let (width, colour) = terminal::layout();
        terminal::coloured_output().write_all(text(&counted, args.top, width, colour).as_bytes())?;
    }
    Ok(exit::DONE)
}

/// Fails if nothing was counted.
fn counted(pid: Pid, all: Vec<Counted>) -> Result<Vec<ObjectTypes>> {
    let mut counted = Vec::new();
    let mut reasons = Vec::new();
    for Counted { language, types } in all {
        match types {
            Some(Ok(types)) => counted.push(types),
            Some(Err(reason)) => reasons.push(format!("{}: {reason}", language.name())),
            None => reasons.push(format!("{}: heapbpf counts objects of Python only", language.name())),
        }
    }
    match (counted.is_empty(), reasons.is_empty()) {
        (false, _) => Ok(counted),
        (true, false) => bail!("cannot count the objects of process `{pid}`: {}", reasons.join("; ")),
        (true, true) => bail!(
            "process `{pid}` has no runtime whose objects heapbpf counts (CPython 3.8 to 3.14); which code allocates: `heapbpf --pid {pid}`"
        ),
    }
}
