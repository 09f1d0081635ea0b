//! The inventory of blocks from before the recording: with it, live totals are those of the process's own statistics, and
//! frees of earlier blocks count.

use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, binary};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Process, Report};
use heapbpf_tests::target::Target;

const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
const TCMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4";
const EARLIER: &str = "[allocated before recording]";

/// Blocks of the C library itself: of its streams, of threads, and of `dlsym`.
const LIBRARY_BLOCKS: f64 = 24.0;
const LIBRARY_BYTES: f64 = 16384.0;
/// glibc's statistics contain the header of each block.
const HEADER_BYTES: f64 = 8.0;

/// What the target and its allocator count.
#[derive(Clone, Copy, Debug)]
struct Statistics {
    bytes: f64,
    count: f64,
    /// By the allocator; 0 where it has no statistics.
    allocated: f64,
}

struct Recorded {
    report: Report,
    heapbpf: Heapbpf,
    outcome: Outcome,
    before: Statistics,
    after: Statistics,
}

fn statistics(target: &mut Target) -> Statistics {
    let lines = target.query("statistics");
    let numbers: Vec<f64> = lines[0].split(' ').map(|word| word.parse().expect("a number")).collect();
    let [bytes, count, allocated] = numbers[..] else { panic!("{lines:?}") };
    Statistics { bytes, count, allocated }
}

fn aged(arguments: &str) -> Command {
    let mut command = Command::new(Recipe::of("aged.c").build());
    command.args(arguments.split_ascii_whitespace());
    command
}

/// Records while the target does this work.
fn record(command: &mut Command, options: &str, work: &[&str]) -> Recorded {
    record_target(Target::spawn(command), options, work, 0)
}

/// The same with a target that has run commands, and another exit code.
fn record_target(mut target: Target, options: &str, work: &[&str], code: i32) -> Recorded {
    let before = statistics(&mut target);
    let mut heapbpf = Heapbpf::with_inventory(target.pid(), &format!("{options} -o out.json -o out.heapbpf"));
    let session = heapbpf.start();
    work.iter().for_each(|line| target.run_command(line));
    let after = statistics(&mut target);
    let outcome = session.interrupt().expect_code(code);
    target.assert_running();
    Recorded { report: heapbpf.report("out.json"), heapbpf, outcome, before, after }
}

fn number(number: &serde_json::Number) -> f64 {
    number.as_f64().expect("a number")
}

fn is_near(value: f64, expected: f64, tolerance: f64) -> bool {
    (value - expected).abs() <= tolerance
}

impl Recorded {
    fn process(&self) -> &Process {
        let [process] = self.report.targets.as_slice() else { panic!("{:?}", self.report.targets) };
        process
    }

    /// Live bytes, freed bytes and blocks of the inventory.
    fn earlier(&self) -> (f64, f64, f64) {
        let mut sums = (0.0, 0.0, 0.0);
        for callsite in &self.process().callsites {
            let names: Vec<&str> = callsite.stack.iter().filter_map(|frame| frame.function.as_deref()).collect();
            let [class, EARLIER] = names[..] else { continue };
            assert!(class.starts_with('[') && class.ends_with("B]"), "{class}");
            assert_eq!(number(&callsite.totals.alloc_count), 0.0, "they were not allocated during the recording");
            assert!(!callsite.inherited && callsite.stack.iter().all(|frame| frame.module.is_none()));
            sums.0 += number(&callsite.totals.live_bytes);
            sums.1 += number(&callsite.totals.free_bytes);
            sums.2 += number(&callsite.totals.free_count);
        }
        sums
    }

    #[track_caller]
    fn assert_walked(&self, interval_bytes: Option<u64>) {
        let inventory = self.process().inventory.as_ref().expect("one was taken");
        assert_eq!((inventory.error.as_deref(), inventory.gaps.as_slice()), (None, &[][..]), "{inventory:?}");
        assert!(is_near(inventory.blocks as f64, self.before.count, LIBRARY_BLOCKS), "{inventory:?} {:?}", self.before);
        assert!(is_near(inventory.bytes as f64, self.before.bytes, LIBRARY_BYTES), "{inventory:?} {:?}", self.before);
        assert!(inventory.pause_ns > 0);
        match interval_bytes {
            Some(bytes) => assert_eq!(inventory.interval_bytes, bytes),
            None => assert!(inventory.interval_bytes > 1, "{inventory:?}"),
        }
        let summary = &self.outcome.stdout;
        assert!(summary.contains("before the recording"), "{summary}");
    }

