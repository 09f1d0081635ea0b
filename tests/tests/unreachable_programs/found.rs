//! Runs of `heapbpf leaks` over programs, and what their reports say.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, text};
use serde::Deserialize;

/// What is read of a report.
#[derive(Debug, Deserialize)]
pub(crate) struct Found {
    pub(crate) kind: String,
    pub(crate) pid: u32,
    pub(crate) pause_ns: u64,
    pub(crate) method: String,
    pub(crate) watched_ns: Option<u64>,
    pub(crate) at_exit: bool,
    pub(crate) known: Sum,
    pub(crate) leaked: Sum,
    pub(crate) direct: Sum,
    pub(crate) indirect: Sum,
    pub(crate) heaps: Vec<Heap>,
    pub(crate) caveats: Vec<String>,
    pub(crate) leak_count: u64,
    pub(crate) leaks: Vec<Leak>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Sum {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Heap {
    pub(crate) name: String,
    pub(crate) precision: String,
    pub(crate) gaps: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Leak {
    pub(crate) address: String,
    pub(crate) size_bytes: u64,
    pub(crate) watched: bool,
    pub(crate) stack: Vec<Frame>,
    pub(crate) similar: Sum,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Frame {
    pub(crate) function: Option<String>,
}

impl Found {
    /// The heap with this name.
    #[track_caller]
    pub(crate) fn heap(&self, name: &str) -> &Heap {
        let heap = self.heaps.iter().find(|heap| heap.name == name);
        heap.unwrap_or_else(|| panic!("no `{name}` among {:?}", self.heaps))
    }

    /// The functions that leaked blocks were made by, for whoever reads a failure.
    pub(crate) fn told(&self) -> String {
        let line = |leak: &Leak| {
            let functions: Vec<&str> = leak.functions().take(6).collect();
            format!("  {} {} bytes, similar {:?}: {functions:?}\n", leak.address, leak.size_bytes, leak.similar)
        };
        let lines: String = self.leaks.iter().map(line).collect();
        format!("leaked {:?} of {:?}, caveats {:?}\n{lines}", self.leaked, self.known, self.caveats)
    }
}

impl Leak {
    pub(crate) fn functions(&self) -> impl Iterator<Item = &str> {
        self.stack.iter().filter_map(|frame| frame.function.as_deref())
    }
}

/// Looks at a process, and prints what that took.
#[track_caller]
pub(crate) fn look(pid: u32, arguments: &str) -> Found {
    let mut heapbpf = Heapbpf::new(leaks(&["--pid", &pid.to_string()], arguments));
    let outcome = heapbpf.run();
    let found = found(&heapbpf, outcome);
    assert_eq!((found.pid, found.at_exit), (pid, false));
    eprintln!("{}", summary(&format!("--pid {arguments}"), &found));
    found
}

/// Runs a command to its end under heapbpf. What it printed, and what was found.
#[track_caller]
pub(crate) fn launch(arguments: &str, command: &[&str]) -> (String, Found) {
    let words = leaks(&[], arguments);
    let command = std::iter::once("--").chain(command.iter().copied()).map(str::to_owned);
    let mut heapbpf = Heapbpf::new(words.into_iter().chain(command));
    let outcome = heapbpf.run();
    let stdout = outcome.stdout.clone();
    let found = found(&heapbpf, outcome);
    assert!(found.at_exit, "{}", found.told());
    eprintln!("{}", summary("--", &found));
    (stdout, found)
}

fn leaks(target: &[&str], arguments: &str) -> Vec<String> {
    let fixed = ["leaks", "-o", "leaks.json"].into_iter().chain(target.iter().copied());
    fixed.chain(arguments.split_ascii_whitespace()).map(str::to_owned).collect()
}

#[track_caller]
fn found(heapbpf: &Heapbpf, outcome: Outcome) -> Found {
    let code = outcome.status.code();
    assert!(matches!(code, Some(0 | 4)), "{outcome:?}");
    let found: Found = serde_json::from_str(&text(&heapbpf.file("leaks.json"))).expect("a report of leaks");
    assert_eq!(found.kind, "leaks");
    assert_eq!(code == Some(4), found.leak_count > 0, "{}", found.told());
    assert_eq!(found.leaked.bytes, found.direct.bytes + found.indirect.bytes, "{}", found.told());
    assert!(found.leaked.bytes <= found.known.bytes && found.pause_ns > 0);
    found
}

#[expect(clippy::cast_precision_loss, reason = "a duration for display")]
fn summary(arguments: &str, found: &Found) -> String {
    let pause_ms = found.pause_ns as f64 / 1e6;
    format!("{arguments}: pause {pause_ms:.1} ms by {}; {}", found.method, found.told())
}

/// Calls `load` again and again while `looks` runs, at least once before, and fails where it does.
#[track_caller]
pub(crate) fn under_load(load: impl Fn() + Sync, looks: impl FnOnce()) {
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        let loading = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                load();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Or a look that fails would leave it running.
        let _guard = Over(&is_over);
        while rounds.load(Ordering::Relaxed) == 0 && !loading.is_finished() {
            thread::yield_now();
        }
        looks();
        is_over.store(true, Ordering::Relaxed);
        loading.join().expect("each answer was right");
    });
    // Once more, with nobody looking.
    load();
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
