//! Memory that each live block takes, in the kernel and in the agent, with a million of them.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::descriptors::{anonymous_bytes, map_bytes, slab_bytes};
use super::steps::Steps;
use super::tool::{Attached, Tool};
use super::{Bench, program, verdict};
use crate::bench::document;

/// Blocks that live at once.
const BLOCKS: u32 = 1_000_000;

/// What heapbpf may take for one, kernel and agent together, in bytes.
const BYTES_MAX: f64 = 160.0;

/// The live set's key and value, in bytes: see profiler-common/src/live.rs.
const LIVE_SET: (u64, u64) = (16, 24);

/// Measures once: memory does not depend on what else the machine does.
pub(super) fn measure(bench: &Bench) -> Result<String> {
    let mut target = Steps::start(bench)?;
    let attached = Tool::Heapbpf(&["--interval", "1", "--on-overload", "drop"]).attach(bench, target.pid(), &[])?;
    let before = bytes(&attached)?;
    target.allocate(BLOCKS)?;
    let held = bytes_settled(&attached)?;
    target.free()?;
    let report = attached.detach()?;
    let lost = report.map_or(0, |report| report.lost());
    let per_block = |before: u64, after: u64| as_f64(after.saturating_sub(before)) / f64::from(BLOCKS);
    let (kernel, agent) = (per_block(before.kernel, held.kernel), per_block(before.agent, held.agent));
    let mib = |bytes: u64| format!("{:.1}", as_f64(bytes) / f64::from(1 << 20));
    let row = |name: &str, before: u64, held: u64, each: f64| {
        vec![name.to_owned(), mib(before), mib(held), format!("{each:.0}")]
    };
    let rows = [
        row("kernel: the live set's map, as the kernel accounts for it", before.kernel, held.kernel, kernel),
        row("agent: its own memory (RssAnon)", before.agent, held.agent, agent),
        row(
            "for comparison: all object caches of the kernel (Slab)",
            before.slab,
            held.slab,
            per_block(before.slab, held.slab),
        ),
    ];
    let head = ["one million live blocks", "MiB before", "MiB with them", "bytes per block"];
    let met = verdict(kernel + agent, BYTES_MAX);
    Ok(format!(
        "{}\nTogether {:.0} bytes per live block, at most {BYTES_MAX} is asked for: {met}. Events lost: {lost}.\n",
        document::table(&head, &rows),
        kernel + agent
    ))
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug)]
struct Memory {
    kernel: u64,
    agent: u64,
    slab: u64,
}

fn bytes(attached: &Attached) -> Result<Memory> {
    let pid = attached.tool_pid()?;
    Ok(Memory { kernel: map_bytes(pid, LIVE_SET.0, LIVE_SET.1)?, agent: anonymous_bytes(pid)?, slab: slab_bytes()? })
}

/// The same once the agent has read all events: it has not grown for a second.
fn bytes_settled(attached: &Attached) -> Result<Memory> {
    let (mut last, mut since, began) = (bytes(attached)?, Instant::now(), Instant::now());
    while since.elapsed() < Duration::from_secs(1) && began.elapsed() < program::PATIENCE {
        thread::sleep(Duration::from_millis(50));
        let now = bytes(attached)?;
        if (now.kernel, now.agent) != (last.kernel, last.agent) {
            since = Instant::now();
        }
        last = now;
    }
    Ok(last)
}

#[expect(clippy::cast_precision_loss, reason = "megabytes are told apart up to terabytes")]
fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}
