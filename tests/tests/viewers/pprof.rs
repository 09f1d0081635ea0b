//! pprof's format in `go tool pprof`, its web interface, npm's pprof-format and speedscope.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::binary;
use heapbpf_tests::viewers;
use serde_json::Value;

use super::fixture::{Fixture, VIEWS, number, read};

/// Sample types in their order, with the JSON report's fields.
const SAMPLE_TYPES: [(&str, &str); 4] = [
    ("alloc_objects", "alloc_count"),
    ("alloc_space", "alloc_bytes"),
    ("inuse_objects", "live_count"),
    ("inuse_space", "live_bytes"),
];

/// Timeout until Go's tool listens.
const LISTENING_MAX: Duration = Duration::from_secs(60);

/// Runs `go tool pprof` on a file, with all nodes and plain units.
#[track_caller]
fn go(arguments: &[&str], files: &[&Path]) -> String {
    let plain = ["-nodefraction=0", "-edgefraction=0", "-nodecount=0", "-unit=B"];
    viewers::text(viewers::program("go").args(["tool", "pprof"]).args(plain).args(arguments).args(files))
}

/// Parses a number printed by Go: `1234B`, `-12`.
#[track_caller]
fn plain(text: &str) -> f64 {
    text.trim_end_matches('B').parse().unwrap_or_else(|error| panic!("{error}: `{text}`"))
}

/// Parses `-top`: the total, and each function's own and cumulative amounts.
#[track_caller]
fn top(text: &str) -> (f64, BTreeMap<String, [f64; 2]>) {
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with("Showing nodes")).expect("a line with the number of nodes");
    let total = plain(line.trim_end_matches(" total").rsplit_once(' ').expect("it ends in the total").1);
    let mut functions = BTreeMap::<String, [f64; 2]>::new();
    for line in lines.skip(1) {
        let mut fields = line.split_ascii_whitespace();
        let flat = plain(fields.next().expect("a number"));
        let cum = plain(fields.nth(2).expect("a number"));
        // After its share and two blanks is the name, which may contain blanks.
        let share = fields.next().expect("a share");
        let name = line.rsplit_once(&format!("{share}  ")).expect("two blanks part them").1;
        let name = name.trim_end_matches(" (inline)").trim_end_matches(" (partial-inline)");
        let sums = functions.entry(name.to_owned()).or_default();
        sums[0] += flat;
        sums[1] += cum;
    }
    (total, functions)
}

/// Returns the name of a frame of the JSON report.
fn name(frame: &Value) -> String {
    let text = |field: &str| frame[field].as_str();
    let module = text("module").map(|module| module.rsplit('/').next().unwrap_or(module));
    match (text("function"), module, text("module_offset")) {
        (Some(function), ..) => function.to_owned(),
        (None, Some(module), Some(offset)) => format!("{module}+{offset}"),
        (None, Some(module), None) => format!("{module}+?"),
        (None, None, _) => text("address").expect("frames have addresses").to_owned(),
    }
}

fn names(callsite: &Value) -> Vec<String> {
    callsite["stack"].as_array().expect("a stack is a list").iter().map(name).collect()
}

#[test]
fn every_sample_type_adds_up_to_the_report() {
    for (fixture, is_exact) in [(Fixture::exact(), true), (Fixture::sampled(), false)] {
        let file = fixture.converted("pb.gz", "");
        #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
        let rounding = if is_exact { 0.0 } else { fixture.callsites().count() as f64 / 2.0 };
        for (sample_type, field) in SAMPLE_TYPES {
            let (total, functions) = top(&go(&["-top", &format!("-sample_index={sample_type}")], &[&file]));
            let expected = fixture.total(field);
            assert!((total - expected).abs() <= rounding, "{sample_type}: {total}, not {expected}");
            let own: f64 = functions.values().map(|[flat, _]| flat).sum();
            assert!((own - total).abs() < 0.5, "{sample_type}: {own}, not {total}");
        }
        let (total, _) = top(&go(&["-top"], &[&file]));
        assert!((total - fixture.total("live_bytes")).abs() <= rounding, "live bytes come first");
    }
}

