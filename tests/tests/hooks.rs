//! Custom hooks: in libraries, in programs, in files and in built-in sets; and errors for hooks that are invalid or not
//! found.

mod built_in;
mod entry;
mod errors;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, text};
use heapbpf_tests::kernel::changed_code;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Ledger, Process, Report};
use heapbpf_tests::target::Target;

/// The pool's functions, to be prefixed by a module.
const POOL: [&str; 4] = [
    "pool_get(size=arg2, ptr=ret)",
    "pool_make(ptr=*arg1, size=arg2)",
    "pool_regrow(old=arg2, size=arg4, ptr=ret)",
    "pool_put(old=arg2)",
];

/// Functions of `pooled.c` that call malloc. All others call the pool.
const MALLOCS: &str = "mallocs";

fn library() -> String {
    Recipe::of("pool.c").flags("-shared -fPIC").build().display().to_string()
}

/// Builds a program linked with the pool's library.
fn linked() -> Recipe {
    Recipe::of("pooled.c").libraries(&library())
}

/// Returns a `--hook` for each of the pool's functions.
fn hooks(module: &str, interval: &str) -> Vec<String> {
    POOL.iter().flat_map(|function| ["--hook".to_owned(), format!("pool={module}:{function}{interval}")]).collect()
}

/// Starts heapbpf on a process; `more` are arguments that may contain blanks.
fn heapbpf(pid: u32, arguments: &str, more: &[String]) -> Heapbpf {
    let words = ["--pid", &pid.to_string(), "-o", "out.json"].map(str::to_owned);
    let arguments = arguments.split_ascii_whitespace().map(str::to_owned);
    Heapbpf::new(words.into_iter().chain(arguments).chain(more.iter().cloned()))
}

/// Profiles one command from start to end.
#[track_caller]
fn profile(target: &mut Target, arguments: &str, more: &[String]) -> (Report, Ledger, String) {
    let mut heapbpf = heapbpf(target.pid(), arguments, more);
    let session = heapbpf.start();
    let ledger = target.work("go");
    let outcome = session.interrupt().expect_code(0);
    target.assert_running();
    let report = heapbpf.report("out.json");
    report.assert_complete();
    (report, ledger, outcome.stdout)
}

/// Fails unless the heaps of pool and libc are exact: what the pool allocates with malloc is not counted twice.
#[track_caller]
fn assert_exact(process: &Process, ledger: &Ledger) {
    process.assert_matches(ledger);
    assert_eq!(process.heap("pool").totals.exact(), ledger.sum_of(|site| site != MALLOCS));
    assert_eq!(process.heap("libc").totals.exact(), ledger.site(MALLOCS).counts);
    // Checks the test itself: the target's ledger has entries, and blocks of the pool come from malloc.
    assert!(ledger.site("gets").counts.live_count > 0 && ledger.site("regrows").counts.free_count > 0);
    assert!(ledger.sum_of(|site| site != MALLOCS).alloc_bytes > 10 * (64 << 10));
    for callsite in &process.callsites {
        let expected = if callsite.has(|function| function == MALLOCS) { "libc" } else { "pool" };
        assert_eq!(callsite.heap, expected, "{:?}", callsite.stack[0]);
    }
}

#[test]
fn a_librarys_allocator_is_counted_to_the_byte_without_its_own_mallocs() {
    let mut target = Target::spawn(&mut Command::new(linked().build()));
    let (report, ledger, summary) = profile(&mut target, "--interval 1", &hooks("pool", ""));
    let process = report.process(target.pid());
    assert_exact(process, &ledger);
    let mut functions: Vec<&str> = process.heap("pool").hooks.iter().map(|hook| hook.function.as_str()).collect();
    functions.sort_unstable();
    assert_eq!(functions, ["pool_get", "pool_make", "pool_put", "pool_regrow"]);
    let all = process.heaps.iter().map(|heap| heap.hooks.len()).sum::<usize>();
    assert!(summary.contains(&format!("hooks: {all} functions of 2 heaps (")), "{summary}");
}

#[test]
fn an_unselected_heap_is_not_probed() {
    for arguments in ["--interval 1 --exclude-heap libc", "--interval 1 --heap pool"] {
        let mut target = Target::spawn(&mut Command::new(linked().build()));
        let (report, ledger, _) = profile(&mut target, arguments, &hooks("pool", ""));
        let process = report.process(target.pid());
        assert_eq!(process.heap_names(), ["pool"]);
        assert_eq!(process.totals.exact(), ledger.sum_of(|site| site != MALLOCS));
        assert!(changed_code(target.pid()).is_empty(), "probes are left");
    }
    let mut target = Target::spawn(&mut Command::new(linked().build()));
    let (report, ledger, _) = profile(&mut target, "--interval 1 --exclude-heap pool", &hooks("pool", ""));
    let refills = report.process(target.pid()).exact_by_leaf()["pool_get"];
    assert!(refills.alloc_count > 10 && refills.alloc_bytes == refills.alloc_count * (64 << 10), "{refills:?}");
    assert_eq!(report.process(target.pid()).exact_by_leaf()[MALLOCS], ledger.site(MALLOCS).counts);
}

