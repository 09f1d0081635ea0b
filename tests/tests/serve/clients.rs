//! Programs that scrape.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{APPEARS_WITHIN, Served, TOKEN, holding};
use heapbpf_tests::target::Target;

/// Runs `go tool pprof -top` on a URL.
#[track_caller]
fn top(folder: &Path, arguments: &[&str], url: &str) -> String {
    let plain = ["tool", "pprof", "-top", "-nodefraction=0", "-nodecount=0", "-unit=B"];
    let mut go = Command::new("go");
    go.args(plain).args(arguments).arg(url).env("PPROF_TMPDIR", folder).env("HOME", folder);
    let output = go.output().unwrap_or_else(|error| panic!("{go:?}: {error}"));
    assert!(output.status.success(), "{go:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Fails unless the function has this own amount.
#[track_caller]
fn assert_flat(top: &str, function: &str, amount: &str) {
    let line = top.lines().find(|line| line.ends_with(function)).unwrap_or_else(|| panic!("no {function} in\n{top}"));
    assert_eq!(line.split_ascii_whitespace().next(), Some(amount), "{top}");
}

#[test]
fn go_reads_heap_allocs_and_changes() {
    let (mut target, served) = holding("");
    let folder = served.folder.path();
    let heap = top(folder, &[], &served.url("/debug/pprof/heap"));
    assert!(heap.contains("Type: inuse_space"), "{heap}");
    assert_flat(&heap, " many", "5000B");
    let allocs = top(folder, &[], &served.url("/debug/pprof/allocs"));
    assert!(allocs.contains("Type: alloc_space"), "{allocs}");
    assert_flat(&allocs, " many", "105000B");
    // Changes are differences, as those of Go's programs: negative where more was freed.
    let url = served.url("/debug/pprof/heap");
    let text = thread::scope(|scope| {
        let waiting = scope.spawn(|| top(folder, &["-seconds=4", "-sample_index=inuse_space"], &url));
        thread::sleep(Duration::from_secs(2));
        target.work("-11 +2:40");
        waiting.join().expect("no panic")
    });
    assert_flat(&text, " many", "-5000B");
    assert_flat(&text, " few", "40B");
}

/// Killed when dropped.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn prometheus_scrapes_and_promtool_passes() {
    let mut target = Target::start("slots.c");
    // Nothing listens at port 1: what is pushed stays in the queue.
    let options =
        "--token-file {folder}/token --push otlp+http://127.0.0.1:1 --push-every 1s --push-queue {folder}/queue";
    let served = Served::exactly(target.pid(), options);
    target.work("+1:300 +11:5000 +12:100000 -12");
    let scrape = Command::new("curl").args(["-sSf", "-u", &format!(":{TOKEN}"), &served.url("/metrics")]).output();
    let metrics = served.file("metrics");
    fs::write(&metrics, scrape.expect("curl runs").stdout).expect("ours");
    let checked =
        Command::new("promtool").args(["check", "metrics"]).stdin(fs::File::open(&metrics).expect("ours")).output();
    let checked = checked.expect("promtool runs");
    assert!(checked.status.success() && checked.stderr.is_empty(), "{}", String::from_utf8_lossy(&checked.stderr));

    let config = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: heapbpf\n  authorization: {{credentials_file: {}}}\n  \
         static_configs: [{{targets: ['{}']}}]\n",
        served.file("token").display(),
        served.address
    );
    let config_file = served.file("prometheus.yml");
    fs::write(&config_file, config).expect("ours");
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("there is a free port");
    let _prometheus = Prometheus(
        Command::new("prometheus")
            .arg(format!("--config.file={}", config_file.display()))
            .arg(format!("--storage.tsdb.path={}", served.file("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus runs"),
    );
    let query = |query: &str| -> Option<String> {
        let url = format!("http://{address}/api/v1/query");
        let arguments = ["-sSf", "-G", &url, "--data-urlencode", &format!("query={query}")];
        let output = Command::new("curl").args(arguments).output().expect("curl runs");
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        answer["data"]["result"][0]["value"][1].as_str().map(str::to_owned)
    };
    let deadline = Instant::now() + APPEARS_WITHIN;
    let live = format!("heapbpf_live_bytes{{pid=\"{}\"}}", target.pid());
    while query(&live).as_deref() != Some("5300") {
        assert!(Instant::now() < deadline, "{:?}, {:?}", query(&live), query("up"));
        thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(query("sum(heapbpf_allocated_bytes_total)").as_deref(), Some("105300"));
    assert_eq!(query("sum(heapbpf_drops_total)").as_deref(), Some("0"));
    assert_eq!(query("heapbpf_recording").as_deref(), Some("1"));
    while query("heapbpf_push_queued_profiles > 0").is_none() {
        assert!(Instant::now() < deadline, "{:?}", query("heapbpf_push_windows_total"));
        thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(query("heapbpf_push_profiles_total").as_deref(), Some("0"));
    assert_eq!(query("sum(heapbpf_push_drops_total)").as_deref(), Some("0"));
}
