//! Checks of the sessions in `init.sh` that go wrong: a process of heapbpf is killed, or the clock is set. Pure.

use super::checks::{Check, Outcome, ended, ledger, report, unharmed};
use super::transcript::Transcript;

/// Longest time that the recording with clock steps can have taken, in nanoseconds. The steps are decades.
const RECORDED_NS_MAX: u64 = 3_600_000_000_000;

/// Every check.
pub(super) fn judge(transcript: &Transcript) -> Vec<Check> {
    let check = |name: &str, outcome| Check { name: name.to_owned(), outcome };
    vec![
        check(
            "agent killed: no probe and no keeper is left",
            no_probes(transcript, "agent-killed").and(keepers(transcript)),
        ),
        check("agent killed: the target is unharmed", unharmed(transcript, "agent-killed")),
        check("keeper killed: heapbpf reports it", reported(transcript)),
        check("keeper killed: no probe is left", no_probes(transcript, "keeper-killed")),
        check("keeper killed: the target is unharmed", unharmed(transcript, "keeper-killed")),
        check("clock steps: heapbpf ends with 0", ended(transcript, "clock")),
        check("clock steps: totals and duration are right", clock(transcript)),
    ]
}

fn no_probes(transcript: &Transcript, session: &str) -> Outcome {
    match transcript.value(&format!("{session}.probes_after")) {
        Some("0") => Ok("0 bytes of libc's code differ".to_owned()),
        other => Err(format!("{} bytes of libc's code differ", other.unwrap_or("an unknown number of"))),
    }
}

fn keepers(transcript: &Transcript) -> Outcome {
    match transcript.value("agent-killed.keepers") {
        Some("0") => Ok(String::new()),
        other => Err(format!("{} keepers run", other.unwrap_or("an unknown number of"))),
    }
}

/// Exit code 3, a message and a report.
fn reported(transcript: &Transcript) -> Outcome {
    let log = transcript.text("keeper-killed.log").unwrap_or_default();
    match transcript.value("keeper-killed.code") {
        Some("3") if log.contains("keeper") => report(transcript, "keeper-killed").map(|_| String::new()),
        code => Err(format!("exit code {}: {}", code.unwrap_or("unknown"), log.trim())),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const LEDGER: &str = r#"{"peak_bytes":30,"sites":[{"function":"grows","line":1,"alloc_count":2,"alloc_bytes":30,"free_count":1,"free_bytes":10,"live_count":1,"live_bytes":20}]}"#;

    /// A transcript in which all is as it must be, with `from` replaced by `to`.
    fn failed(from: &str, to: &str) -> Vec<String> {
        let totals = r#""inherited_count":0,"inherited_bytes":0,"alloc_count":4,"alloc_bytes":60,"free_count":2,"free_bytes":20,"live_count":2,"live_bytes":40,"peak_bytes":50,"peak_unix_ns":null"#;
        let json = format!(
            r#"{{"version":1,"interval_bytes":1,"started_unix_ns":1000,"ended_unix_ns":2000000000,"targets":[{{"pid":1,"command":"c",
            "beginning":{{"origin":"running","parent":null,"unix_ns":1,"delay_ns":null,"from_first_call":false}},
            "exited":false,"exit_code":null,"replaced":false,"totals":{{{totals}}},"heaps":[],
            "callsites":[{{"stack":[{{"function":"grows","module":"m","file":null,"line":null,"inlined":false,"address":"0x1"}}],"heap":"libc","inherited":false,{totals}}}]}}],
            "others":{{"skipped":[],"skipped_count":0,"short_lived_count":0,"not_inherited_count":0,"folded_count":0}},
            "health":{{"events":3,"lost":{{}},"unwind":{{"complete":2}},"resyncs":0,"interval_changes":[],"agent_cpu_ns":1,"agent_rss_bytes_max":1,
            "guardrails":{{"memory_bytes_max":null,"memory_bytes_highest":null,"cpu_percent_max":null,"cpu_percent_highest":null,"overhead_percent_max":null,"probe_costs":null,"reached":[]}}}}}}"#
        )
        .replace(from, to);
        let log = "the keeper process exited";
        let ledger = format!("ready\n{LEDGER}\n{LEDGER}\n");
        let mut data = "value agent-killed.keepers 0\nvalue keeper-killed.code 3\nvalue clock.code 0\n".to_owned();
        for session in ["agent-killed", "keeper-killed"] {
            data += &format!("value {session}.probes_after 0\nvalue {session}.target_code 7\n");
        }
        for (name, text) in [
            ("keeper-killed.json", &json),
            ("clock.json", &json),
            ("clock.ledger", &ledger),
            ("keeper-killed.log", &log.to_owned()),
        ] {
            data += &format!("file {name} {}\n{text}\n", text.len());
        }
        let transcript = Transcript::parse(format!("{}done\n", data.replace(from, to)).as_bytes());
        assert_eq!(transcript.broken, None);
        judge(&transcript).into_iter().filter(|check| check.outcome.is_err()).map(|check| check.name).collect()
    }

    #[test]
    fn each_fault_fails_its_own_check() {
        assert_eq!(failed("", ""), [""; 0]);
        let clock = ["clock steps: totals and duration are right"];
        for (from, to, expected) in [
            (
                "agent-killed.probes_after 0",
                "agent-killed.probes_after 9",
                ["agent killed: no probe and no keeper is left"],
            ),
            ("agent-killed.keepers 0", "agent-killed.keepers 1", ["agent killed: no probe and no keeper is left"]),
            ("agent-killed.target_code 7", "agent-killed.target_code 139", ["agent killed: the target is unharmed"]),
            ("keeper-killed.code 3", "keeper-killed.code 0", ["keeper killed: heapbpf reports it"]),
            ("keeper-killed.probes_after 0", "keeper-killed.probes_after 9", ["keeper killed: no probe is left"]),
            ("clock.code 0", "clock.code 1", ["clock steps: heapbpf ends with 0"]),
            ("\"alloc_bytes\":60", "\"alloc_bytes\":61", clock),
            ("_ns\":2000000000", "_ns\":9000000000000", clock),
            ("_ns\":1000,", "_ns\":3000000000,", clock),
        ] {
            assert_eq!(failed(from, to), expected, "{from} -> {to}");
        }
    }
}
