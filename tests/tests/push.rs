//! `--push`: what servers receive, and what happens while they are off or misbehave.

pub(crate) mod receiver;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, Outcome};
use heapbpf_tests::kernel;
use heapbpf_tests::report::Report;
use heapbpf_tests::target::{self, Target};

use receiver::{Profile, Receiver, Request};

/// Back ends: of the receiver, and of the URL.
const KINDS: [(&str, &str); 4] =
    [("pyroscope", "pyroscope+http"), ("otlp-http", "otlp+http"), ("otlp-grpc", "otlp+grpc"), ("parca", "parca+grpc")];

/// Records every allocation of a program; the queue is in heapbpf's directory.
fn heapbpf(target: &Target, url: &str, options: &str) -> Heapbpf {
    let push = format!("--push {url} --push-queue queue");
    Heapbpf::of(target.pid(), &format!("--interval 1 -o out.json {push} {options}"))
}

fn url(scheme: &str, receiver: &Receiver) -> String {
    format!("{scheme}://127.0.0.1:{}", receiver.port)
}

/// Profiles with allocated amounts that the server has accepted, in the order of arrival.
fn allocated(requests: &[Request]) -> Vec<&Profile> {
    let accepted = requests.iter().filter(|request| request.answer == "ok");
    let profiles = accepted.flat_map(|request| &request.series).flat_map(|series| &series.profiles);
    profiles.filter(|profile| profile.types.iter().any(|kind| kind == "alloc_space/bytes")).collect()
}

fn value(profile: &Profile, of: &[u64], kind: &str) -> Option<u64> {
    profile.types.iter().position(|own| own == kind).map(|index| of[index])
}

/// Fails unless each window starts where the previous one ended.
#[track_caller]
fn assert_consecutive(profiles: &[&Profile]) {
    for pair in profiles.windows(2) {
        assert_eq!(pair[0].time + pair[0].duration, pair[1].time, "a window is missing, or out of order");
    }
}

/// Number after a reason in the summary's line about pushing.
fn dropped(outcome: &Outcome, reason: &str) -> u64 {
    let line = outcome.stdout.lines().find(|line| line.starts_with("push: ")).expect("the summary has it");
    let after = line.split(&format!("{reason} ")).nth(1);
    after.map_or(0, |text| text.split([',', ')']).next().and_then(|number| number.parse().ok()).expect("a number"))
}

/// Bytes by functions, leaf first, as in the report.
fn stacks(report: &Report, bytes: impl Fn(&heapbpf_tests::report::Callsite) -> u64) -> BTreeMap<String, u64> {
    let mut stacks = BTreeMap::new();
    for callsite in report.targets.iter().flat_map(|process| &process.callsites) {
        let names: Vec<_> = callsite.stack.iter().map(|frame| frame.function.as_deref().expect("named")).collect();
        *stacks.entry(names.join(";")).or_default() += bytes(callsite);
    }
    stacks.retain(|_, bytes| *bytes > 0);
    stacks
}