/// Fails unless the pool is exact to the byte in a sampled session, and libc is estimated.
#[track_caller]
#[expect(clippy::cast_precision_loss, reason = "the report has floats, which hold these exactly")]
fn assert_exact_beside_samples(report: &Report, pid: u32, ledger: &Ledger) {
    let process = report.process(pid);
    let estimates = process.estimates_by_leaf();
    for site in ledger.sites.iter().filter(|site| site.function != MALLOCS && site.counts.alloc_count > 0) {
        let (estimate, counts) = (estimates[&site.function], site.counts);
        let got = [estimate.alloc_count, estimate.alloc_bytes, estimate.live_count, estimate.live_bytes];
        let expected = [counts.alloc_count, counts.alloc_bytes, counts.live_count, counts.live_bytes];
        assert_eq!(got, expected.map(|count| count as f64), "{}", site.function);
    }
    // 500 samples are expected, so a quarter is more than 5σ.
    let truth = ledger.site(MALLOCS).counts.alloc_bytes as f64;
    let libc = estimates[MALLOCS].alloc_bytes;
    assert!((libc - truth).abs() < truth / 4.0, "{libc} of {truth}");
    assert!(report.health.events < ledger.sum().alloc_count, "libc is sampled: {}", report.health.events);
}

#[test]
fn a_heap_has_its_own_interval() {
    let check = |arguments: &str, hooks: &[String]| {
        let mut target = Target::spawn(&mut Command::new(linked().build()));
        let (report, ledger, _) = profile(&mut target, arguments, hooks);
        assert_exact_beside_samples(&report, target.pid(), &ledger);
    };
    check("--interval 4KiB --heap-interval pool=1", &hooks("pool", ""));
    check("--interval 4KiB", &hooks("pool", "@1"));
    // The interval of the heap takes precedence over that of its functions.
    check("--interval 4KiB --heap-interval pool=1", &hooks("pool", "@1MiB"));
}

#[test]
fn a_file_specifies_hooks() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let path = folder.path().join("pool.toml");
    let text = format!(
        "[[heap]]\nname = \"pool\"\ninterval = \"1\"\nmodules = [\"pool\", \"libpool.so*\"]\nfunctions = {POOL:?}\n"
    );
    fs::write(&path, text).expect("the folder is ours");
    let hooks = ["--hooks".to_owned(), path.display().to_string()];
    let mut target = Target::spawn(&mut Command::new(linked().build()));
    let (report, ledger, _) = profile(&mut target, "--interval 1", &hooks);
    assert_exact(report.process(target.pid()), &ledger);
    let (report, ledger, _) = profile(&mut target, "--interval 4KiB", &hooks);
    assert_exact_beside_samples(&report, target.pid(), &ledger);
}

#[test]
fn functions_that_a_program_does_not_export_are_found_by_symbol() {
    let mut target = Target::spawn(&mut Command::new(Recipe::of("pooled.c").flags("-DINSIDE").build()));
    let (report, ledger, _) = profile(&mut target, "--interval 1", &hooks("pooled", ""));
    assert_exact(report.process(target.pid()), &ledger);
    let mut target = Target::spawn(&mut Command::new(Recipe::of("pooled.c").flags("-DINSIDE -static").build()));
    let (report, ledger, _) = profile(&mut target, "--interval 1", &hooks("*", ""));
    assert_exact(report.process(target.pid()), &ledger);
}

#[test]
fn a_library_loaded_later_is_hooked() {
    let program = Recipe::of("pooled.c").flags("-DLATE").build();
    let mut target = Target::spawn(Command::new(program).env("POOL", library()));
    let mut heapbpf = heapbpf(target.pid(), "--interval 1", &hooks("pool", ""));
    let mut session = heapbpf.start();
    session.wait_for("no function `pool_get`, `pool_make`, `pool_regrow`, `pool_put`");
    target.work("open");
    let deadline = Instant::now() + Duration::from_secs(30);
    while changed_code(target.pid()).iter().filter(|place| place.contains("/pool+")).count() < POOL.len() {
        assert!(Instant::now() < deadline, "the library is not hooked");
    }
    let ledger = target.work("go");
    let outcome = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    report.process(target.pid()).assert_matches(&ledger);
    assert!(!outcome.stdout.contains("no function"), "{}", outcome.stdout);
}

#[test]
fn a_sampled_heap_beside_exact_ones_has_estimates() {
    let mut target = Target::spawn(&mut Command::new(linked().build()));
    let more = hooks("pool", "");
    let mut heapbpf = heapbpf(target.pid(), "--interval 1 --heap-interval libc=4KiB -o out.svg", &more);
    let session = heapbpf.start();
    let ledger = target.work("go");
    let summary = session.interrupt().expect_code(0).stdout;
    let report = heapbpf.report("out.json");
    let process = report.process(target.pid());
    assert_eq!(process.heap("pool").totals.exact(), ledger.sum_of(|site| site != MALLOCS));
    let json: serde_json::Value = serde_json::from_str(&text(&heapbpf.file("out.json"))).expect("the report is JSON");
    let json = &json["targets"][0];
    let is_estimate = |totals: &serde_json::Value| {
        assert_eq!(totals["alloc_bytes"].is_u64(), totals["alloc_bytes_95"].is_null(), "{totals}");
        totals["alloc_bytes"].is_f64()
    };
    assert!(is_estimate(&json["totals"]));
    let heaps = json["heaps"].as_array().expect("heaps are a list");
    assert!(heaps.iter().any(|heap| heap["interval_bytes"] == 4096), "{:?}", process.heaps);
    heaps.iter().for_each(|heap| assert_eq!(is_estimate(heap), heap["interval_bytes"] != 1, "{}", heap["name"]));
    let callsites = json["callsites"].as_array().expect("callsites are a list");
    assert!(callsites.iter().all(|callsite| is_estimate(callsite) == (callsite["heap"] == "libc")));
    for shown in [summary, text(&heapbpf.file("out.svg"))] {
        assert!(shown.contains("every allocation (libc: sampled every 4 KiB)"), "{shown}");
        assert!(shown.contains('≈'), "{shown}");
    }
}
