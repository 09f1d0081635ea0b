//! Checks on made-up transcripts: what holds passes, and each thing that can be wrong fails its own check.

use super::*;

const LEDGER: &str = r#"{"peak_bytes":30,"sites":[{"function":"grows","line":1,"alloc_count":2,"alloc_bytes":30,"free_count":1,"free_bytes":10,"live_count":1,"live_bytes":20}]}"#;

const TOTALS: &str = r#""inherited_count":0,"inherited_bytes":0,"alloc_count":2,"alloc_bytes":30,"free_count":1,"free_bytes":10,"live_count":1,"live_bytes":20,"peak_bytes":30,"peak_unix_ns":null"#;

/// A report of one callsite with this outermost function.
fn report(outermost: &str, exit_code: &str) -> String {
    let frame = |function: &str| {
        format!(r#"{{"function":"{function}","module":"m","file":null,"line":null,"inlined":false,"address":"0x1"}}"#)
    };
    let inner = if outermost == "thread" { String::new() } else { format!("{},", frame("work")) };
    let stack = format!("{},{inner}{}", frame("grows"), frame(outermost));
    let hook = r#"{"function":"malloc","module":"m","backend":"perf","offset":1,"required":true,"attached":true,"error":null}"#;
    format!(
        r#"{{"version":1,"interval_bytes":1,"started_unix_ns":1,"ended_unix_ns":2,"targets":[{{"pid":1,"command":"c",
        "beginning":{{"origin":"running","parent":null,"unix_ns":1,"delay_ns":null,"from_first_call":false}},
        "exited":true,"exit_code":{exit_code},"replaced":false,"totals":{{{TOTALS}}},"heaps":[{{"name":"libc","hooks":[{hook}],{TOTALS}}}],
        "callsites":[{{"stack":[{stack}],"heap":"libc","inherited":false,{TOTALS}}}]}}],
        "others":{{"skipped":[],"skipped_count":0,"short_lived_count":0,"not_inherited_count":0,"folded_count":0}},
        "health":{{"events":3,"lost":{{}},"unwind":{{"complete":2}},"resyncs":0,"interval_changes":[],"agent_cpu_ns":1,"agent_rss_bytes_max":1,
        "guardrails":{{"memory_bytes_max":null,"memory_bytes_highest":null,"cpu_percent_max":null,"cpu_percent_highest":null,"overhead_percent_max":null,"probe_costs":null,"reached":[]}}}}}}"#
    )
}

/// A transcript in which all is well, with `from` replaced by `to`.
fn transcript(from: &str, to: &str) -> Transcript {
    let mut data =
        "value kernel 6.1.0-56-cloud-amd64\nvalue tables.probes_during 9\nvalue tables.probes_after 0\n".to_owned();
    for session in &SESSIONS {
        let name = session.name;
        let outermost = if name == "threads" { "thread" } else { "main" };
        data += &format!("value {name}.code 0\nvalue {name}.target_code 7\nvalue {name}.verified 10 400000 30\n");
        let ledger = format!("ready\n{LEDGER}\n{LEDGER}\n").replace(from, to);
        data += &format!("file {name}.ledger {}\n{ledger}\n", ledger.len());
        let json = report(outermost, "null").replace(from, to);
        data += &format!("file {name}.json {}\n{json}\n", json.len());
    }
    let forks = report("main", "null")
        .replace(r#""short_lived_count":0"#, r#""short_lived_count":808"#)
        .replace(r#""events":3"#, r#""events":1608"#)
        .replace(from, to);
    for name in ["forks", "execs"] {
        data += &format!("value {name}.code 0\nfile {name}.json {}\n{forks}\n", forks.len());
    }
    data += "done\n";
    let transcript = Transcript::parse(data.replace(from, to).as_bytes());
    assert_eq!(transcript.broken, None);
    transcript
}

/// Fails unless exactly these checks fail.
fn check(from: &str, to: &str, failing: &[&str]) {
    let checks = judge(&transcript(from, to));
    let failed: Vec<_> = checks.iter().filter(|check| check.outcome.is_err()).map(|check| &check.name).collect();
    assert_eq!(failed, failing, "{from} -> {to}: {checks:#?}");
}

#[test]
fn all_is_well() {
    check("", "", &[]);
}

#[test]
fn each_fault_fails_its_own_check() {
    check("tables.code 0", "tables.code 3", &["tables: heapbpf ends with 0"]);
    check("ending.target_code 7", "ending.target_code 139", &["ending: the target is unharmed"]);
    let each = ["forks: each fork is accounted for", "execs: each fork is accounted for"];
    check(r#""short_lived_count":808"#, r#""short_lived_count":807"#, &each);
    check(r#""short_lived_count":808"#, r#""short_lived_count":809"#, &each[..1]);
    check(r#""events":1608"#, r#""events":1607"#, &each[1..]);
    check("forks.code 0", "forks.code 3", &["forks: heapbpf ends with 0"]);
    check("probes_after 0", "probes_after 9", &["tables: probes come and go"]);
    check("probes_during 9", "probes_during 0", &["tables: probes come and go"]);
    check("pointers.verified 10 400000 30", "pointers.verified 10 999999 30", &["the verifier's effort"]);
    check("tables.verified 10 400000 30", "tables.verified", &["the verifier's effort"]);
    let links = |session: &str| format!("{session}: links are the kind they should be");
    let [tables, threads, ending] = ["tables", "threads", "ending"].map(links);
    check("6.1.0-56", "6.6.0", &[&tables, &threads, &ending]);
    check("6.1.0-56", "6.15.0", &[&tables, &threads, &ending, "ending: the target's end is known"]);
}

#[test]
fn faults_of_reports() {
    let all = |what: &str| SESSIONS.map(|session| format!("{}: {what}", session.name));
    let check_all = |from: &str, to: &str, what: &str| {
        check(from, to, &all(what).iter().map(String::as_str).collect::<Vec<_>>());
    };
    check_all("\"lost\":{}", "\"lost\":{\"a\":1}", "every hook is attached, nothing is lost");
    check_all("\"perf\"", "\"multi\"", "links are the kind they should be");
    check_all("\"attached\":true", "\"attached\":false", "every hook is attached, nothing is lost");
    check("\"work\",\"module\"", "\"other\",\"module\"", &["tables: stacks", "pointers: stacks", "ending: stacks"]);
}

#[test]
fn one_byte_too_many_is_an_error() {
    let mut wrong = transcript("", "");
    let json = report("main", "null").replace("\"alloc_bytes\":30", "\"alloc_bytes\":31");
    wrong.files.insert("tables.json".to_owned(), json.into_bytes());
    let check = judge(&wrong).into_iter().find(|check| check.outcome.is_err()).expect("a byte too many");
    assert_eq!(check.name, "tables: totals are true to the byte");
    assert!(check.to_string().starts_with("  FAILED  tables"), "{check}");
}

#[test]
fn stacks_that_end_early_are_errors_by_tables_only() {
    check("\"complete\":2", "\"complete\":1,\"no_row\":1", &["tables: stacks", "threads: stacks", "ending: stacks"]);
}

#[test]
fn a_report_that_is_not_there() {
    let mut wrong = transcript("", "");
    wrong.files.remove("pointers.json");
    let failed: Vec<_> =
        judge(&wrong).into_iter().filter(|check| check.outcome.is_err()).map(|check| check.name).collect();
    assert_eq!(failed, ["pointers: there is a report"]);
    let nothing = judge(&Transcript::default());
    assert!(nothing.iter().all(|check| check.outcome.is_err()), "{nothing:#?}");
}
