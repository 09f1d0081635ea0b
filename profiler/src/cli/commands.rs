//! The commands, their options and their help: short with `-h`, complete with `--help`.

use std::ffi::{OsStr, OsString};

use clap::{CommandFactory, Parser, Subcommand};
use heapbpf_report::Format;

use super::agent::AgentArgs;
use super::args::RecordArgs;
use super::completion;
use super::leaks::LeaksArgs;
use super::report_args::{ConvertArgs, DiffArgs, DoctorArgs, OpenArgs};
use super::top::TopArgs;
use super::types::TypesArgs;
use crate::doctor::{ATTEMPT_COMMAND, TARGET_COMMAND};
use crate::walk;

const RECORD_EXAMPLES: &str = "\
Examples:
  sudo heapbpf 1234                                  until Ctrl-C; writes heapbpf-NAME-1234-TIME.svg and .html
  sudo heapbpf redis-server --duration 10s           a program that runs once, by its name
  sudo heapbpf --pid 1234 --duration 1m -o heap.html  interactive report: over time, by callsite, leak candidates
  sudo heapbpf --pid 1234 --interval 512KiB -o heap.svg -o heap.json -o heap.pb.gz
  sudo heapbpf --pid 1234 --by thread --threshold 0.8% -o heap.svg  by thread, with small frames merged
  sudo heapbpf --pid 1234 --interval 1 --duration 5s every allocation, exact to the byte
  sudo heapbpf --pid 1234 --view alloc-bytes         what allocates most, freed or not
  sudo heapbpf --pid 1234 --focus cache --top-by function   only stacks through `cache`, by function
  sudo heapbpf --cmdline 'redis*' --cmdline nginx    programs by name, including those started later
  sudo heapbpf --cgroup 3f2a9c01d4e5                 a container, by the first characters of its id
  sudo heapbpf --pid 1234 --dump-every 10s -o heap.svg  also heap.0001.svg, … for each 10 s
  sudo heapbpf --pid 1234 --mark 1m --duration 10m   the last 9 minutes, without the warm-up: ….0001.svg
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

const SYMBOLIZE_EXAMPLES: &str = "\
Examples:
  sudo heapbpf --pid 1234 --no-symbolize -o heap.json           on a small host, then elsewhere:
  heapbpf symbolize heap.json -o heap.html --debug-dir symbols  names from debug files by build id
  heapbpf symbolize heap.json -o named.json --debuginfod https://debuginfod.debian.net
  heapbpf symbolize x.heapbpf -o heap.svg -o heap.pb.gz         a recording

Needs no privileges.

Exit codes: as of `heapbpf convert`.";

const AGENT_HELP: &str = "\
Examples:
  heapbpf agent --print-config > agent.toml    a commented configuration with all defaults
  heapbpf agent --config agent.toml --check    validate it, and print what is in effect
  sudo heapbpf agent --config agent.toml       until SIGTERM
  sudo touch /etc/heapbpf/agent.stop           stop recording on this host, until the file is removed

Exit codes: 0 stopped by a signal, 1 failed, 2 wrong usage or a mistake in the configuration.";

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

const TOP_EXAMPLES: &str = "\
Examples:
  sudo heapbpf top --pid 1234                        live; q quits
  sudo heapbpf top --all --min-rss 50MiB             every process, ranked
  sudo heapbpf top --cmdline 'redis*' --refresh 5s   rarer refreshes
  sudo heapbpf top --pid 1234 -o heap.html           also a report when it ends
  sudo heapbpf top -- ./server --port 80             start a program; its output is discarded
  sudo heapbpf top --command-output log -- ./server  its output in a file
  sudo heapbpf top --pid 1234 --once                 the tables, once, for scripts
  sudo heapbpf top --pid 1234 --json --refresh 10s   a JSON object per line and refresh
  sudo heapbpf top --all --csv --duration 1h         a line per process and refresh

Exit codes are those of `heapbpf record`; without `-o`, an incomplete profile counts as done, unless `--strict`.";

const TYPES_EXAMPLES: &str = "\
Examples:
  sudo heapbpf types 1234                            objects and bytes of each type, the largest first
  sudo heapbpf types gunicorn --watch 60s            what grew in a minute
  sudo heapbpf types --pid 1234 --json               all types, for programs
  sudo heapbpf --pid 1234 -d 1m                      which code allocates, and the same table

