//! The kernel side's unwinder against framehop: thousands of stacks of real programs, each unwound by both from the
//! same registers and memory.
//!
//! Unlike all other tests, these record through the library, which alone returns raw stacks. So does `attaching`, which acts in between.

#![expect(clippy::disallowed_methods, reason = "a test, with paths and output of its own")]

mod attaching;
mod oracle;
mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use heapbpf::internals::{
    Control, Hold, KEEPER_COMMAND, OverloadPolicy, RawSample, Selection, Session, SessionConfig, serve_keeper,
};
use heapbpf_base::ids::Pid;
use heapbpf_tests::kernel::require_root;
use libtest_mimic::{Arguments, Trial};
use oracle::{Oracle, Walk};
use profiler_common::interval::Interval;
use profiler_common::stack::StackEnd;
use program::Program;

/// Number of stacks to compare per program.
const STACKS: usize = 3500;

/// Timeout for hangs.
const WITHIN: Duration = Duration::from_mins(5);

/// Interval between comparisons of collected stacks.
const PERIOD: Duration = Duration::from_millis(100);

/// Records a program's stacks.
fn record(program: &mut Program) -> Vec<RawSample> {
    let config = SessionConfig {
        selection: Selection { pids: vec![Pid(program.pid())], ..Selection::default() },
        follow_forks: false,
        hold: Hold::Never,
        interval: Interval::nearest(program.interval_bytes),
        ring_bytes: 64 << 20,
        on_overload: OverloadPolicy::Drop,
        unwind_bytes_max: 1 << 30,
        raw_stacks_max: STACKS,
        ..SessionConfig::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut session = Session::start(config).expect("the program can be profiled");
        session.attach(async || false).await.expect("the program can be profiled");
        program.begin();
        let deadline = Instant::now() + WITHIN;
        let mut samples = Vec::new();
        while samples.len() < STACKS && Instant::now() < deadline {
            let ended = program.ended();
            session.run(tokio::time::sleep(PERIOD), &mut Control::none(), &mut ()).await.expect("the ring can be read");
            samples.extend(session.take_raw_stacks());
            if ended {
                break;
            }
        }
        samples.truncate(STACKS);
        samples
    })
}

/// Results for one program.
#[derive(Default)]
struct Tally {
    stacks: usize,
    distinct: BTreeSet<u64>,
    complete: usize,
    frames: usize,
    frames_max: usize,
    bytes_max: usize,
    identical: usize,
    /// Number of times that each known difference occurred, and the first example.
    differences: BTreeMap<&'static str, (usize, String)>,
    unexplained: Vec<String>,
}

impl Tally {
    fn compare(&mut self, oracle: &mut Oracle, sample: &RawSample) {
        let walk = oracle.walk(&sample.raw);
        self.stacks += 1;
        self.distinct.insert(sample.id.0);
        self.complete += usize::from(sample.stack.end == StackEnd::Complete);
        let frames = oracle::native(sample).count();
        self.frames += frames;
        self.frames_max = self.frames_max.max(frames);
        self.bytes_max = self.bytes_max.max(sample.raw.bytes.len());
        if oracle.agree(sample, &walk) {
            self.identical += 1;
            return;
        }
        match oracle.explain(sample, &walk) {
            Some(reason) => {
                let known = self.differences.entry(reason).or_insert_with(|| (0, parting(oracle, sample, &walk)));
                known.0 += 1;
            }
            None => self.unexplained.push(parting(oracle, sample, &walk)),
        }
    }
}

/// Describes where the two differ.
fn parting(oracle: &mut Oracle, sample: &RawSample, walk: &Walk) -> String {
    let ours: Vec<u64> = oracle::native(sample).collect();
    let common = ours.iter().zip(&walk.frames).take_while(|(a, b)| a == b).count();
    let mut text = format!(
        "heapbpf {} frames, {:?}; framehop {} frames, {:?}; {common} in common",
        ours.len(),
        sample.stack.end,
        walk.frames.len(),
        walk.end
    );
    for (who, frames) in [("both", &ours[..common]), ("heapbpf", &ours[common..]), ("framehop", &walk.frames[common..])]
    {
        let shown = if who == "both" { &frames[common.saturating_sub(2)..] } else { &frames[..frames.len().min(2)] };
        for &frame in shown {
            let _ = write!(text, "\n      {who:8} {}", oracle.describe(frame));
        }
    }
    text
}

fn table(name: &str, tally: &Tally) -> String {
    let mut text = String::from(
        "\nprogram        stacks  distinct  frames: mean   max  copy max KiB  complete  identical  differ\n",
    );
    #[expect(clippy::cast_precision_loss, reason = "a mean for display")]
    let frames_mean = tally.frames as f64 / tally.stacks.max(1) as f64;
    let _ = writeln!(
        text,
        "{name:14} {:6} {:9} {:13.1} {:5} {:13} {:9} {:10} {:7}",
        tally.stacks,
        tally.distinct.len(),
        frames_mean,
        tally.frames_max,
        tally.bytes_max >> 10,
        tally.complete,
        tally.identical,
        tally.stacks - tally.identical,
    );
    for (reason, (count, example)) in &tally.differences {
        let _ = writeln!(text, "{count} × {reason}\n    {example}");
    }
    for example in tally.unexplained.iter().take(5) {
        let _ = writeln!(text, "unexplained, one of {}\n    {example}", tally.unexplained.len());
    }
    text
}

/// The library starts this program again as its keeper.
fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|command| command == KEEPER_COMMAND) {
        serve_keeper().expect("it is started by a session");
        return ExitCode::SUCCESS;
    }
    let trial = |(name, start): Start| {
        Trial::test(format!("stacks_of_{name}_are_what_framehop_finds"), move || {
            compare(start());
            Ok(())
        })
    };
    let mut arguments = Arguments::from_args();
    // Programs must not compete for processors.
    arguments.test_threads.get_or_insert(1);
    let attaching = attaching::TESTS.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, PROGRAMS.into_iter().map(trial).chain(attaching).collect()).exit_code()
}

/// A program's name, and how it is started.
type Start = (&'static str, fn() -> Program);

const PROGRAMS: [Start; 6] = [
    ("redis", program::redis),
    ("python", program::python),
    ("perl", program::perl),
    ("sqlite", program::sqlite),
    ("git", program::git),
    ("compiler", program::compiler),
];

fn compare(mut program: Program) {
    require_root();
    let mut oracle = Oracle::new(program.pid());
    let samples = record(&mut program);
    let mut tally = Tally::default();
    samples.iter().for_each(|sample| tally.compare(&mut oracle, sample));
    let text = table(program.name, &tally);
    // The figures are the purpose of this test. `cargo xtask vm` reads them.
    writeln!(std::io::stdout(), "{text}").expect("stdout is open");
    assert_eq!(tally.stacks, STACKS, "{} made fewer stacks than are to be compared", program.name);
    assert!(tally.unexplained.is_empty(), "{text}");
    assert!(tally.identical * 1000 >= tally.stacks * 999, "{text}");
}