#[track_caller]
fn check_contents(kind: &str, scheme: &str) {
    let mut target = Target::start("slots.c");
    let mut receiver = Receiver::start(kind, 0);
    let options = "--push-every 500ms --label env=test --label host=here";
    let options = format!("{options} --push-header-file headers");
    let mut heapbpf = heapbpf(&target, &url(scheme, &receiver), &options);
    fs::write(heapbpf.file("headers"), "# secret\nX-Scope-OrgID: tenant\n").expect("its directory is ours");
    let session = heapbpf.start();
    target.work("+1:1000 +20:200");
    receiver.wait_for(1, "ok");
    target.work("-1 +3:300");
    receiver.wait_for(2, "ok");
    target.work("+30:50");
    let outcome = session.interrupt().expect_counted();
    let requests = receiver.take();
    let report = heapbpf.report("out.json");
    let totals = report.process(target.pid()).totals.exact();

    let windows = allocated(&requests);
    assert_consecutive(&windows);
    let sum: u64 = windows.iter().filter_map(|it| value(it, &it.sums, "alloc_space/bytes")).sum();
    assert_eq!(sum, totals.alloc_bytes, "{kind}: the windows add up");
    let mut of_stacks = BTreeMap::new();
    for profile in &windows {
        for (stack, values) in &profile.stacks {
            *of_stacks.entry(stack.clone()).or_default() += value(profile, values, "alloc_space/bytes").unwrap_or(0);
        }
    }
    of_stacks.retain(|_, bytes| *bytes > 0);
    assert_eq!(of_stacks, stacks(&report, |callsite| callsite.totals.exact().alloc_bytes), "{kind}");

    let series = || requests.iter().flat_map(|request| &request.series);
    let live = series().flat_map(|series| &series.profiles);
    let live: Vec<_> = live.filter(|it| value(it, &it.sums, "inuse_space/bytes").is_some()).collect();
    let last = live.last().expect("every window has them");
    assert_eq!(value(last, &last.sums, "inuse_space/bytes"), Some(totals.live_bytes), "{kind}");
    assert_eq!(value(last, &last.sums, "inuse_space/bytes"), Some(550), "{kind}");
    let of_stacks: BTreeMap<String, u64> = last
        .stacks
        .iter()
        .filter_map(|(stack, values)| Some((stack.clone(), value(last, values, "inuse_space/bytes")?)))
        .filter(|(_, bytes)| *bytes > 0)
        .collect();
    assert_eq!(of_stacks, stacks(&report, |callsite| callsite.totals.exact().live_bytes), "{kind}");
    // Pyroscope takes all four values of one time; for the others, live bytes are of the end.
    let end = report.ended_unix_ns;
    assert_eq!(if kind == "pyroscope" { last.time + last.duration } else { last.time }, end, "{kind}");
    assert!(kind == "pyroscope" || last.duration == 0);
    check_labels(kind, &requests, &target);
    assert!(outcome.stdout.lines().any(|line| line.starts_with("push: ")), "{}", outcome.stdout);
    assert_eq!(fs::read_dir(heapbpf.file("queue")).expect("it exists").count(), 1, "a folder for the URL");
}

#[track_caller]
fn check_labels(kind: &str, requests: &[Request], target: &Target) {
    let pid = target.pid().to_string();
    let pairs: &[(&str, &str)] = if kind.starts_with("otlp") {
        &[("host.name", "here"), ("env", "test"), ("process.pid", &pid), ("process.executable.name", "slots")]
    } else {
        &[("__name__", "memory"), ("host", "here"), ("env", "test"), ("pid", &pid), ("comm", "slots")]
    };
    for request in requests {
        assert_eq!(request.headers.get("x-scope-orgid").map(String::as_str), Some("tenant"), "{request:?}");
        for series in &request.series {
            for (name, expected) in pairs {
                assert_eq!(series.labels.get(*name).map(String::as_str), Some(*expected), "{kind}: {name}");
            }
            assert_eq!(series.labels.get("__delta__").map(String::as_str), (kind == "pyroscope").then_some("false"));
            let service = if kind.starts_with("otlp") { "service.name" } else { "service_name" };
            assert!(series.labels.contains_key(service), "{kind}: {:?}", series.labels);
            assert_eq!(series.duplicates, 0);
            for profile in &series.profiles {
                assert_eq!((profile.problems.as_slice(), profile.period), ([].as_slice(), 1), "{kind}");
                assert!(profile.sample_labels.iter().all(|label| label == "heap=libc"), "{:?}", profile.sample_labels);
                let is_empty = profile.stacks.is_empty();
                let are_ids = profile.build_ids.iter().all(|id| id.len() == 40);
                assert!(are_ids && (is_empty || !profile.build_ids.is_empty()), "{kind}: {:?}", profile.build_ids);
            }
        }
    }
}

#[test]
fn pyroscope_receives_the_recording() {
    check_contents("pyroscope", "pyroscope+http");
}

#[test]
fn collectors_receive_the_recording_by_http() {
    check_contents("otlp-http", "otlp+http");
}

#[test]
fn collectors_receive_the_recording_by_grpc() {
    check_contents("otlp-grpc", "otlp+grpc");
}

