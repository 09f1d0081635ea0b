//! Every allocation and free of two threads that do nothing else: how many events are taken, and whether any is lost.

use anyhow::{Context as _, Result};

use super::Bench;
use super::churn::{self, Churn};
use super::descriptors::cpu_seconds;
use super::tool::Tool;
use crate::bench::document;

/// Threads that call the allocator.
const THREADS: u32 = 2;

/// How stacks are unwound.
const WAYS: [(&str, &[&str]); 2] = [
    ("5 frames by frame pointers (`--unwind fp`)", &["--interval", "1", "--on-overload", "drop", "--unwind", "fp"]),
    ("5 frames by tables (default)", &["--interval", "1", "--on-overload", "drop"]),
];

/// Records each way for as long as was asked.
pub(super) fn measure(bench: &Bench) -> Result<String> {
    let program = churn::build(&bench.repository.root, "churn", &bench.folder)?;
    let mut rows = Vec::new();
    for (name, arguments) in WAYS {
        let churn = Churn::start(&program, "malloc", THREADS)?;
        let attached = Tool::Heapbpf(arguments).attach(bench, churn.pid(), &[])?;
        // What loading the programs took does not count.
        let loaded = cpu_seconds(attached.tool_pid()?)?;
        let pairs = churn.calls_per_second(bench.sustained)?;
        let report = attached.detach()?.context("heapbpf writes a report")?;
        eprintln!("{name}: {:?} lost", report.health.lost);
        let events = events(&report.health);
        let agent = std::time::Duration::from_nanos(report.health.agent_cpu_ns).as_secs_f64() - loaded;
        rows.push(vec![
            name.to_owned(),
            format!("{:.0}", pairs / 1e3),
            format!("{:.0}", events / report.seconds() / 1e3),
            report.lost().to_string(),
            format!("{:.2}", agent / (events / 1e6)),
            format!("{:.0} %", 100.0 * agent / report.seconds()),
        ]);
    }
    let head = [
        "two threads, malloc and free in a loop",
        "thousand pairs/s",
        "thousand events/s",
        "lost",
        "agent: CPU seconds per million events",
        "of one CPU",
    ];
    let seconds = bench.sustained.as_secs();
    Ok(format!("{}\nFor {seconds} seconds each, with `--interval 1`.\n", document::table(&head, &rows)))
}

#[expect(clippy::cast_precision_loss, reason = "a rate for display")]
fn events(health: &super::report::Health) -> f64 {
    health.events as f64
}