    /// Fails unless live totals are those of the target's list, except for the C library's own blocks.
    #[track_caller]
    fn assert_exact(&self) {
        let totals = &self.process().totals;
        let (bytes, count) = (number(&totals.live_bytes), number(&totals.live_count));
        assert!(is_near(bytes, self.after.bytes, LIBRARY_BYTES), "{bytes} bytes, {:?}", self.after);
        assert!(is_near(count, self.after.count, LIBRARY_BLOCKS), "{count} blocks, {:?}", self.after);
        self.assert_within_one_percent();
    }

    /// Fails unless live bytes are those of the allocator's statistics within 1 %.
    #[track_caller]
    fn assert_within_one_percent(&self) {
        let totals = &self.process().totals;
        let is_glibc = self.process().heap_names() == ["libc"];
        let headers = if is_glibc { self.after.count * HEADER_BYTES } else { 0.0 };
        let expected = if self.after.allocated > 0.0 { self.after.allocated - headers } else { self.after.bytes };
        let bytes = number(&totals.live_bytes);
        assert!(is_near(bytes, expected, expected / 100.0), "{bytes} bytes instead of {expected}: {:?}", self.after);
        let lost: u64 = self.report.health.lost.values().sum();
        assert_eq!(lost, 0, "{:?}", self.report.health.lost);
    }
}

/// Frees of old and new blocks, of old ones by `realloc`, and large and small new ones.
const WORK: [&str; 5] = ["free 3", "churn 20000", "realloc 7", "new 60 700000", "new 2000 120"];

#[test]
fn live_totals_are_exact() {
    for engine in ["trap", "inline"] {
        let recorded = record(&mut aged("30000 4096"), &format!("--interval 1 --engine {engine}"), &WORK);
        recorded.assert_walked(Some(1));
        recorded.assert_exact();
        let totals = &recorded.process().totals;
        // Every third, and of the others every seventh.
        let freed_count = 10_000.0 + (0..30_000).filter(|at| at % 7 == 0 && at % 3 != 0).count() as f64;
        let (live_bytes, free_bytes, free_count) = recorded.earlier();
        assert!(is_near(free_count, freed_count, LIBRARY_BLOCKS), "{free_count} blocks instead of {freed_count}");
        assert!(is_near(live_bytes + free_bytes, recorded.before.bytes, LIBRARY_BYTES));
        assert!(is_near(number(&totals.inherited_bytes), recorded.before.bytes, LIBRARY_BYTES));
        assert!(number(&totals.peak_bytes) >= number(&totals.live_bytes));
    }
}

/// At the default interval, in which new blocks are a small part.
#[test]
fn live_totals_are_within_one_percent() {
    for (engine, work) in [("trap", &WORK[..]), ("inline", &["free 3", "churn 20000", "new 60 700000"][..])] {
        let recorded = record(&mut aged("60000 4096"), &format!("--engine {engine}"), work);
        recorded.assert_walked(Some(1));
        recorded.assert_within_one_percent();
    }
}

#[test]
fn many_blocks_are_sampled() {
    for engine in ["trap", "inline"] {
        let recorded =
            record(&mut aged("250000 512"), &format!("--engine {engine}"), &["free 5", "new 40 700000", "churn 20000"]);
        recorded.assert_walked(None);
        recorded.assert_within_one_percent();
        assert!(recorded.process().totals.live_bytes_95.is_some(), "it is an estimate");
    }
}

#[test]
fn arenas_of_threads_are_walked() {
    let recorded = record(&mut aged("40000 2048 4"), "--interval 1", &WORK);
    recorded.assert_walked(Some(1));
    recorded.assert_exact();
}