#[test]
fn parca_receives_the_recording() {
    check_contents("parca", "parca+grpc");
}

/// Size of all files of the queue.
fn queue_bytes(folder: &Path) -> u64 {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().filter_map(Result::ok).map(|it| it.path());
    let files = entries(folder).flat_map(|folder| entries(&folder).collect::<Vec<_>>());
    files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
}

#[test]
fn windows_arrive_in_order_after_the_server_was_off() {
    for (kind, scheme) in KINDS {
        let mut target = Target::start("slots.c");
        let mut receiver = Receiver::start(kind, 0);
        let mut heapbpf = heapbpf(&target, &url(scheme, &receiver), "--push-every 200ms");
        let mut session = heapbpf.start();
        target.work("+1:1000");
        receiver.wait_for(2, "ok");
        let (port, mut requests) = (receiver.port, receiver.take());
        drop(receiver);
        session.wait_for("profiles are queued");
        sleep(Duration::from_secs(2));
        assert!(queue_bytes(&heapbpf.file("queue")) > 0, "{kind}: they wait on disk");
        let mut receiver = Receiver::start(kind, port);
        session.wait_for("accepts profiles again");
        receiver.wait_for(10, "ok");
        let outcome = session.interrupt().expect_counted();
        requests.extend(receiver.take());
        let windows = allocated(&requests);
        assert!(windows.len() >= 12, "{kind}: {}", windows.len());
        // A request can be repeated whose answer was lost when the server was killed.
        let mut windows = windows;
        windows.dedup_by_key(|window| window.time);
        assert_consecutive(&windows);
        assert!(!outcome.stdout.contains("dropped ("), "{kind}: {}", outcome.stdout);
        assert_eq!(queue_bytes(&heapbpf.file("queue")), 0, "{kind}");
    }
}

#[test]
fn the_loss_is_bounded_and_counted_when_the_queue_is_full() {
    const LIMIT: u64 = 64 << 10;
    let mut target = Target::start("slots.c");
    let receiver = Receiver::start("otlp-http", 0);
    let (port, address) = (receiver.port, url("otlp+http", &receiver));
    drop(receiver);
    let mut heapbpf = heapbpf(&target, &address, &format!("--push-every 100ms --push-queue-max {LIMIT}"));
    let mut session = heapbpf.start();
    target.work("+1:1000 +20:200");
    session.wait_for("profiles are queued");
    session.wait_for("the queue of `--push` is full");
    let deadline = Instant::now() + Duration::from_secs(3);
    while Instant::now() < deadline {
        // One more file while a new one replaces the oldest.
        assert!(queue_bytes(&heapbpf.file("queue")) <= LIMIT + (8 << 10));
        sleep(Duration::from_millis(50));
    }
    let mut receiver = Receiver::start("otlp-http", port);
    session.wait_for("accepts profiles again");
    receiver.wait_for(10, "ok");
    let outcome = session.interrupt().expect_counted();
    let requests = receiver.take();
    let windows = allocated(&requests);
    assert!(windows.windows(2).all(|pair| pair[0].time < pair[1].time), "in order");
    let lost = dropped(&outcome, "queue_full");
    let line = outcome.stdout.lines().find(|line| line.starts_with("push: ")).expect("the summary has it");
    let number = |text: &str| text.split(' ').next().and_then(|number| number.parse::<u64>().ok()).expect("a number");
    let total = number(line.trim_start_matches("push: "));
    assert!(lost > 0 && windows.len() as u64 + lost <= total, "{line}");
    // The first windows may end before anything is allocated: these have no profiles.
    assert!(windows.len() as u64 + lost + 5 >= total, "{} received, {line}", windows.len());
}

