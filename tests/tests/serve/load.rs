//! Clients that are slow, many, or send what they should not.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::http::{Reply, connect, exchange};
use super::{Served, holding};
use heapbpf_tests::target::Target;
use rustix::process::{Pid, Signal, kill_process};

/// Sum of a metric over its labels.
#[track_caller]
fn sum(metrics: &str, name: &str) -> f64 {
    let is_metric = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let lines = metrics.lines().filter(is_metric);
    let values = lines.map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()));
    values.map(|value| value.expect("a number")).sum()
}

#[track_caller]
fn drops(metrics: &str) -> f64 {
    sum(metrics, "heapbpf_drops_total")
}

/// Events that arrive beside slow readers.
const EVENTS: f64 = 2000.0;

/// Reads until the status line is complete.
fn status(stream: &mut TcpStream) -> Option<u16> {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => line.push(byte[0]),
            _ => return None,
        }
    }
    str::from_utf8(&line).ok()?.split(' ').nth(1)?.parse().ok()
}

#[test]
fn two_hundred_slow_readers_add_no_drop() {
    let mut target = Target::start("flatout.c");
    let served = Served::start(target.pid(), "-o out.json --on-overload drop --serve unix:{folder}/socket");
    target.work("start");
    thread::sleep(Duration::from_secs(2));
    // Each requests 20 MB, and reads only the first status.
    let wishes = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    let slow = (0..200).map(|_| {
        let mut stream = connect(served.address);
        let _ = stream.write_all(wishes.as_bytes());
        (status(&mut stream), stream)
    });
    let (statuses, slow): (Vec<Option<u16>>, Vec<TcpStream>) = slow.unzip();
    let count = |wanted: u16| statuses.iter().filter(|status| **status == Some(wanted)).count();
    assert_eq!((count(200), count(503)), (64, 136), "{statuses:?}");
    // Another socket has connections of its own.
    let socket = served.file("socket").display().to_string();
    let local = || {
        let arguments = ["-sSf", "--max-time", "20", "--unix-socket", &socket, "http://x/metrics"];
        let output = std::process::Command::new("curl").args(arguments).output().expect("curl runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let deadline = Instant::now() + Duration::from_secs(120);
    let events = || {
        let metrics = local();
        assert_eq!(drops(&metrics), 0.0);
        sum(&metrics, "heapbpf_events_total")
    };
    let first = events();
    while events() < first + EVENTS {
        assert!(Instant::now() < deadline, "events do not arrive");
        thread::sleep(Duration::from_millis(100));
    }
    // It takes a processor, and has done its part.
    let signal = |signal| kill_process(Pid::from_raw(target.pid().cast_signed()).expect("positive"), signal);
    signal(Signal::STOP).expect("it runs");
    // Those who do not read are disconnected, though they hold their sockets.
    loop {
        let mut stream = connect(served.address);
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        if status(&mut stream) == Some(200) {
            break;
        }
        assert!(Instant::now() < deadline, "slow readers keep all connections");
        thread::sleep(Duration::from_secs(1));
    }
    drop(slow);
    assert_eq!(drops(&local()), 0.0);
    signal(Signal::CONT).expect("it runs");
    let Served { heapbpf, session, .. } = served;
    let _ = session.interrupt().expect_counted();
    heapbpf.report("out.json").assert_complete();
}

#[test]
fn malformed_and_oversized_requests_have_their_status() {
    let (_target, served) = holding("");
    let long_header = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let many_headers = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: y\r\n".repeat(500));
    let long_path = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(1 << 20));
    let declared = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n".to_owned();
    let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
    let chunked = format!(
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
        chunk.repeat(3)
    );
    let small =
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc".to_owned();
    for (name, bytes, expected) in [
        ("long header", long_header, &[431][..]),
        ("many headers", many_headers, &[431]),
        ("long path", long_path, &[414, 431]),
        ("declared body", declared, &[413]),
        ("chunked body", chunked, &[413]),
        ("small body", small, &[200]),
        ("no HTTP", "hello\r\n\r\n".to_owned(), &[400]),
        (
            "both lengths",
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_owned(),
            &[400],
        ),
        ("no version", "GET /\r\n\r\n".to_owned(), &[400]),
        ("zero bytes", "GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), &[400]),
    ] {
        let answer = exchange(served.address, bytes.as_bytes());
        // A client that sends for longer than the server waits may lose the answer when the connection is closed.
        assert!(!answer.is_empty() || bytes.len() > 1 << 19, "{name}: no answer");
        assert!(
            answer.is_empty() && bytes.len() > 1 << 19 || expected.contains(&Reply::parse(&answer).status),
            "{name}: {}",
            String::from_utf8_lossy(&answer)
        );
        served.get("/healthz").expect(200);
    }
    // HTTP/2 is not served: its clients get no answer.
    assert_eq!(exchange(served.address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), b"");
    // Requests in a row are answered in order.
    let row = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answer = String::from_utf8(exchange(served.address, row.as_bytes())).expect("text");
    let statuses: Vec<&str> = answer.lines().filter_map(|line| line.strip_prefix("HTTP/1.1 ")).collect();
    assert_eq!(statuses, ["200 OK", "404 Not Found"]);
}

#[test]
fn requests_that_never_end_are_closed() {
    let (_target, served) = holding("");
    let mut head = connect(served.address);
    let mut body = connect(served.address);
    body.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n").expect("it listens");
    let start = Instant::now();
    // A byte each second is not enough.
    let closed = loop {
        let sent = head.write_all(b"G");
        head.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
        match (sent, head.read(&mut [0; 512])) {
            (Err(_), _) | (_, Ok(_)) => break start.elapsed(),
            (_, Err(error)) if error.kind() == ErrorKind::ConnectionReset => break start.elapsed(),
            _ => assert!(start.elapsed() < Duration::from_secs(60), "it waits for ever"),
        }
    };
    assert!(closed > Duration::from_secs(5), "{closed:?}");
    assert_eq!(status(&mut body), Some(408));
}
