//! The command line: options to configuration, results to files, text and an exit code. The only folder that prints.

mod args;
mod convert;
mod exit;
mod leaks;
mod output;
mod record;
mod runtime;
mod source;
mod terminal;
mod values;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};

use args::{ConvertArgs, DiffArgs, DoctorArgs, RecordArgs};
use leaks::LeaksArgs;

use crate::doctor::{Diagnosis, TARGET_COMMAND, report, serve};
use crate::linux::signals::{self, Inherited};
use crate::report::Format;
use crate::{keeper, walk};

const RECORD_EXAMPLES: &str = "\
Examples:
  sudo heapbpf --pid 1234                            until Ctrl-C; writes heapbpf-<name>-1234.svg
  sudo heapbpf --pid $(pidof redis-server) --duration 10s -o heap.svg
  sudo heapbpf --pid 1234 --duration 1m -o heap.html  interactive report: over time, by callsite, leak candidates
  sudo heapbpf --pid 1234 --interval 512KiB -o heap.svg -o heap.json -o heap.pb.gz
  sudo heapbpf --pid 1234 --by thread --threshold 0.8% -o heap.svg  by thread, with small frames merged
  sudo heapbpf --pid 1234 --interval 1 --duration 5s every allocation, exact to the byte
  sudo heapbpf --pid 1234 --view alloc-bytes         what allocates most, freed or not
  sudo heapbpf --cmdline 'redis*' --cmdline nginx    programs by name, including those started later
  sudo heapbpf --cgroup 3f2a9c01d4e5                 a container, by the first characters of its id
  sudo heapbpf --pid 1234 --dump-every 10s -o heap.svg  also heap.0001.svg, … for each 10 s
  sudo heapbpf --pid 1234 --mark 1m --duration 10m   the last 9 minutes, without the warm-up: heapbpf-….0001.svg
  sudo pkill -USR1 -x heapbpf                        dump now
  sudo heapbpf --all --duration 30s --min-rss 50MiB  every process, ranked
  sudo heapbpf -o heap.svg -- ./server --port 80     start a program and record from its first allocation
  sudo heapbpf --pid 1234 --hook 'pool=libpool.so*:pool_get(ptr=ret,size=arg2)' --hook 'pool=libpool.so*:pool_put(old=arg2)'
  sudo heapbpf --pid 1234 --duration 1h -o x.heapbpf --max-size 1GiB  every event, to be analyzed later:
  heapbpf convert x.heapbpf -o heap.svg --from 10m --to 20m
  heapbpf diff before.json after.json -o growth.svg  what grew between two profiles
  sudo heapbpf leaks --pid 1234                      unreachable blocks of a running process
  sudo heapbpf leaks -- ./server                     the same when a program exits, each with its allocation stack
  sudo heapbpf doctor --pid 1234                     whether profiling works here, and what it costs

";

const RECORD_NOTES: &str = "

Exit codes:
  0  done                                   3    done, but the profile is incomplete: see docs/exit-codes.md, `--strict`
  1  failed                                 130  interrupted before anything was written, or while waiting for COMMAND
  2  wrong usage                            with `-- COMMAND`: the command's own (126, 127: it could not be run)

Needs root, or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE (before Linux 6.6 also CAP_SYS_ADMIN). Only allocations made while heapbpf records are profiled.";

const CONVERT_EXAMPLES: &str = "\
Examples:
  heapbpf convert x.heapbpf                          the table, for the whole recording
  heapbpf convert x.heapbpf -o heap.html             interactive report
  heapbpf convert x.heapbpf -o heap.svg -o heap.pb.gz -o heap.heaptrack.zst
  heapbpf convert x.heapbpf --by thread -o heap.svg  by thread, whether recorded so or not
  heapbpf convert x.heapbpf --to 1m -o then.svg      what was live one minute after the start
  heapbpf convert x.heapbpf --from 10m --to 20m --view alloc-bytes -o busy.svg
  heapbpf convert heap.json -o heap.pb.gz            a JSON report in another format

Needs no privileges, and works on any machine. A truncated or damaged recording is read up to the damage.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done, but the recording is damaged, or the profile is incomplete (see docs/exit-codes.md).";