#[test]
fn refused_windows_are_dropped_and_the_others_repeated() {
    let mut target = Target::start("slots.c");
    let mut receiver = Receiver::start("pyroscope", 0);
    let mut heapbpf = heapbpf(&target, &url("pyroscope+http", &receiver), "--push-every 200ms");
    let mut session = heapbpf.start();
    target.work("+1:1000");
    receiver.wait_for(2, "ok");
    let before = receiver.take();
    receiver.answer("status 503 restarting");
    receiver.wait_for(2, "status");
    receiver.answer("later 1");
    receiver.wait_for(1, "later");
    receiver.answer("ok");
    receiver.wait_for(5, "ok");
    let mut requests = before;
    requests.extend(receiver.take());
    assert_consecutive(&allocated(&requests));
    session.wait_for("HTTP status 503 Service Unavailable: restarting; profiles are queued");

    receiver.answer("status 400 no such tenant");
    receiver.wait_for(2, "status");
    session.wait_for("refused 1 profiles: HTTP status 400 Bad Request: no such tenant");
    receiver.answer("flood");
    receiver.wait_for(2, "flood");
    receiver.answer("hang");
    receiver.wait_for(1, "hang");
    receiver.answer("ok");
    receiver.wait_for(5, "ok");
    let refused: usize = receiver.take().iter().filter(|it| it.answer == "status" || it.answer == "flood").count();
    let outcome = session.interrupt().expect_counted();
    assert_eq!(dropped(&outcome, "refused"), refused as u64, "{}", outcome.stdout);
    let report = heapbpf.report("out.json");
    assert_eq!(report.health.lost.values().sum::<u64>(), 0, "the recording does not notice");
}

#[test]
fn statuses_of_grpc_are_respected() {
    let mut target = Target::start("slots.c");
    let mut receiver = Receiver::start("parca", 0);
    let mut heapbpf = heapbpf(&target, &url("parca+grpc", &receiver), "--push-every 200ms");
    let mut session = heapbpf.start();
    target.work("+1:1000");
    receiver.answer("status 14 overloaded");
    receiver.wait_for(2, "status");
    session.wait_for("gRPC status 14 UNAVAILABLE: overloaded; profiles are queued");
    receiver.answer("ok");
    receiver.wait_for(3, "ok");
    assert_consecutive(&allocated(&receiver.take()));
    receiver.answer("status 3 invalid label");
    receiver.wait_for(1, "status");
    session.wait_for("refused 1 profiles: gRPC status 3 INVALID_ARGUMENT: invalid label");
    let outcome = session.interrupt().expect_counted();
    assert!(dropped(&outcome, "refused") > 0);
}

#[test]
fn profiles_that_a_collector_rejects_are_counted() {
    let mut target = Target::start("slots.c");
    let mut receiver = Receiver::start("otlp-http", 0);
    receiver.answer("reject 1");
    let mut heapbpf = heapbpf(&target, &url("otlp+http", &receiver), "--push-every 200ms");
    let mut session = heapbpf.start();
    target.work("+1:1000");
    session.wait_for("rejected 1 of 1 profiles: not these");
    let outcome = session.interrupt().expect_counted();
    assert_eq!(dropped(&outcome, "rejected"), receiver.take().len() as u64);
}

#[test]
fn what_the_end_leaves_is_sent_by_the_next_run() {
    let mut target = Target::start("slots.c");
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    target::run(openssl.arg("-out").arg(&certificate).arg("-keyout").arg(&key));
    let mut receiver = Receiver::start_tls("parca", 0, [&certificate, &key]);
    let queue = folder.path().join("queue");
    let options = |more: &str| {
        let url = format!("parca+grpcs://localhost:{}", receiver.port);
        format!("--interval 1 -o out.json --push {url} --push-every 200ms --push-queue {} {more}", queue.display())
    };
    // The system does not trust this certificate.
    let mut first = Heapbpf::of(target.pid(), &options(""));
    let mut session = first.start();
    target.work("+1:1000");
    session.wait_for("TLS failed: invalid peer certificate");
    sleep(Duration::from_secs(1));
    let stopping = Instant::now();
    let outcome = session.interrupt().expect_counted();
    assert!(stopping.elapsed() < Duration::from_secs(10), "it does not wait for the server");
    assert!(outcome.stdout.contains("queued for the next run"), "{}", outcome.stdout);
    assert!(queue_bytes(&queue) > 0);
    let second_options = options(&format!("--push-ca {}", certificate.display()));
    let mut second = Heapbpf::of(target.pid(), &second_options);
    let session = second.start();
    target.work("+2:500");
    receiver.wait_for(12, "ok");
    let outcome = session.interrupt().expect_counted();
    let requests = receiver.take();
    let windows = allocated(&requests);
    let first_end = first.report("out.json").ended_unix_ns;
    let earlier: Vec<_> = windows.iter().copied().filter(|window| window.time < first_end).collect();
    assert!(earlier.len() >= 4 && windows.len() > earlier.len(), "{} of {}", earlier.len(), windows.len());
    assert_consecutive(&earlier);
    assert!(windows.windows(2).all(|pair| pair[0].time < pair[1].time), "in order");
    assert!(!outcome.stdout.contains("queued"), "{}", outcome.stdout);
    assert_eq!(queue_bytes(&queue), 0);
}