#[test]
fn functions_and_drops_are_listed() {
    let fixture = Fixture::exact();
    let raw = go(&["-raw"], &[&fixture.converted("pb.gz", "")]);
    let verdict = format!("Comment: verdict: {}", fixture.report.health.verdict().statement);
    let types = "alloc_objects/count alloc_space/bytes inuse_objects/count inuse_space/bytes[dflt]";
    for line in [types, "PeriodType: space bytes", "Period: 1", "Comment: interval: every allocation", &verdict] {
        assert!(raw.lines().any(|actual| actual == line), "no `{line}`");
    }
    let functions: BTreeSet<String> = fixture.callsites().flat_map(names).collect();
    assert!(functions.iter().any(|name| name.contains("orchard::Branch<orchard::Season<std::pair<")));
    for function in &functions {
        assert!(raw.contains(&format!(" {function} ")), "no `{function}`");
    }
    // All frames have names: Go's tool does not search files for them.
    let mappings = raw.split_once("\nMappings\n").expect("mappings come last").1;
    assert!(mappings.lines().next().is_some_and(|first| first.contains("orchard")), "{mappings}");
    assert!(mappings.lines().all(|line| line.ends_with("[FN][FL][LN][IN]")), "{mappings}");
}

#[test]
fn groups_are_tags() {
    let fixture = Fixture::exact();
    let file = fixture.converted("pb.gz", "");
    let tags = viewers::text(
        viewers::program("go").args(["tool", "pprof", "-nodecount=0", "-tags", "-sample_index=alloc_space"]).arg(&file),
    );
    for text in ["heap: Total", ": libc\n", "bytes: Total", "cgroup: Total", ": 2.93kB\n"] {
        assert!(tags.contains(text), "no `{text}` in {tags}");
    }
    let process = format!("orchard ({})", fixture.pid);
    for text in [&process, &fixture.pid.to_string()] {
        assert!(tags.contains(&format!(": {text}\n")), "no `{text}` in {tags}");
    }
    // Tags can be shown as frames.
    let (_, functions) = top(&go(&["-top", "-sample_index=alloc_space", "-tagroot=process,heap"], &[&file]));
    let allocated = number(&fixture.json["targets"][0]["totals"], "alloc_bytes");
    assert_eq!(functions[&process][1], allocated);
    assert_eq!(functions["libc"][1], fixture.total("alloc_bytes"));
    // Samples can be selected by tags, including numeric ones.
    let focus = format!("-tagfocus=pid={}", fixture.pid);
    let (_, functions) = top(&go(&["-top", "-sample_index=alloc_space", &focus], &[&file]));
    let own: f64 = functions.values().map(|[flat, _]| flat).sum();
    assert_eq!(own, allocated);
}

/// Allocated bytes of the recorded process by thread: its id, and its name if known.
type Threads = BTreeMap<(Option<u64>, String), f64>;

#[test]
fn threads_are_labels_if_separated() {
    let fixture = Fixture::exact();
    let file = fixture.converted("pb.gz", "--by thread");
    let report = read(&fixture.converted("json", "--by thread"));
    let target = report["targets"].as_array().expect("a list").iter().find(|target| target["pid"] == fixture.pid);
    let target = target.expect("it was recorded");
    let mut expected = Threads::new();
    for callsite in target["callsites"].as_array().expect("a list") {
        let thread = callsite["thread"].as_u64().and_then(|at| target["threads"].get(usize::try_from(at).ok()?));
        let key = thread.map_or((None, String::new()), |thread| {
            (thread["tid"].as_u64(), thread["name"].as_str().unwrap_or_default().to_owned())
        });
        *expected.entry(key).or_default() += number(callsite, "alloc_bytes");
    }
    // The kernel keeps 15 bytes of a name.
    for (name, crate_bytes) in [("picker", 20_000.0), ("packer <&> \"2\"", 21_000.0)] {
        let own: Vec<_> = expected.iter().filter(|((_, own), _)| own == name).collect();
        assert!(matches!(own[..], [(_, bytes)] if *bytes >= 200.0 * crate_bytes), "{name}: {own:?}");
    }
    let decoded = viewers::node("pprof.cjs", &[&file]);
    let mut found = Threads::new();
    for sample in decoded["samples"].as_array().expect("there are samples") {
        let labels = &sample["labels"];
        if labels["pid"] == fixture.pid {
            let name = labels["thread"].as_str().unwrap_or_default().to_owned();
            *found.entry((labels["thread_id"].as_u64(), name)).or_default() +=
                sample["values"][1].as_f64().expect("a number");
        }
    }
    expected.retain(|_, bytes| *bytes > 0.0);
    found.retain(|_, bytes| *bytes > 0.0);
    assert_eq!(found, expected);
    // Go's tool can show them as frames and select by them.
    let (_, functions) = top(&go(&["-top", "-sample_index=alloc_space", "-tagroot=thread"], &[&file]));
    for ((_, name), bytes) in expected.iter().filter(|((_, name), _)| name.starts_with('p')) {
        assert_eq!(functions[name][1], *bytes, "{name}");
    }
    let (_, functions) = top(&go(&["-top", "-sample_index=alloc_space", "-tagfocus=thread=^picker$"], &[&file]));
    let own: f64 = functions.values().map(|[flat, _]| flat).sum();
    let picked = expected.iter().find(|((_, name), _)| name == "picker").map(|(_, bytes)| *bytes);
    assert_eq!(Some(own), picked);
}

