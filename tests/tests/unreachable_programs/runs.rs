//! Runs of `heapbpf leaks` on programs, and their reports.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use heapbpf_tests::heapbpf::{Heapbpf, Outcome};
use heapbpf_tests::unreachable::Check;

/// Checks a process, and prints the time that this took.
#[track_caller]
pub(crate) fn run_check(pid: u32, arguments: &str) -> Check {
    let mut heapbpf = Heapbpf::new(leaks(&["--pid", &pid.to_string()], arguments));
    let outcome = heapbpf.run();
    let found = found(&heapbpf, outcome);
    assert_eq!((found.pid, found.at_exit), (pid, false));
    eprintln!("{}", summary(&format!("--pid {arguments}"), &found));
    found
}

/// Runs a command to its end under heapbpf. Returns its output and the leaks.
#[track_caller]
pub(crate) fn launch(arguments: &str, command: &[&str]) -> (String, Check) {
    let words = leaks(&[], arguments);
    let command = std::iter::once("--").chain(command.iter().copied()).map(str::to_owned);
    let mut heapbpf = Heapbpf::new(words.into_iter().chain(command));
    let outcome = heapbpf.run();
    let stdout = outcome.stdout.clone();
    let found = found(&heapbpf, outcome);
    assert!(found.at_exit, "{}", found.leak_list());
    eprintln!("{}", summary("--", &found));
    (stdout, found)
}

fn leaks(target: &[&str], arguments: &str) -> Vec<String> {
    let fixed = ["leaks", "-o", "leaks.json"].into_iter().chain(target.iter().copied());
    fixed.chain(arguments.split_ascii_whitespace()).map(str::to_owned).collect()
}

#[track_caller]
fn found(heapbpf: &Heapbpf, outcome: Outcome) -> Check {
    let code = outcome.status.code();
    assert!(matches!(code, Some(0 | 4)), "{outcome:?}");
    let found = Check::read(&heapbpf.file("leaks.json"));
    assert_eq!(code == Some(4), found.leak_count > 0, "{}", found.leak_list());
    assert!(found.leaked.bytes <= found.known.bytes && found.pause_ns > 0);
    found
}

#[expect(clippy::cast_precision_loss, reason = "a duration for display")]
fn summary(arguments: &str, found: &Check) -> String {
    let pause_ms = found.pause_ns as f64 / 1e6;
    format!("{arguments}: pause {pause_ms:.1} ms by {}; {}", found.method, found.leak_list())
}

/// Calls `load` repeatedly while `checks` runs, at least once before, and fails if a call does.
#[track_caller]
pub(crate) fn under_load(load: impl Fn() + Sync, checks: impl FnOnce()) {
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        let loading = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                load();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Otherwise a failing check would not end it.
        let _guard = Over(&is_over);
        while rounds.load(Ordering::Relaxed) == 0 && !loading.is_finished() {
            thread::yield_now();
        }
        checks();
        is_over.store(true, Ordering::Relaxed);
        loading.join().expect("each answer was right");
    });
    // Once more, without a concurrent check.
    load();
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