/// The kernel has split the mappings of some blocks; others start far behind the start of their mapping.
#[test]
fn blocks_with_mappings_of_their_own_are_walked_and_freed() {
    let mut target = Target::spawn(&mut aged("30000 4096"));
    (0..7).for_each(|how| target.run_command(&format!("mapped 64 {how}")));
    let alignments = [2_u64 << 20, 4 << 20, 16 << 20, 1 << 30];
    alignments.iter().for_each(|alignment| target.run_command(&format!("mapped {alignment} 7")));
    let recorded = record_target(target, "--interval 1", &["unmap"], 0);
    recorded.assert_walked(Some(1));
    recorded.assert_exact();
    let (live_bytes, free_bytes, free_count) = recorded.earlier();
    let mapped = free_count >= 11.0 && free_bytes >= 11.0 * f64::from(10 << 20);
    assert!(mapped, "{free_count} blocks of {free_bytes} bytes");
    assert!(is_near(live_bytes + free_bytes, recorded.before.bytes, LIBRARY_BYTES), "{live_bytes}");
}

/// One block's size cannot be read, so it cannot be found, but the allocator counts it.
#[test]
fn a_missing_block_makes_it_incomplete() {
    let mut target = Target::spawn(&mut aged("1000 4096"));
    ["mapped 64 7", "headless"].iter().for_each(|line| target.run_command(line));
    let recorded = record_target(target, "--interval 1", &["new 10 1000"], 3);
    let inventory = recorded.process().inventory.as_ref().expect("one was taken");
    let [gap] = inventory.gaps.as_slice() else { panic!("{inventory:?}") };
    assert!(gap.starts_with("heap libc: the allocator counts 2 blocks") && gap.contains(" and 1 of "), "{gap}");
    let summary = &recorded.outcome.stdout;
    assert!(
        summary.contains("health: incomplete: some blocks from before the recording are unknown in 1 process"),
        "{summary}"
    );
    assert!(summary.contains("some may be missing: heap libc"), "{summary}");
}

#[test]
fn jemalloc_is_walked() {
    for engine in ["trap", "inline"] {
        let command = &mut aged("40000 4096 2");
        // Sizes of which jemalloc has classes: what is requested is what its statistics count.
        let work = ["free 3", "churn 20000", "new 50 655360", "new 1000 512"];
        let recorded = record(command.env("LD_PRELOAD", JEMALLOC), &format!("--interval 1 --engine {engine}"), &work);
        recorded.assert_walked_heap("jemalloc");
        recorded.assert_within_one_percent();
    }
}

impl Recorded {
    /// Fails unless one heap was walked. Sizes are those of the allocator's size classes.
    #[track_caller]
    fn assert_walked_heap(&self, name: &str) {
        let inventory = self.process().inventory.as_ref().expect("one was taken");
        assert_eq!(inventory.error, None);
        let bytes = inventory.bytes as f64;
        assert!(is_near(bytes, self.before.bytes, self.before.bytes / 100.0), "{inventory:?} {:?}", self.before);
        assert!(number(&self.process().heap(name).totals.inherited_bytes) > 0.0);
        let (_, _, free_count) = self.earlier();
        assert!(is_near(free_count, self.before.count / 3.0, 64.0), "{free_count} of {:?}", self.before);
    }
}

/// Each is resumed after its blocks were entered, so it cannot free one of them before.
#[test]
fn small_processes_that_wait_are_exact() {
    let mut targets: Vec<Target> =
        (0..12).map(|number| Target::spawn(&mut aged(&format!("{} 256", 100 + 40 * number)))).collect();
    let before: Vec<Statistics> = targets.iter_mut().map(statistics).collect();
    let others: String = targets[1..].iter().map(|target| format!(" --pid {}", target.pid())).collect();
    let mut heapbpf = Heapbpf::with_inventory(targets[0].pid(), &format!("--interval 1 -o out.json{others}"));
    let session = heapbpf.start();
    for target in &mut targets {
        ["free 3", "realloc 2", "new 30 700", "free 2"].iter().for_each(|line| target.run_command(line));
    }
    let after: Vec<Statistics> = targets.iter_mut().map(statistics).collect();
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    for ((target, before), after) in targets.iter().zip(before).zip(after) {
        let process = report.process(target.pid());
        let inventory = process.inventory.as_ref().expect("one was taken");
        assert_eq!((inventory.error.as_deref(), inventory.gaps.as_slice()), (None, &[][..]));
        assert!(is_near(inventory.blocks as f64, before.count, LIBRARY_BLOCKS), "{inventory:?} {before:?}");
        assert!(
            is_near(number(&process.totals.live_count), after.count, LIBRARY_BLOCKS),
            "{:?} {after:?}",
            process.totals
        );
        assert!(
            is_near(number(&process.totals.live_bytes), after.bytes, LIBRARY_BYTES),
            "{:?} {after:?}",
            process.totals
        );
    }
}