/// A stack: its process, its heap, and its frames with files and lines.
type Known = (u64, String, Vec<(String, String, u64)>);

#[test]
fn another_decoder_has_every_callsite() {
    let fixture = Fixture::exact();
    let file = fixture.converted("pb.gz", "");
    let decoded = viewers::node("pprof.cjs", &[&file]);
    assert_eq!(decoded["default_sample_type"], "inuse_space");
    let mut found = BTreeMap::<Known, Vec<f64>>::new();
    for sample in decoded["samples"].as_array().expect("there are samples") {
        let text = |frame: &Value, field: &str| frame[field].as_str().unwrap_or_default().to_owned();
        let frames = sample["frames"].as_array().expect("a list").iter();
        let frames =
            frames.map(|frame| (text(frame, "function"), text(frame, "file"), frame["line"].as_u64().unwrap_or(0)));
        // Frames that are not code have no module.
        let frames = frames.filter(|(function, ..)| !function.starts_with('[')).collect();
        let labels = &sample["labels"];
        let known = (labels["pid"].as_u64().expect("a pid"), text(labels, "heap"), frames);
        let values = sample["values"].as_array().expect("a list").iter().map(|value| value.as_f64().expect("a number"));
        add(found.entry(known).or_default(), values.collect());
        assert!(!text(labels, "cgroup").is_empty());
    }
    let mut expected = BTreeMap::<Known, Vec<f64>>::new();
    for target in fixture.json["targets"].as_array().expect("a list") {
        for callsite in target["callsites"].as_array().expect("a list") {
            let values: Vec<f64> = SAMPLE_TYPES.iter().map(|(_, field)| number(callsite, field)).collect();
            if values.iter().all(|value| *value == 0.0) {
                continue;
            }
            let frames = callsite["stack"].as_array().expect("a list").iter();
            let frames = frames.map(|frame| {
                (
                    name(frame),
                    frame["file"].as_str().unwrap_or_default().to_owned(),
                    frame["line"].as_u64().unwrap_or(0),
                )
            });
            let heap = callsite["heap"].as_str().expect("callsites have a heap").to_owned();
            add(expected.entry((target["pid"].as_u64().expect("a pid"), heap, frames.collect())).or_default(), values);
        }
    }
    assert!(
        found == expected,
        "{} stacks, not {}; first {:?}",
        found.len(),
        expected.len(),
        expected.iter().find(|(known, values)| found.get(known) != Some(values))
    );
    let ids = decoded["mappings"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|mapping| mapping["build_id"].as_str() != Some(""));
    assert!(ids.count() >= 3, "the program and its libraries have build ids: {}", decoded["mappings"]);
}