const DIFF_EXAMPLES: &str = "\
Examples:
  sudo heapbpf --pid 1234 --duration 1m -o before.json      make two profiles,
  sudo heapbpf --pid 1234 --duration 1m -o after.json
  heapbpf diff before.json after.json                       and list the callsites that grew
  heapbpf diff before.json after.json -o growth.svg         red grew, blue shrank; frame widths are those of AFTER
  heapbpf diff before.json after.json -o gone.svg --widths before
  heapbpf diff v1.json v2.json --view alloc-bytes           two builds of a program: what the new one allocates more
  heapbpf diff before.json after.json --top 50 --threshold 100KiB
  heapbpf diff before.json after.json -q -o -               folded text, two values per line: before, after
  heapbpf diff monday.heapbpf tuesday.heapbpf               two whole recordings
  heapbpf diff before.json after.json -o growth.json        everything, for programs

The extension selects the format: .svg, .folded, .json. In an HTML report, two windows of one recording can be compared.

Callsites are equal if program, heap, and the names of all functions and their modules are equal; PIDs, addresses and line numbers are ignored. See docs/diff.md.

Exit codes:
  0  done          1  failed          2  wrong usage          3  done, but one of the profiles is incomplete (docs/exit-codes.md); the table lists why";

const LEAKS_HELP: &str = "\
Examples:
  sudo heapbpf leaks --pid 1234                      at once: no probes, so no stacks; ALLOCATORS
  sudo heapbpf leaks --pid 1234 --watch 60s          record for a minute first: blocks allocated meanwhile have a stack
  sudo heapbpf leaks --pid 1234 --watch 1h --interval 64KiB   cheaper: a stack for a sample of blocks; all leaks are found
  sudo heapbpf leaks -- ./server --port 80           from the first allocation to the exit, each block with its stack
  sudo heapbpf leaks --follow-forks -- make test     also each process that the command creates, at its exit
  sudo pkill -USR1 -x heapbpf                        check now, while recording
  sudo heapbpf leaks --pid 1234 --snapshot fork      for large heaps: a pause of milliseconds
  sudo heapbpf leaks -o leaks.json -o leaks.svg -- ./test    for programs, and as a flame graph of leaked bytes
  sudo heapbpf leaks --suppressions known.supp -- ./test     known leaks are counted, not listed

A leak is a block that is not reachable from any register, stack, global variable or mapped memory, directly or through other blocks.
Blocks referenced by encoded pointers only (compressed, xor'ed, in a file) are false positives; numbers that equal an address hide a leak.
The process is stopped while the heap snapshot is taken; the report includes the pause. See docs/leaks.md.

Exit codes:
  0  no leaks, or with `-- COMMAND` the command's own        2    wrong usage
  1  failed                                                  3    no leaks, but children were not checked
                                                             4    leaks found
                                                             130  interrupted before the heap was inspected";

/// Shows which code of a running process holds its heap memory, without restarting or changing the process.
#[derive(Debug, Parser)]
#[command(name = "heapbpf", version, after_help = record_help(), args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    record: RecordArgs,

    /// Log more about heapbpf itself; twice or three times for more.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Profile running processes or started programs (the default without a subcommand).
    #[command(after_help = record_help())]
    Record(Box<RecordArgs>),
    /// Write reports from a recording (`-o x.heapbpf`), whole or in part, or from a JSON report.
    #[command(after_help = CONVERT_EXAMPLES)]
    Convert(ConvertArgs),
    /// Check what this kernel, this user and a process allow, and measure the cost of a probe. Exits with 0 if profiling
    /// works, else with 1.
    Doctor(DoctorArgs),
    /// Show what grew between two profiles, by callsite.
    #[command(after_help = DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// Find unreachable blocks of a process, with their allocation stacks. Exits with 4 if there are any.
    #[command(after_help = LEAKS_HELP.replace("ALLOCATORS", &walk::allocators()))]
    Leaks(Box<LeaksArgs>),
    /// Run as the process that `doctor` probes.
    #[command(name = TARGET_COMMAND, hide = true)]
    DoctorTarget,
    /// Print a completion script: `heapbpf completions bash > /etc/bash_completion.d/heapbpf`.
    Completions {
        /// Shell to complete for.
        shell: clap_complete::Shell,
    },
    /// Print the manual page: `heapbpf man | man -l -`, or that of a command: `heapbpf man leaks | man -l -`.
    Man {
        /// Command to describe.
        #[arg(value_name = "NAME")]
        of: Option<String>,
    },
}

fn record_help() -> String {
    let formats = Format::ALL.map(|format| format!(".{} ({})", format.spec().extension, format.spec().description));
    format!(
        "{RECORD_EXAMPLES}The extension of an output file selects its format, unless --format does: {}. A .heapbpf file is a recording, from which `heapbpf convert` makes all of these; heaptrack's format requires one.{RECORD_NOTES}",
        formats.join(", ")
    )
}