CPython 3.8 to 3.14, also of distributions' packages without symbols. Objects of up to 512 bytes, which Python allocates itself, and the
tables of dictionaries, lists and sets. Exact, unless the heap is larger than 1 GiB: then one of so many blocks is read.

Exit codes: 0 done, 1 failed, 2 wrong usage.";

const RECORD_SHORT: &str = "\
Examples:
  sudo heapbpf redis-server -d 10s       writes a flame graph and an HTML report
  sudo heapbpf -o heap.html -- ./server  from the first allocation on
`heapbpf --help` lists all options; `heapbpf leaks -h` those of a command.";

/// Shows which code of a running process holds its heap memory.
///
/// The process is neither restarted nor changed.
#[derive(Debug, Parser)]
#[command(name = "heapbpf", version, after_help = RECORD_SHORT, after_long_help = record_help(), args_conflicts_with_subcommands = true)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Option<Command>,

    #[command(flatten)]
    pub(super) record: RecordArgs,

    /// Log more about heapbpf itself; twice or three times for more.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(super) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Profile running processes or started programs (the default).
    #[command(after_help = RECORD_SHORT, after_long_help = record_help())]
    Record(Box<RecordArgs>),
    /// Write reports from a recording (`-o x.heapbpf`) or a JSON report.
    #[command(after_help = more("convert"), after_long_help = CONVERT_EXAMPLES)]
    Convert(ConvertArgs),
    /// Add names to a recording or a JSON report, on any machine.
    ///
    /// Finds modules by build id: at their own paths, in `--debug-dir` and standard directories, and on debuginfod servers. Writes
    /// what `convert` does. See docs/debug-files.md.
    #[command(after_help = more("symbolize"), after_long_help = SYMBOLIZE_EXAMPLES)]
    Symbolize(ConvertArgs),
    /// Record all processes of a host, within budgets.
    ///
    /// Records for a part of the time, until it is stopped. SIGHUP reads the configuration again; SIGTERM ends the agent. See
    /// docs/agent.md.
    #[command(after_help = AGENT_HELP)]
    Agent(AgentArgs),
    /// Check what works here, and measure the cost of a probe.
    ///
    /// Checks what this kernel, this user and a process allow. Exits with 0 if profiling works, else with 1.
    Doctor(DoctorArgs),
    /// Show what grew between two profiles, by callsite.
    #[command(after_help = more("diff"), after_long_help = DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// Find unreachable blocks of a process, with their stacks.
    ///
    /// Exits with 4 if there are any.
    #[command(after_help = more("leaks"), after_long_help = LEAKS_HELP.replace("ALLOCATORS", &walk::allocators()))]
    Leaks(Box<LeaksArgs>),
    /// Show the heap of running processes, live.
    ///
    /// Processes and callsites with growth and rates, stacks with source lines, and a flame view; `?` lists the keys. See
    /// docs/top.md.
    #[command(after_help = more("top"), after_long_help = TOP_EXAMPLES)]
    Top(Box<TopArgs>),
    /// Open a report in a browser.
    ///
    /// Prints its path where there is none. Under sudo, the browser is that of the user who called sudo.
    Open(OpenArgs),
    /// Count the objects in a running Python program, by type.
    ///
    /// Reads the heap of the interpreter while it runs: the process is neither stopped nor changed, and nothing is loaded into it. See
    /// docs/types.md.
    #[command(after_help = more("types"), after_long_help = TYPES_EXAMPLES)]
    Types(TypesArgs),
    /// Run as the process that `doctor` probes.
    #[command(name = TARGET_COMMAND, hide = true)]
    DoctorTarget,
    /// Make a system call that may end this process.
    #[command(name = ATTEMPT_COMMAND, hide = true)]
    DoctorAttempt { name: String },
    /// Print a completion script for a shell.
    ///
    /// `source <(heapbpf completions bash)`, or for all users `heapbpf completions bash > /etc/bash_completion.d/heapbpf`. It
    /// completes options, PIDs, names of programs and formats.
    Completions {
        /// Shell to complete for.
        #[arg(value_parser = completion::shells())]
        shell: String,
    },
    /// Print the manual page.
    ///
    /// `heapbpf man | man -l -`, or that of a command: `heapbpf man leaks | man -l -`.
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

fn more(command: &str) -> String {
    format!("`heapbpf {command} --help` explains all options, with examples and exit codes.")
}