#[test]
fn a_full_disk_loses_no_more_than_it_must() {
    kernel::require_root();
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let mount = |arguments: &[&str]| target::run(Command::new("mount").args(arguments).arg(folder.path()));
    mount(&["-t", "tmpfs", "-o", "size=64k", "tmpfs"]);
    let mut target = Target::start("slots.c");
    let receiver = Receiver::start("otlp-http", 0);
    let (port, address) = (receiver.port, url("otlp+http", &receiver));
    drop(receiver);
    let queue = folder.path().join("queue");
    let options =
        format!("--interval 1 -o out.json --push {address} --push-every 100ms --push-queue {}", queue.display());
    let mut heapbpf = Heapbpf::of(target.pid(), &options);
    let mut session = heapbpf.start();
    target.work("+1:1000 +20:200");
    session.wait_for("the queue of `--push` failed: No space left on device");
    sleep(Duration::from_secs(1));
    let mut receiver = Receiver::start("otlp-http", port);
    session.wait_for("accepts profiles again");
    receiver.wait_for(10, "ok");
    let outcome = session.interrupt().expect_counted();
    let requests = receiver.take();
    target::run(Command::new("umount").arg(folder.path()));
    assert_consecutive(&allocated(&requests));
    assert!(!outcome.stdout.contains("dropped ("), "memory has room: {}", outcome.stdout);
}

/// What may precede an answer, without end.
#[test]
fn a_server_that_never_comes_to_its_answer_does_not_keep_heapbpf() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = listener.local_addr().expect("it is bound").port();
    // They end with the test's process.
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let heads = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
            std::thread::spawn(move || while (&connection).write_all(&heads).is_ok() {});
        }
    });
    let mut target = Target::start("slots.c");
    let mut heapbpf = heapbpf(&target, &format!("otlp+http://127.0.0.1:{port}"), "--push-every 100ms");
    let session = heapbpf.start();
    target.work("+1:1000");
    let outcome = session.interrupt().expect_counted();
    assert!(outcome.stdout.contains("push: "), "{}", outcome.stdout);
}

#[test]
fn mistakes_are_reported_before_anything_is_attached() {
    let target = Target::start("slots.c");
    let run = |options: &str, code: i32| Heapbpf::of(target.pid(), options).run().expect_error(code);
    let push = "--push otlp+http://127.0.0.1:1 --push-queue queue";
    assert!(run("--push http://host", 2).contains("does not name a back end"));
    assert!(run("--push pyroscope+http://user:secret@host", 2).contains("--push-header-file"));
    assert!(run("--label env=x", 2).contains("--push"));
    assert!(run(&format!("{push} --label a.b=1 --label a_b=2"), 2).contains("have the same name to servers"));
    assert!(run(&format!("{push} --push-header-file /none"), 1).contains("cannot read headers from `/none`"));
    let queue = run("--push otlp+http://h --push-queue /proc/none", 1);
    assert!(queue.trim_end().ends_with("use `--push-queue DIR`"), "the reason is stated once: {queue}");
    assert!(run("--push otlp+https://h --push-queue queue --push-ca /none", 1).contains("certificates from `/none`"));
}
