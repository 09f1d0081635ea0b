//! Every path.

use std::io::{BufRead as _, BufReader, Write as _};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::http::{connect, get, request};
use super::{Served, holding};
use heapbpf_tests::redis::Redis;

/// All formats, with their types and the beginning of their files.
const FORMATS: [(&str, &str, &[u8]); 17] = [
    ("svg", "image/svg+xml", b"<?xml"),
    ("html", "text/html; charset=utf-8", b"<!doctype html>"),
    ("folded", "text/plain; charset=utf-8", b""),
    ("json", "application/json", b"{\"version\""),
    ("pb.gz", "application/octet-stream", &[0x1f, 0x8b]),
    ("pprof", "application/octet-stream", &[0x1f, 0x8b]),
    ("speedscope.json", "application/json", b"{"),
    ("fxprofile.json", "application/json", b"{"),
    ("perfetto-trace", "application/octet-stream", &[0x0a]),
    ("memory-infra.json", "application/json", b"{"),
    ("dhat.json", "application/json", b"{"),
    ("massif.out", "text/plain; charset=utf-8", b"desc:"),
    ("heap", "text/plain; charset=utf-8", b"heap profile:"),
    ("csv", "text/csv; charset=utf-8", b""),
    ("functions.csv", "text/csv; charset=utf-8", b""),
    ("otlp", "application/x-protobuf", b""),
    ("parquet", "application/octet-stream", b"PAR1"),
];

#[test]
fn formats_are_those_of_files() {
    let (target, served) = holding("");
    for (extension, content_type, start) in FORMATS {
        let path = format!("/api/report.{extension}");
        let reply = served.get(&path).expect(200);
        assert_eq!(reply.header("content-type"), Some(content_type), "{path}");
        assert!(reply.body.starts_with(start) && !reply.body.is_empty(), "{path}");
        assert_eq!(reply.header("content-length"), Some(&*reply.body.len().to_string()), "{path}");
        let of_pid = served.get(&format!("{path}?target={}", target.pid())).expect(200);
        let name = of_pid.header("content-disposition").expect("a file name");
        assert!(name.contains(&format!("filename=\"heapbpf-{}.", target.pid())), "{name}");
    }
    served.get("/api/report.heaptrack.zst").expect(404);
    served.get("/api/report.txt").expect(404);
    served.get("/api/report.json?target=1").expect(404);
    served.get("/api/report.json?vew=live-bytes").expect(400);
    let folded = |view: &str| served.get(&format!("/api/report.folded?view={view}")).expect(200).text().to_owned();
    assert!(folded("live-bytes").contains("many 5000\n") && folded("alloc-bytes").contains("many 105000\n"));
    // What is served last is what is written in the end.
    let live = served.report().process(target.pid()).totals.exact();
    assert_eq!((live.live_bytes, live.alloc_bytes), (5300, 105_300));
    let Served { heapbpf, session, .. } = served;
    let _ = session.interrupt().expect_counted();
    assert_eq!(heapbpf.report("out.json").process(target.pid()).totals.exact(), live);
}