pub fn run() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|command| command == keeper::COMMAND) {
        return run_keeper();
    }
    // Before heapbpf changes any signal disposition or limit: started programs inherit the original ones.
    let inherited = Inherited::now();
    signals::ignore_file_size_signal();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::report_parse_error(&error, &Cli::command()),
    };
    start_log(&cli);
    let result = match cli.command {
        None => record::run(&cli.record, inherited),
        Some(Command::Record(args)) => record::run(&args, inherited),
        Some(Command::Convert(args)) => convert::convert(&args),
        Some(Command::Doctor(args)) => doctor(&args),
        Some(Command::Diff(args)) => convert::diff(&args),
        Some(Command::Leaks(args)) => leaks::run(&args, inherited),
        Some(Command::DoctorTarget) => {
            serve(std::io::stdin().lock(), terminal::output()).map(|()| exit::DONE).map_err(Into::into)
        }
        Some(Command::Completions { shell }) => {
            clap_complete::generate(shell, &mut Cli::command(), "heapbpf", &mut terminal::output());
            Ok(exit::DONE)
        }
        Some(Command::Man { of }) => manual(of.as_deref()),
    };
    ExitCode::from(result.unwrap_or_else(|error| exit::fail(&error)))
}

/// Runs the keeper process, without parsing the command line, which takes milliseconds.
fn run_keeper() -> ExitCode {
    match keeper::serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::say(&format!("heapbpf: error: `{}` is an internal command of heapbpf: {error}", keeper::COMMAND));
            ExitCode::from(exit::USAGE)
        }
    }
}

fn doctor(args: &DoctorArgs) -> Result<u8> {
    let runtime = runtime::async_runtime()?;
    let _guard = runtime.enter();
    let diagnosis = Diagnosis::make(args.pid, args.placement);
    let mut out = terminal::output();
    if args.json {
        report::write_json(&diagnosis, &mut out)?;
    } else {
        let (_, colour) = terminal::layout();
        out.write_all(report::text(&diagnosis, colour).as_bytes())?;
    }
    Ok(if diagnosis.works() { exit::DONE } else { exit::FAILED })
}

fn manual(of: Option<&str>) -> Result<u8> {
    let mut command = Cli::command();
    // Sets the full names of subcommands.
    command.build();
    let page = match of {
        None => command,
        Some(name) => command
            .find_subcommand(name)
            .cloned()
            .ok_or_else(|| exit::usage(format!("unknown command `{name}`; see `heapbpf --help`")))?,
    };
    clap_mangen::Man::new(page).render(&mut terminal::output())?;
    Ok(exit::DONE)
}

fn start_log(cli: &Cli) {
    let quiet = match &cli.command {
        None => cli.record.common.output.quiet,
        Some(Command::Record(args)) => args.common.output.quiet,
        Some(Command::Leaks(args)) => args.common.output.quiet,
        Some(_) => false,
    };
    let default = match cli.verbose {
        0 if quiet => "error",
        0 => "warn",
        1 => "heapbpf=info",
        2 => "heapbpf=debug",
        _ => "heapbpf=trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| default.into());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(terminal::Log::new).without_time();
    // There is no other place to report errors of logging to.
    log.log_internal_errors(false).init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn completions_list_value_names() {
        let mut script = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut Cli::command(), "heapbpf", &mut script);
        let script = String::from_utf8(script).expect("scripts are text");
        for names in [
            "live-bytes live-count alloc-bytes alloc-count",
            "thread command cgroup heap",
            "svg html folded json pprof speedscope firefox perfetto memory-infra dhat massif heaptrack gperftools otlp",
            "never execs forks",
        ] {
            assert!(script.contains(&format!("-W \"{names}\"")), "`{names}` is missing");
        }
    }

    #[test]
    fn commands_have_their_own_defaults() {
        let parse = |words: &[&str]| Cli::try_parse_from(words).expect("valid options");
        let record = parse(&["heapbpf", "--pid", "1"]).record;
        assert_eq!((record.common.interval.bytes(), record.kernel.ring_size), (4096, 16 << 20));
        let Some(Command::Leaks(leaks)) = parse(&["heapbpf", "leaks", "--pid", "1"]).command else {
            panic!("not `leaks`")
        };
        assert_eq!((leaks.common.interval.bytes(), leaks.kernel.ring_size), (1, 64 << 20));
        assert_eq!(leaks.kernel.live_blocks, 1 << 24);
    }
}