fn add(sums: &mut Vec<f64>, values: Vec<f64>) {
    sums.resize(values.len(), 0.0);
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

#[test]
fn speedscope_reads_it() {
    let fixture = Fixture::exact();
    let read = viewers::python("speedscope.py", &[&fixture.converted("pb.gz", "")]);
    assert_eq!(read["complaints"].as_array().map(Vec::len), Some(0), "{}", read["complaints"]);
    let stacks = read["profiles"][0]["stacks"].as_array().expect("it has stacks");
    let sum: f64 = stacks.iter().map(|stack| stack[1].as_f64().expect("a weight")).sum();
    assert_eq!(sum, fixture.total("live_bytes"));
    let frames: BTreeSet<&str> =
        stacks.iter().flat_map(|stack| stack[0].as_array().expect("frames")).filter_map(Value::as_str).collect();
    assert!(frames.iter().any(|name| name.contains("orchard::Branch<orchard::Season<std::pair<")), "{frames:?}");
}

/// `go tool pprof` as a server, terminated on drop.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    #[track_caller]
    fn start(file: &Path) -> Self {
        // The port is free at this time; if another program takes it before Go does, the test fails.
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let address = listener.local_addr().expect("it has an address").to_string();
        drop(listener);
        let mut command: Command = viewers::program("go");
        command.args(["tool", "pprof", "-no_browser", &format!("-http={address}")]).arg(file);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it can be started");
        let server = Self { process, address };
        let since = Instant::now();
        while TcpStream::connect(&server.address).is_err() {
            assert!(since.elapsed() < LISTENING_MAX, "go tool pprof does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }

    /// Returns the status line and the page.
    #[track_caller]
    fn get(&self, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address).expect("it reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (status, page) = answer.split_once("\r\n").expect("an answer has a status");
        (status.to_owned(), page.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // `timeout` forwards the signal to its child.
        let pid = i32::try_from(self.process.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.process.wait();
    }
}

#[test]
fn the_web_interface_shows_it() {
    let server = Server::start(&Fixture::exact().converted("pb.gz", ""));
    for (path, expected) in [
        ("/ui/", "picks"),
        ("/ui/top", "picks"),
        ("/ui/flamegraph", "picks"),
        ("/ui/flamegraph?si=alloc_objects", "picks"),
        ("/ui/peek?f=picks", "orchard::ripen"),
    ] {
        let (status, page) = server.get(path);
        assert!(status.ends_with(" 200 OK"), "{path}: {status}\n{page:.1000}");
        assert!(page.contains(expected), "no `{expected}` in {path}: {page:.1000}");
    }
}

/// Returns growth by function, own and cumulative, from `heapbpf diff`.
fn growth(before: &Path, after: &Path, view: &str, quantity: &str) -> BTreeMap<String, [f64; 2]> {
    let report: PathBuf = after.with_extension("growth.json");
    let _ = viewers::text(
        Command::new(binary()).arg("diff").args([before, after]).args(["--view", view]).arg("-o").arg(&report),
    );
    let mut functions = BTreeMap::<String, [f64; 2]>::new();
    for callsite in read(&report)["callsites"].as_array().expect("a list") {
        let growth = number(&callsite[quantity], "growth");
        let names = names(callsite);
        if let Some(leaf) = names.first() {
            functions.entry(leaf.clone()).or_default()[0] += growth;
        }
        for name in names.into_iter().collect::<BTreeSet<_>>() {
            functions.entry(name).or_default()[1] += growth;
        }
    }
    functions.retain(|name, growth| *growth != [0.0, 0.0] && !name.starts_with('['));
    functions
}

#[test]
fn growth_equals_heapbpf_diff() {
    let fixture = Fixture::exact();
    let reports = fixture.windows("json");
    let [before, after] = fixture.windows("pb.gz");
    let base = format!("-diff_base={}", before.display());
    for (sample_type, quantity) in SAMPLE_TYPES {
        let (_, mut found) = top(&go(&["-top", &base, &format!("-sample_index={sample_type}")], &[&after]));
        // Markers of missing frames are frames here, and a field there.
        found.retain(|name, growth| *growth != [0.0, 0.0] && !name.starts_with('['));
        let (view, _) = VIEWS.into_iter().find(|(_, field)| *field == quantity).expect("each is a view");
        let expected = growth(&reports[0], &reports[1], view, quantity);
        assert!(expected.len() > 100, "{} functions", expected.len());
        let first = expected.iter().find(|(name, growth)| found.get(*name) != Some(growth));
        assert_eq!(first.map(|(name, growth)| (name, growth, found.get(name))), None, "{sample_type}");
        assert_eq!(found.len(), expected.len(), "{sample_type}");
    }
}