#[test]
fn musl_is_walked() {
    let mut command = Command::new(Recipe::of("aged.c").compiler("musl-gcc").flags("-static").build());
    let recorded = record(command.args(["20000", "4096"]), "--interval 1", &["free 3", "new 10 700000"]);
    recorded.assert_walked_heap("musl");
    recorded.assert_within_one_percent();
}

#[test]
fn frees_during_the_walk_count() {
    for engine in ["trap", "inline"] {
        let mut target = Target::spawn(&mut aged("150000 256"));
        let options = format!("--interval 1 --engine {engine} --ring-size 64MiB -o out.json");
        let mut heapbpf = Heapbpf::with_inventory(target.pid(), &options);
        let session = heapbpf.start();
        // The walk takes longer than the first of these.
        for line in ["free 2", "new 50000 120", "realloc 3", "churn 50000", "free 5"] {
            target.run_command(line);
        }
        let after = statistics(&mut target);
        let _ = session.interrupt().expect_code(0);
        let report = heapbpf.report("out.json");
        let totals = &report.process(target.pid()).totals;
        let (bytes, count) = (number(&totals.live_bytes), number(&totals.live_count));
        assert!(is_near(bytes, after.bytes, LIBRARY_BYTES), "{bytes} bytes, {after:?} {:?}", report.health);
        assert!(is_near(count, after.count, LIBRARY_BLOCKS), "{count} blocks, {after:?} {:?}", report.health);
    }
}

/// The OOM killer's score is raised for the copy, and is the user's own for the rest of the recording.
#[test]
fn the_oom_score_is_restored() {
    let mut target = Target::spawn(&mut aged("10000 1024"));
    let mut command = Command::new("sh");
    let options = format!("-v --pid {} --interval 1 -o out.json", target.pid());
    command.args(["-c", &format!("echo 123 > /proc/self/oom_score_adj; exec {} {options}", binary().display())]);
    let mut heapbpf = Heapbpf::with_command(command);
    let mut session = heapbpf.start();
    session.wait_for("blocks are older than the recording");
    let score = || std::fs::read_to_string(format!("/proc/{}/oom_score_adj", session.pid())).expect("it runs");
    assert_eq!(score().trim(), "123");
    target.run_command("new 10 1000");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    assert_eq!(report.process(target.pid()).inventory.as_ref().expect("one was taken").error, None);
}

/// Beyond the limit, callsites share one, and totals stay exact.
#[test]
fn totals_are_exact_with_few_callsites() {
    let recorded = record(&mut aged("30000 4096"), "--interval 1 --callsites-max 1", &WORK);
    recorded.assert_exact();
    let others = recorded.process().callsites.iter().filter(
        |callsite| matches!(callsite.stack.as_slice(), [only] if only.function.as_deref() == Some("[other callsites]")),
    );
    let count: f64 = others.map(|callsite| number(&callsite.totals.alloc_count)).sum();
    assert!(count > 0.0, "{:?}", recorded.process().callsites);
    let summary = &recorded.outcome.stdout;
    assert!(summary.contains("`[other callsites]` allocated ") && summary.contains("`--callsites-max`"), "{summary}");
}

#[test]
fn it_can_be_left_out() {
    let recorded = record(&mut aged("10000 1024"), "--interval 1 --no-inventory", &["free 2", "new 10 1000"]);
    let process = recorded.process();
    assert!(process.inventory.is_none());
    assert_eq!((number(&process.totals.inherited_bytes), recorded.earlier()), (0.0, (0.0, 0.0, 0.0)));
    assert!(number(&process.totals.live_bytes) < 20_000.0);
    assert!(!recorded.outcome.stdout.contains("before the recording"), "{}", recorded.outcome.stdout);
}

#[test]
fn its_absence_is_explained() {
    let command = &mut aged("10000 1024");
    let recorded = record(command.env("LD_PRELOAD", TCMALLOC), "--interval 1", &["new 10 1000"]);
    let error = recorded.process().inventory.as_ref().and_then(|inventory| inventory.error.as_deref());
    let error = error.expect("there is none");
    assert!(error.contains("unsupported allocator") && error.contains("glibc, musl, jemalloc"), "{error}");
    let summary = &recorded.outcome.stdout;
    assert!(summary.contains("before the recording are not included: unsupported allocator"), "{summary}");
}

