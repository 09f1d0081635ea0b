//! Checks on synthetic transcripts: a correct one passes, and each error fails its own check.

use std::io::Write as _;

use super::faults::faults;
use super::*;

const LEDGER: &str = r#"{"peak_bytes":30,"sites":[{"function":"grows","line":1,"alloc_count":2,"alloc_bytes":30,"free_count":1,"free_bytes":10,"live_count":1,"live_bytes":20}]}"#;

const TOTALS: &str = r#""inherited_count":0,"inherited_bytes":0,"alloc_count":2,"alloc_bytes":30,"free_count":1,"free_bytes":10,"live_count":1,"live_bytes":20,"peak_bytes":30,"peak_unix_ns":null"#;

/// A report of one callsite with this outermost function.
fn report(outermost: &str, exit_code: &str) -> String {
    report_of("libc", outermost, exit_code)
}

fn report_of(heap: &str, outermost: &str, exit_code: &str) -> String {
    let frame = |function: &str| {
        format!(r#"{{"function":"{function}","module":"m","file":null,"line":null,"inlined":false,"address":"0x1"}}"#)
    };
    let inner = if outermost == "thread" { String::new() } else { format!("{},", frame("work")) };
    let stack = format!("{},{inner}{}", frame("grows"), frame(outermost));
    let hook = r#"{"function":"malloc","module":"m","backend":"perf","offset":1,"required":true,"attached":true,"error":null}"#;
    format!(
        r#"{{"version":1,"interval_bytes":1,"started_unix_ns":1,"ended_unix_ns":2,"targets":[{{"pid":1,"command":"c",
        "beginning":{{"origin":"running","parent":null,"unix_ns":1,"delay_ns":null,"from_first_call":false}},
        "exited":true,"exit_code":{exit_code},"replaced":false,"totals":{{{TOTALS}}},"heaps":[{{"name":"{heap}","hooks":[{hook}],{TOTALS}}}],
        "callsites":[{{"stack":[{stack}],"heap":"{heap}","inherited":false,{TOTALS}}}]}}],
        "others":{{"skipped":[],"skipped_count":0,"short_lived_count":0,"not_inherited_count":0,"folded_count":0}},
        "health":{{"events":3,"lost":{{}},"unwind":{{"complete":2}},"resyncs":0,"interval_changes":[],"agent_cpu_ns":1,"agent_rss_bytes_max":1,
        "guardrails":{{"memory_bytes_max":null,"memory_bytes_highest":null,"cpu_percent_max":null,"cpu_percent_highest":null,"overhead_percent_max":null,"probe_costs":null,"reached":[]}},
        "inline_engine":{{"targets":0,"passed_calls":0,"trapped_calls":0,"refused":{{"it requires Linux 6.6":1}}}}}}}}"#
    )
}

/// What a script describes, and a report of it.
fn python() -> (String, String) {
    let mut report: serde_json::Value = serde_json::from_str(&report("main", "null")).expect("is well-formed");
    let callsites = report["targets"][0]["callsites"].as_array_mut().expect("is a list");
    let (mut described, first) = (String::new(), callsites.remove(0));
    for line in 1..=50_i32 {
        let bytes = 100_000 + line;
        described += &format!("{{\"bytes\":{bytes},\"stack\":[[\"python_{line}\",\"frames.py\",{line}]]}}\n");
        let mut callsite = first.clone();
        (callsite["alloc_count"], callsite["alloc_bytes"]) = (1.0.into(), f64::from(bytes).into());
        let frame = &mut callsite["stack"][0];
        (frame["function"], frame["kind"]) = (format!("python_{line}").into(), "interpreted".into());
        (frame["file"], frame["line"]) = ("frames.py".into(), line.into());
        callsites.push(callsite);
    }
    (described, report.to_string())
}

