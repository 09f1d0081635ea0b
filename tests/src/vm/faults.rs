//! Checks of what killed processes and steps of the clock leave.

use super::{
    Check, Feature, MULTI_LINKS, Outcome, THREADS, Transcript, exited, expect, ledger, report, totals, unharmed,
    version,
};

/// Limit for the duration of the recording with clock steps, in nanoseconds. The steps are decades.
const RECORDED_NS_MAX: u64 = 3_600_000_000_000;

pub(super) fn faults(transcript: &Transcript) -> Vec<Check> {
    let no_probes = |session| {
        let name = format!("{session}.probes_after");
        expect(transcript, &name, "0", "{} bytes of libc's code differ")
            .map(|_| "0 bytes of libc's code differ".to_owned())
    };
    let keepers = expect(transcript, "agent-killed.keepers", "0", "{} keepers run");
    vec![
        Check::new(
            Feature::Detach,
            "agent killed: no probe and no keeper remain",
            no_probes("agent-killed").and(keepers),
        ),
        Check::new(Feature::Detach, "agent killed: the target is unharmed", unharmed(transcript, "agent-killed")),
        Check::new(Feature::Detach, "keeper killed: heapbpf reports it", reported(transcript)),
        Check::new(Feature::Detach, "keeper killed: no probe remains", no_probes("keeper-killed")),
        Check::new(Feature::Detach, "keeper killed: the target is unharmed", unharmed(transcript, "keeper-killed")),
        Check::new(Feature::Inline, "stubs left: the next session is exact and removes them", next(transcript)),
        Check::new(Feature::Detach, "stubs left: the target is unharmed", unharmed(transcript, "stubs-left")),
        Check::new(
            Feature::Detach,
            "interrupted calls: they return what they would",
            unharmed(transcript, "interrupted"),
        ),
        Check::new(Feature::Drops, "clock steps: heapbpf exits with 0", exited(transcript, "clock")),
        Check::new(Feature::Totals, "clock steps: totals and duration are correct", clock(transcript)),
    ]
}

/// Exit code 3, a message and a report are expected.
fn reported(transcript: &Transcript) -> Outcome {
    let log = transcript.text("keeper-killed.log").unwrap_or_default();
    match transcript.value("keeper-killed.code") {
        Some("3") if log.contains("keeper") => report(transcript, "keeper-killed").map(|_| String::new()),
        code => Err(format!("exit code {}: {}", code.unwrap_or("unknown"), log.trim())),
    }
}

/// The target has worked three times: for the session that was killed, for none, and for the next one.
fn next(transcript: &Transcript) -> Outcome {
    let kernel = transcript.value("kernel").map_or((0, 0), version);
    exited(transcript, "stubs-left")?;
    let log = transcript.text("stubs-left.log").unwrap_or_default();
    let restored = log
        .lines()
        .find(|line| line.contains("that an earlier recording, of it or of its parent, had left"))
        .unwrap_or_default();
    if restored.is_empty() && kernel >= MULTI_LINKS {
        return Err(format!("it restored no pointers: {}", log.trim()));
    }
    let report = report(transcript, "stubs-left")?;
    let process = report.targets.first().ok_or("no target")?;
    let words = totals(process, &ledger(transcript, "stubs-left", 2)?, &THREADS)?;
    Ok(format!("{words}; {}", restored.trim_start_matches("heapbpf: warning: ")))
}

fn clock(transcript: &Transcript) -> Outcome {
    let report = report(transcript, "clock")?;
    let (first, second) = (ledger(transcript, "clock", 0)?, ledger(transcript, "clock", 1)?);
    let expected = first.sum().alloc_bytes + second.sum().alloc_bytes;
    let is_known = |function: &str| first.sites.iter().any(|site| site.function == function);
    let callsites = report.targets.iter().flat_map(|target| &target.callsites);
    let known = callsites
        .filter(|callsite| callsite.stack.first().and_then(|frame| frame.function.as_deref()).is_some_and(is_known));
    let reported: u64 = known.filter_map(|callsite| callsite.totals.alloc_bytes.as_u64()).sum();
    if reported != expected {
        return Err(format!("{expected} bytes were allocated, {reported} are reported"));
    }
    match report.ended_unix_ns.checked_sub(report.started_unix_ns) {
        Some(duration_ns @ ..=RECORDED_NS_MAX) => Ok(format!("{expected} bytes in {} s", duration_ns / 1_000_000_000)),
        other => Err(format!("recorded for {other:?} ns")),
    }
}