/// Common options, which `-h` lists; `--help` lists all.
const EVERYDAY: [&str; 29] = [
    "process",
    "pid",
    "cmdline",
    "all",
    "interval",
    "engine",
    "duration",
    "output",
    "view",
    // The following options are those of other commands.
    "refresh",
    "once",
    "csv",
    "recording",
    "from",
    "to",
    "before",
    "after",
    "fail_above",
    "watch",
    "limit",
    "snapshot",
    "top",
    "json",
    "report",
    "shell",
    "of",
    "config",
    "check",
    "print_config",
];

/// Common options of other commands that are not for `record`.
const OF_OTHERS: [&str; 1] = ["top"];

/// Returns the commands as users see them.
pub(super) fn commands() -> clap::Command {
    let with_short_help = |command: clap::Command, is_record: bool| {
        command.mut_args(|option| {
            let id = option.get_id().as_str();
            let is_shown = EVERYDAY.contains(&id) && !(is_record && OF_OTHERS.contains(&id));
            option.hide_short_help(!is_shown)
        })
    };
    let commands = with_short_help(Cli::command(), true);
    commands.mut_subcommands(|command| {
        let is_record = command.get_name() == "record";
        with_short_help(command, is_record)
    })
}

/// Moves options of all commands from before a subcommand to behind it, where clap accepts them: `heapbpf -q convert FILE`.
pub(super) fn ordered(mut words: Vec<OsString>, commands: &clap::Command) -> Vec<OsString> {
    let leading = words.iter().skip(1).take_while(|word| is_common(word)).count();
    if words.get(1 + leading).is_some_and(|word| commands.find_subcommand(word).is_some()) {
        words[1..=1 + leading].rotate_right(1);
    }
    words
}

/// Whether a word is `--quiet`, `--verbose`, or consists of their letters.
fn is_common(word: &OsStr) -> bool {
    let letters = word.as_encoded_bytes().strip_prefix(b"-").unwrap_or_default();
    word == "--quiet"
        || word == "--verbose"
        || !letters.is_empty() && letters.iter().all(|letter| b"qv".contains(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES_MAX: usize = 45;

    #[test]
    fn options_are_consistent() {
        commands().debug_assert();
    }

    fn lines(command: &mut clap::Command) -> usize {
        command.render_help().to_string().lines().count()
    }

    #[test]
    fn short_help_fits_a_screen() {
        let mut all = commands().term_width(80);
        let count = lines(&mut all);
        assert!(count <= LINES_MAX, "{count} lines:\n{}", all.render_help());
        all.build();
        for command in all.get_subcommands_mut() {
            let (name, count) = (command.get_name().to_owned(), lines(command));
            assert!(count <= LINES_MAX, "{name}: {count} lines:\n{}", command.render_help());
        }
    }

    #[test]
    fn long_help_lists_all_options_by_group() {
        let mut all = commands();
        let text = all.render_long_help().to_string();
        for option in all.get_arguments().filter(|option| !option.is_hide_set()).filter_map(clap::Arg::get_long) {
            assert!(text.contains(&format!("--{option}")), "`--{option}` is missing");
        }
        let headings = ["What to profile:", "Recording:", "Output:", "Dumps:", "Limits:", "Kernel side:"];
        let places: Vec<_> =
            headings.iter().map(|heading| text.find(&format!("\n{heading}")).expect(heading)).collect();
        assert!(text.contains("Exit codes:") && places.len() == headings.len());
    }

    #[test]
    fn options_of_all_commands_may_precede_a_subcommand() {
        let commands = commands();
        let check = |line: &str, expected: &str| {
            let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(ordered(words(line), &commands), words(expected), "{line}");
            assert!(commands.clone().try_get_matches_from(words(expected)).is_ok(), "{expected}");
        };
        check("heapbpf -q convert x", "heapbpf convert -q x");
        check("heapbpf -v --quiet -vv leaks 3", "heapbpf leaks -v --quiet -vv 3");
        check("heapbpf -qv diff a b", "heapbpf diff -qv a b");
        check("heapbpf --verbose doctor", "heapbpf doctor --verbose");
        // These are no subcommands.
        for same in ["heapbpf -q --pid 3", "heapbpf -q redis", "heapbpf -q -- convert", "heapbpf convert -q x"] {
            check(same, same);
        }
        assert_eq!(ordered(vec!["heapbpf".into(), "-q".into()], &commands), ["heapbpf", "-q"]);
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