/// A correct transcript, with `from` replaced by `to`.
fn transcript(from: &str, to: &str) -> Transcript {
    let mut data =
        "value kernel 6.1.0-56-cloud-amd64\nvalue machine x86_64\nvalue tables.probes_during 9\nvalue tables.probes_after 0\n".to_owned();
    for session in SESSIONS.iter().chain([&TAGGED]) {
        let name = session.name;
        let outermost = if ["threads", "inline"].contains(&name) { "thread" } else { "main" };
        let code = match name {
            "pointers" => 3,
            "launched" => 7,
            _ => 0,
        };
        data += &format!(
            "value {name}.code {code}\nvalue {name}.target_code 7\nvalue {name}.verified hook_entry=400000 process_fork=30\n"
        );
        let ledger = format!("ready\n{LEDGER}\n{LEDGER}\n").replace(from, to);
        data += &format!("file {name}.ledger {}\n{ledger}\n", ledger.len());
        let origin = if name == "launched" { "launch" } else { "running" };
        let json = report_of(session.heap, outermost, "null").replace("running", origin).replace(from, to);
        data += &format!("file {name}.json {}\n{json}\n", json.len());
    }
    // Estimates, with numbers that no check changes.
    let near = |text: &str| text.replace(r#""alloc_bytes":30"#, r#""alloc_bytes":31"#).replace(r#":10,"#, ":11,");
    let sampled =
        near(&report("thread", "null").replace(r#""passed_calls":0"#, r#""passed_calls":2"#)).replace(from, to);
    let ledger = near(LEDGER).replace(from, to);
    data += &format!("value {SAMPLED}.code 0\nvalue {SAMPLED}.target_code 7\n");
    data += &format!("file {SAMPLED}.ledger {}\n{ledger}\n", ledger.len());
    data += &format!("file {SAMPLED}.json {}\n{sampled}\n", sampled.len());
    let forks = report("main", "null")
        .replace(r#""short_lived_count":0"#, r#""short_lived_count":808"#)
        .replace(r#""events":3"#, r#""events":1608"#)
        .replace(from, to);
    for name in ["forks", "execs"] {
        data += &format!("value {name}.code 3\nfile {name}.json {}\n{forks}\n", forks.len());
    }
    let function = r#"{"function":"name","kind":"interpreted","module":"m","file":null,"line":null,"inlined":false,"address":"0x1"},"#;
    let json = report("allocates", "null")
        .replace(
            r#"{"function":"work""#,
            &format!(
                r#"{}{}{{"function":"work""#,
                function.replace("name", "_PyEval_EvalFrameDefault"),
                function.repeat(40)
            ),
        )
        .replace(r#""alloc_count":2"#, r#""alloc_count":16000"#)
        .replace(from, to);
    data += "value interpreted.code 0\nvalue interpreted.target_code 7\n";
    data += &format!("file interpreted.json {}\n{json}\n", json.len());
    let pages = report_of("pages", "main", "null")
        .replace("grows", "touches")
        .replace(&amounts(20), &amounts(TOUCHED_BYTES))
        .replace(from, to);
    for name in ["pages", "pages-together"] {
        data +=
            &format!("value {name}.code 0\nvalue {name}.target_code 7\nfile {name}.json {}\n{pages}\n", pages.len());
    }
    for (release, _) in interpreters::PYTHONS {
        let (described, json) = python();
        let json = json.replace(from, to);
        data += &format!("file python-{release}.described {}\n{described}\n", described.len());
        data += &format!("file python-{release}.json {}\n{json}\n", json.len());
    }
    data += "done\n";
    let transcript = Transcript::parse(data.replace(from, to).as_bytes());
    assert_eq!(transcript.broken, None);
    transcript
}

/// Fails unless exactly these checks fail.
fn check(from: &str, to: &str, failing: &[&str]) {
    let checks = sessions(&transcript(from, to));
    let failed: Vec<_> = checks.iter().filter(|check| check.outcome.is_err()).map(|check| &check.name).collect();
    assert_eq!(failed, failing, "{from} -> {to}: {checks:#?}");
}

#[test]
fn all_is_well() {
    check("", "", &[]);
}

#[test]
fn each_error_fails_its_own_check() {
    check("tables.code 0", "tables.code 3", &["tables: heapbpf exits with 0"]);
    check("ending.target_code 7", "ending.target_code 139", &["ending: the target is unharmed"]);
    let each = ["forks: each fork is accounted for", "execs: each fork is accounted for"];
    check(r#""short_lived_count":808"#, r#""short_lived_count":807"#, &each);
    check(r#""short_lived_count":808"#, r#""short_lived_count":809"#, &each[..1]);
    check(r#""events":1608"#, r#""events":1607"#, &each[1..]);
    check("forks.code 3", "forks.code 0", &[&format!("forks: {ENDED_CODE}")]);
    check("probes_after 0", "probes_after 9", &["tables: probes are attached and detached"]);
    check("probes_during 9", "probes_during 0", &["tables: probes are attached and detached"]);
    check(
        "pointers.verified hook_entry=400000",
        "pointers.verified hook_entry=999999",
        &["instructions processed by the verifier"],
    );
    check(
        "tables.verified hook_entry=400000 process_fork=30",
        "tables.verified",
        &["instructions processed by the verifier"],
    );
    check("interpreted.target_code 7", "interpreted.target_code 139", &["interpreted: the target is unharmed"]);
    let functions = "interpreted: all stacks contain all functions";
    check(r#""alloc_count":16000"#, r#""alloc_count":15999"#, &[functions]);
    let pythons = interpreters::PYTHONS
        .map(|(release, version)| format!("python-{release}: stacks are those that CPython {version} describes"));
    let [bullseye, bookworm, trixie] = pythons.each_ref().map(String::as_str);
    check(r#""kind":"interpreted""#, r#""kind":"jitted""#, &[functions, bullseye, bookworm, trixie]);
    check(r#""line":4"#, r#""line":6"#, &[bullseye, bookworm, trixie]);
    check("file python-trixie.json", "file other.json", &[trixie]);
    let stubs = "inline: calls pass stubs since Linux 6.6";
    check("requires Linux 6.6", "is refused", &[stubs]);
    let links = SESSIONS.iter().filter(|session| session.cheapest_links);
    let links = links.map(|session| format!("{}: links are of the expected kind", session.name));
    let after = |after: &str, name: &str, mut names: Vec<String>| {
        let index = names.iter().position(|it| it.starts_with(after)).expect("is there");
        names.insert(index + 1, name.to_owned());
        names
    };
    let expected = after("inline:", stubs, links.collect());
    check_all("6.1.0-56", "6.6.0", &expected);
    check_all("6.1.0-56", "6.15.0", &after("ending:", "ending: the target's exit is recorded", expected));
}

fn check_all(from: &str, to: &str, failing: &[String]) {
    check(from, to, &failing.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The check of this name of the sessions for which it is true.
fn of(name: &str, which: impl Fn(&Session) -> bool) -> Vec<String> {
    SESSIONS.iter().filter(|session| which(session)).map(|session| format!("{}: {name}", session.name)).collect()
}

/// Changes a correct transcript into one of arm64, where libc has frame pointers.
fn of_arm64() -> Transcript {
    let mut transcript = transcript("machine x86_64", "machine aarch64");
    let mut set = |name: &str, value: &str| transcript.values.insert(name.to_owned(), value.to_owned());
    set("pointers.code", "0");
    refuse_pages(&mut transcript);
    transcript
}

/// The part of totals that depends on the live bytes.
fn amounts(live_bytes: u64) -> String {
    let alloc_bytes = live_bytes + 10;
    format!(r#""alloc_bytes":{alloc_bytes},"free_count":1,"free_bytes":10,"live_count":1,"live_bytes":{live_bytes}"#)
}

/// What a machine says that cannot record resident pages.
fn refuse_pages(transcript: &mut Transcript) {
    for name in ["pages", "pages-together"] {
        transcript.values.insert(format!("{name}.code"), "1".to_owned());
        transcript.files.remove(&format!("{name}.json"));
        let error = "heapbpf: error: cannot record resident pages (`--heap pages`): not here";
        transcript.files.insert(format!("{name}.log"), error.into());
    }
}

#[test]
fn pages_that_count_twice_are_an_error() {
    let each = ["pages", "pages-together"].map(|name| format!("{name}: all of them, once"));
    check_all(&amounts(TOUCHED_BYTES), &amounts(TOUCHED_BYTES + 4096), &each);
    let silent = failed_of_arm64(|transcript| drop(transcript.files.remove("pages.log")));
    assert_eq!(silent, ["pages: heapbpf says why there are none"]);
}

fn failed_of_arm64(change: impl FnOnce(&mut Transcript)) -> Vec<String> {
    let mut transcript = of_arm64();
    change(&mut transcript);
    sessions(&transcript).into_iter().filter(|check| check.outcome.is_err()).map(|check| check.name).collect()
}

#[test]
fn arm64_has_frame_pointers() {
    assert_eq!(failed_of_arm64(|_| ()), [""; 0]);
    let cut = failed_of_arm64(|transcript| drop(transcript.values.insert("pointers.code".to_owned(), "3".to_owned())));
    assert_eq!(cut, ["pointers: heapbpf exits with 0"]);
    let nothing = failed_of_arm64(|transcript| drop(transcript.files.remove("interpreted.json")));
    assert_eq!(nothing, ["interpreted: all stacks contain all functions"]);
}

#[test]
fn functions_that_may_throw_are_hooked_since_linux_6_13() {
    let (from, to) = (r#""attached":true,"error":null"#, r#""attached":false,"error":"only session links survive""#);
    // The only hook of these reports.
    check_all(from, to, &of("every hook is attached, no event is dropped", |_| true));
    let two = |report: &str| {
        report.replace(
            from,
            &format!("{from}}},{{\"function\":\"_Znwm\",\"module\":\"m\",\"backend\":\"perf\",\"offset\":1,{to}"),
        )
    };
    let mut transcript = transcript("", "");
    let changed: Vec<_> = transcript
        .files
        .iter()
        .filter(|(name, _)| name.ends_with(".json"))
        .map(|(name, json)| (name.clone(), two(&String::from_utf8_lossy(json)).into_bytes()))
        .collect();
    transcript.files.extend(changed);
    let judged = |transcript: &Transcript| -> Vec<Check> {
        sessions(transcript).into_iter().filter(|check| check.name.contains("every hook")).collect()
    };
    assert!(judged(&transcript).iter().all(|check| check.outcome.is_ok() && check.instead == Some(NOT_HOOKED)));
    transcript.values.insert("kernel".to_owned(), "6.13.0".to_owned());
    assert!(judged(&transcript).iter().all(|check| check.outcome.is_err() && check.instead.is_none()));
}

#[test]
fn blocks_in_another_heap_are_an_error() {
    check_all(r#""name":"musl""#, r#""name":"libc""#, &of("totals are exact", |session| session.heap == "musl"));
}

#[test]
fn faults_of_reports() {
    let check_each = |from: &str, to: &str, what: &str| check_all(from, to, &of(what, |_| true));
    check_each("\"lost\":{}", "\"lost\":{\"a\":1}", "every hook is attached, no event is dropped");
    check_each("\"perf\"", "\"multi\"", "links are of the expected kind");
    check_each("\"attached\":true", "\"attached\":false", "every hook is attached, no event is dropped");
    let of_work = of("stacks", |session| session.callers.contains(&"work"));
    check_all("\"work\",\"module\"", "\"other\",\"module\"", &of_work);
}

#[test]
fn a_locked_down_kernel_follows_no_forks_and_no_interpreters() {
    let mut locked = transcript("kernel 6.1.0-56", "lockdown none integrity [confidentiality]\nvalue kernel 6.1.0-56");
    let codes = locked.values.iter_mut().filter(|(name, _)| name.ends_with(".code"));
    codes.for_each(|(_, code)| *code = code.replace('0', "3"));
    let alone = report("main", "null").into_bytes();
    let warning = "heapbpf: warning: cannot follow forks: the kernel is locked down for confidentiality";
    for name in ["forks", "execs"] {
        locked.files.insert(format!("{name}.json"), alone.clone());
        locked.files.insert(format!("{name}.log"), warning.into());
    }
    locked.files.remove("interpreted.json");
    refuse_pages(&mut locked);
    let checks = sessions(&locked);
    assert!(checks.iter().all(|check| check.outcome.is_ok()), "{checks:#?}");
    let instead: BTreeSet<Feature> =
        checks.iter().filter(|check| check.instead == Some(LOCKED)).map(|check| check.feature).collect();
    assert_eq!(instead, BTreeSet::from([Feature::Forks, Feature::Interpreters]));
    locked.files.insert("forks.log".to_owned(), Vec::new());
    let failed: Vec<_> = sessions(&locked).into_iter().filter(|check| check.outcome.is_err()).collect();
    assert_eq!(
        failed.iter().map(|check| &*check.name).collect::<Vec<_>>(),
        ["forks: heapbpf reports why it follows none"]
    );
}

#[test]
fn one_byte_too_many_is_an_error() {
    let mut wrong = transcript("", "");
    let json = report("main", "null").replace("\"alloc_bytes\":30", "\"alloc_bytes\":31");
    wrong.files.insert("tables.json".to_owned(), json.into_bytes());
    let check = sessions(&wrong).into_iter().find(|check| check.outcome.is_err()).expect("a byte too many");
    assert_eq!(check.name, "tables: totals are exact");
    assert!(check.to_string().starts_with("  FAILED  tables"), "{check}");
}

#[test]
fn stacks_that_end_early_are_errors_by_tables_only() {
    let by_tables = of("stacks", |session| !session.by_pointers);
    check_all("\"complete\":2", "\"complete\":1,\"no_row\":1", &by_tables);
}

#[test]
fn a_report_that_is_not_there() {
    let mut wrong = transcript("", "");
    wrong.files.remove("pointers.json");
    let failed: Vec<_> =
        sessions(&wrong).into_iter().filter(|check| check.outcome.is_err()).map(|check| check.name).collect();
    assert_eq!(failed, ["pointers: there is a report"]);
    let nothing = sessions(&Transcript::default());
    assert!(nothing.iter().all(|check| check.outcome.is_err()), "{nothing:#?}");
}

/// Names of the failed checks of a correct transcript with `from` replaced by `to`.
fn failed_faults(from: &str, to: &str) -> Vec<String> {
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
    let mut data = "value agent-killed.keepers 0\nvalue keeper-killed.code 3\nvalue clock.code 0\n\
        value kernel 6.12.1\nvalue stubs-left.code 0\n"
        .to_owned();
    for session in ["agent-killed", "keeper-killed", "stubs-left", "interrupted"] {
        data += &format!("value {session}.probes_after 0\nvalue {session}.target_code 7\n");
    }
    let restored = "heapbpf: warning: restored 4 pointers of process 9 that an earlier recording, of it or of its parent, had left";
    for (name, text) in [
        ("keeper-killed.json", &json),
        ("clock.json", &json),
        ("clock.ledger", &ledger),
        ("keeper-killed.log", &log.to_owned()),
        ("stubs-left.json", &report("thread", "null")),
        ("stubs-left.ledger", &format!("{ledger}{LEDGER}\n")),
        ("stubs-left.log", &restored.to_owned()),
    ] {
        data += &format!("file {name} {}\n{text}\n", text.len());
    }
    let transcript = Transcript::parse(format!("{}done\n", data.replace(from, to)).as_bytes());
    assert_eq!(transcript.broken, None);
    faults(&transcript).into_iter().filter(|check| check.outcome.is_err()).map(|check| check.name).collect()
}

#[test]
fn each_error_after_a_fault_fails_its_own_check() {
    assert_eq!(failed_faults("", ""), [""; 0]);
    let left = ["stubs left: the next session is exact and removes them"];
    let clock = ["clock steps: totals and duration are correct"];
    for (from, to, expected) in [
        ("agent-killed.probes_after 0", "agent-killed.probes_after 9", ["agent killed: no probe and no keeper remain"]),
        ("agent-killed.keepers 0", "agent-killed.keepers 1", ["agent killed: no probe and no keeper remain"]),
        ("agent-killed.target_code 7", "agent-killed.target_code 139", ["agent killed: the target is unharmed"]),
        ("keeper-killed.code 3", "keeper-killed.code 0", ["keeper killed: heapbpf reports it"]),
        ("keeper-killed.probes_after 0", "keeper-killed.probes_after 9", ["keeper killed: no probe remains"]),
        ("stubs-left.target_code 7", "stubs-left.target_code 139", ["stubs left: the target is unharmed"]),
        ("interrupted.target_code 7", "interrupted.target_code 53", ["interrupted calls: they return what they would"]),
        ("stubs-left.code 0", "stubs-left.code 3", left),
        ("had left", "has left", left),
        ("clock.code 0", "clock.code 1", ["clock steps: heapbpf exits with 0"]),
        ("\"alloc_bytes\":60", "\"alloc_bytes\":61", clock),
        ("_ns\":2000000000", "_ns\":9000000000000", clock),
        ("_ns\":1000,", "_ns\":3000000000,", clock),
    ] {
        assert_eq!(failed_faults(from, to), expected, "{from} -> {to}");
    }
}

fn check_broken(data: &str, reason: &str) {
    let broken = Transcript::parse(data.as_bytes()).broken.expect("it is incomplete");
    assert!(broken.contains(reason), "{broken}");
}

#[test]
fn values_and_files() {
    let transcript =
        Transcript::parse(b"value kernel 6.1.0\nfile a.json 5\n{\n\xff}\n\nvalue a.list 1 2 \nvalue none\ndone\n");
    assert_eq!(transcript.broken, None);
    assert_eq!(transcript.value("kernel"), Some("6.1.0"));
    assert_eq!(transcript.value("a.list"), Some("1 2"));
    assert_eq!(transcript.value("none"), Some(""));
    assert_eq!(transcript.value("other"), None);
    assert_eq!(transcript.files["a.json"], b"{\n\xff}\n");
    assert_eq!(transcript.text("a.json"), None, "it is not text");
}

#[test]
fn packed_files_are_unpacked() {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(b"{}\n").expect("into memory");
    let packed = packer.finish().expect("into memory");
    let data = [format!("file a.json.gz {}\n", packed.len()).as_bytes(), &packed, b"\ndone\n"].concat();
    let transcript = Transcript::parse(&data);
    assert_eq!((transcript.broken.as_deref(), transcript.text("a.json")), (None, Some("{}\n")));
    check_broken("file a.gz 1\nx\ndone\n", "`a.gz` cannot be unpacked");
}

#[test]
fn incomplete_transcripts_have_a_reason_and_the_received_data() {
    check_broken("", "without `done`");
    check_broken("value a b\n", "without `done`");
    check_broken("file a 10\nshort\n", "`a` was cut off");
    check_broken("file a 2\nlonger\ndone\n", "another length");
    check_broken("file a b\n", "no length");
    check_broken("file ../a 1\nx\n\n", "not valid");
    check_broken("hello\n", "not valid");
    let transcript = Transcript::parse(b"value a b\nfile c 1\nx\n\nfile d 7\n");
    assert_eq!((transcript.value("a"), transcript.text("c")), (Some("b"), Some("x")));
}