#[test]
fn the_page_and_its_documents_are_served() {
    let (mut target, served) = holding("");
    let page = served.get("/").expect(200);
    assert!(page.text().contains("data-live") && page.text().contains("connect-src 'self'"));
    let document = served.get("/api/document").expect(200);
    let sequence = document.header("heapbpf-sequence").expect("a sequence").to_owned();
    assert_eq!(document.header("heapbpf-recording"), Some("true"));
    let packed = request(served.address, "GET", "/api/document", "Accept-Encoding: br, gzip;q=0.5").expect(200);
    assert_eq!((packed.header("content-encoding"), &packed.body[..2]), (Some("gzip"), &[0x1f, 0x8b][..]));
    let document: Value = serde_json::from_slice(&document.body).expect("JSON");
    assert_eq!(document["targets"][0]["pid"], target.pid());
    // Nothing newer: the target is idle. An update for what it did before may still come.
    thread::sleep(Duration::from_secs(5));
    let latest = served.get("/api/document").expect(200).header("heapbpf-sequence").expect("a sequence").to_owned();
    assert!(latest.parse::<u64>().ok() >= sequence.parse().ok());
    served.get(&format!("/api/document?since={latest}")).expect(204);
    target.work("+3:77");
    let mut lines = BufReader::new(events(&served)).lines().map_while(Result::ok);
    let newer =
        |line: &String| number(line, "\"sequence\":").is_some_and(|found| found > latest.parse().expect("ours"));
    let update = lines.find(newer).expect("an update");
    assert!(update.ends_with(",\"recording\":true}"), "{update}");
    served.get(&format!("/api/document?since={latest}")).expect(200);
    let address = served.address;
    let ended = thread::spawn(move || {
        let end = lines.by_ref().find(|line| line == "event: end");
        // The page fetches the last document.
        (end, get(address, "/api/document").expect(200).header("heapbpf-recording").map(str::to_owned))
    });
    let _ = served.session.interrupt().expect_counted();
    let (end, is_recording) = ended.join().expect("no panic");
    assert_eq!((end.as_deref(), is_recording.as_deref()), (Some("event: end"), Some("false")));
}

#[track_caller]
fn events(served: &Served) -> std::net::TcpStream {
    let mut stream = connect(served.address);
    write!(stream, "GET /api/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it listens");
    stream
}

fn number(line: &str, before: &str) -> Option<u64> {
    let rest = line.split_once(before)?.1;
    rest[..rest.find(|c: char| !c.is_ascii_digit())?].parse().ok()
}

#[test]
fn updates_follow_a_real_program() {
    let redis = Redis::start();
    let served = Served::start(redis.pid(), "-o out.folded");
    let mut lines = BufReader::new(events(&served)).lines().map_while(Result::ok);
    let mut sequences = Vec::new();
    for keys in [10_000, 20_000, 30_000] {
        redis.set_keys(keys);
        let line = lines.find(|line| line.starts_with("data: ")).expect("an update");
        sequences.push(number(&line, "\"sequence\":").expect("a number"));
        let document = served.get("/api/document").expect(200);
        assert!(document.text().contains("redis-server"));
    }
    assert!(sequences.is_sorted_by(|a, b| a < b), "{sequences:?}");
    redis.assert_answers();
}

#[test]
fn health_and_other_paths_have_their_status() {
    let (_target, served) = holding("");
    assert_eq!(served.get("/healthz").expect(200).text(), "{\"recording\":true}\n");
    assert_eq!(served.get("/debug/pprof").expect(301).header("location"), Some("/debug/pprof/"));
    assert!(served.get("/debug/pprof/").expect(200).text().contains("href=\"allocs\""));
    assert!(served.get("/debug/pprof/heap?debug=1").expect(200).text().starts_with("heap profile: "));
    for path in ["/debug/pprof/heap?seconds=4000", "/debug/pprof/heap?seconds=x", "/debug/pprof/heap?debug=9"] {
        served.get(path).expect(400);
    }
    for path in ["/nothing", "/api/", "/etc/passwd", "/../../etc/passwd", "/debug/pprof/profile", "/%2e%2e/"] {
        let reply = served.get(path).expect(404);
        assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
    }
    let head = request(served.address, "HEAD", "/metrics", "").expect(200);
    assert!(head.body.is_empty() && head.header("content-length").is_some());
    for (method, path, allowed) in
        [("POST", "/", "GET, HEAD"), ("OPTIONS", "/metrics", "GET, HEAD"), ("PUT", "/", "GET, HEAD")]
    {
        assert_eq!(request(served.address, method, path, "").expect(405).header("allow"), Some(allowed));
    }
    let secure = served.get("/metrics");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-store"),
        ("x-frame-options", "DENY"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(secure.header(name), Some(value));
    }
    assert_eq!(secure.header("access-control-allow-origin"), None);
}