/// A child inherits the blocks, and what it frees is not freed in its parent.
#[test]
fn large_processes_are_not_stopped() {
    let recorded = record(&mut aged("10000 1024"), "--interval 1 --inventory-max 1MiB", &["new 10 1000"]);
    let inventory = recorded.process().inventory.as_ref().expect("the reason");
    assert_eq!((inventory.pause_ns, inventory.blocks), (0, 0));
    let error = inventory.error.as_deref().expect("there is none");
    assert!(error.contains("copying more than 1 MiB would stop it for long (`--inventory-max`"), "{error}");
}

/// The report has the prediction and the limit that suffices.
#[test]
fn processes_with_many_threads_are_not_stopped() {
    let limited = record(&mut aged("4000 1024 16"), "--interval 1 --inventory-stop-max 1ms", &["new 10 1000"]);
    let inventory = limited.process().inventory.as_ref().expect("the reason");
    assert_eq!((inventory.pause_ns, inventory.blocks), (0, 0));
    let error = inventory.error.as_deref().expect("there is none");
    assert!(error.starts_with("stopping ") && error.contains("threads and copying"), "{error}");
    assert!(error.contains("the limit is 1ms"), "{error}");
    assert!(
        limited.outcome.stdout.contains("before the recording are not included: stopping"),
        "{:?}",
        limited.outcome
    );
    let (_, option) = error.split_once("run again with `").expect("what to do");
    let option = option.trim_end_matches('`');
    assert!(option.starts_with("--inventory-stop-max "), "{error}");
    record(&mut aged("4000 1024 16"), &format!("--interval 1 {option}"), &["new 10 1000"]).assert_walked(Some(1));
}

#[test]
fn forked_children_inherit_it() {
    let recorded = {
        let mut target = Target::spawn(&mut aged("20000 1024"));
        let before = statistics(&mut target);
        let mut heapbpf = Heapbpf::with_inventory(target.pid(), "-v --interval 1 -o out.json -o out.heapbpf");
        let mut session = heapbpf.start();
        // A child that is forked earlier has no inventory.
        session.wait_for("blocks are older than the recording");
        target.run_command("new 10 1000");
        target.run_command("fork");
        session.wait_for("is being recorded");
        target.run_command("child");
        let after = statistics(&mut target);
        let outcome = session.interrupt().expect_code(0);
        Recorded { report: heapbpf.report("out.json"), heapbpf, outcome, before, after }
    };
    let parent =
        recorded.report.targets.iter().find(|target| target.beginning.origin == "running").expect("it is there");
    let child = recorded.report.child_of(parent.pid);
    assert!(is_near(number(&parent.totals.live_bytes), recorded.after.bytes, LIBRARY_BYTES), "{:?}", parent.totals);
    assert!(is_near(number(&child.totals.inherited_count), recorded.after.count, LIBRARY_BLOCKS), "{:?}", child.totals);
    assert!(is_near(number(&child.totals.free_count), 10_000.0, LIBRARY_BLOCKS), "{:?}", child.totals);
}

#[test]
fn recordings_contain_it() {
    let recorded = record(&mut aged("20000 2048"), "--interval 1", &WORK);
    let convert = |options: &[&str]| {
        let mut command = Command::new(binary());
        command.current_dir(recorded.heapbpf.file("")).env("NO_COLOR", "1").arg("convert").args(options);
        let output = command.output().expect("it can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let _ = convert(&["out.heapbpf", "-q", "-o", "again.json"]);
    let (first, again) = (recorded.process(), recorded.heapbpf.report("again.json"));
    let again = &again.targets[0];
    assert_eq!(format!("{:?}", again.totals), format!("{:?}", first.totals));
    assert_eq!(format!("{:?}", again.inventory), format!("{:?}", first.inventory));
    assert_eq!(again.callsites.len(), first.callsites.len());
    for format in ["svg", "html", "pb.gz", "speedscope.json", "perfetto-trace", "memory-infra.json", "heap", "otlp"] {
        let _ = convert(&["out.heapbpf", "-q", "-o", &format!("out.{format}")]);
    }
    let folded = convert(&["out.heapbpf", "-q", "-o", "-"]);
    assert!(folded.lines().any(|line| line.contains(&format!(";{EARLIER};[512 to 1023 B] "))), "{folded}");
}
