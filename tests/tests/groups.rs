//! Grouping of stacks in sessions, recordings and reports, to the byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use heapbpf_tests::heapbpf::{Heapbpf, binary, text};
use heapbpf_tests::target::Target;

const BAKED: u64 = 10 * 1000;
const FORGED: u64 = 3 * 70_000;

/// Runs two threads, which are named only after they have allocated.
fn worked(arguments: &str) -> (Target, Heapbpf) {
    let mut target = Target::start("workers.c");
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 1 -o out.heapbpf -o out.json {arguments}"));
    let session = heapbpf.start();
    let _ = target.work("baker 10 1000");
    let _ = target.work("smith 2 70000");
    let _ = target.work("names");
    let _ = target.work("smith 1 70000");
    let _ = session.interrupt().expect_code(0);
    (target, heapbpf)
}

fn convert(heapbpf: &Heapbpf, input: &str, arguments: &str) -> Output {
    let directory = heapbpf.file("");
    let mut command = Command::new(binary());
    command.current_dir(directory).env("NO_COLOR", "1").env_remove("RUST_LOG").args(["convert", input]);
    command.args(arguments.split_ascii_whitespace()).output().expect("it can be started")
}

/// Converts a file to folded text.
#[track_caller]
fn folded(heapbpf: &Heapbpf, input: &str, by: &str) -> String {
    let output = convert(heapbpf, input, &format!("-q -o - --by {by}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("folded stacks are text")
}

/// Sums bytes by the outermost frame.
#[track_caller]
fn roots(folded: &str) -> BTreeMap<&str, u64> {
    let mut roots = BTreeMap::new();
    for line in folded.lines() {
        let (stack, value) = line.rsplit_once(' ').expect("a line has a value");
        let root = stack.split(';').next().expect("a stack has a frame");
        *roots.entry(root).or_default() += value.parse::<u64>().expect("a number");
    }
    roots
}

/// Ids of the target's threads except the first, by name.
fn threads(target: &Target) -> BTreeMap<String, u32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).expect("it runs");
    let tids = tasks.map(|task| task.expect("readable").file_name().into_string().expect("a number"));
    let named = |tid: String| {
        let name = text(Path::new(&format!("/proc/{}/task/{tid}/comm", target.pid())));
        (name.trim_end().to_owned(), tid.parse().expect("a number"))
    };
    tids.map(named).filter(|(_, tid)| *tid != target.pid()).collect()
}

#[track_caller]
fn assert_by_thread(target: &Target, folded: &str) {
    let tids = threads(target);
    // The frame separator of folded text is replaced by a colon there.
    let expected = [("baker", "baker", BAKED), ("smith; <1>", "smith: <1>", FORGED)]
        .map(|(name, frame, bytes)| (format!("{frame} ({})", tids[name]), bytes));
    let actual: BTreeMap<String, u64> =
        roots(folded).into_iter().map(|(root, bytes)| (root.to_owned(), bytes)).collect();
    assert_eq!(actual, expected.into(), "{folded}");
    let process = format!(";workers ({});", target.pid());
    assert!(folded.lines().all(|line| line.contains(&process)), "{folded}");
}

/// Reads a JSON report without the fields on symbolization, which recordings lack.
fn report(heapbpf: &Heapbpf, name: &str) -> serde_json::Value {
    let mut report: serde_json::Value = serde_json::from_str(&text(&heapbpf.file(name))).expect("it is JSON");
    let read = report["health"].as_object_mut().expect("it has one").remove("symbolization");
    assert!(read.is_some(), "{name}");
    report
}

#[test]
fn threads_are_separated_to_the_byte() {
    let (target, heapbpf) = worked("-o out.folded --by thread");
    let own = text(&heapbpf.file("out.folded"));
    assert_by_thread(&target, &own);
    assert_eq!(folded(&heapbpf, "out.heapbpf", "thread"), own);
    assert_eq!(folded(&heapbpf, "out.json", "thread"), own);
    // A recording keeps the grouping it was made with.
    let again = convert(&heapbpf, "out.heapbpf", "-q -o again.json");
    assert!(again.status.success());
    assert!(report(&heapbpf, "again.json") == report(&heapbpf, "out.json"), "the reports differ");
}

#[test]
fn any_recording_can_be_grouped_by_thread_and_everything_else() {
    let (target, heapbpf) = worked("");
    assert_by_thread(&target, &folded(&heapbpf, "out.heapbpf", "thread"));
    let refused = convert(&heapbpf, "out.json", "-q -o - --by thread");
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("made without `--by thread`") && stderr.contains("convert a recording"), "{stderr}");

    let groups = text(Path::new(&format!("/proc/{}/cgroup", target.pid())));
    let of = |line: &str, is_it: &dyn Fn(&str) -> bool| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        is_it(controllers).then(|| path.to_owned())
    };
    let memory = groups.lines().find_map(|line| of(line, &|it| it.split(',').any(|one| one == "memory")));
    let group = memory.or_else(|| groups.lines().find_map(|line| of(line, &str::is_empty)));
    let group = group.expect("it is in a group whose memory is accounted for").replace(';', ":");
    let command = text(Path::new(&format!("/proc/{}/cmdline", target.pid())));
    let command = command.split('\0').next().expect("it has a name").to_owned();
    for input in ["out.heapbpf", "out.json"] {
        for (by, root) in [("cgroup", &group), ("command", &command), ("heap", &"libc".to_owned())] {
            let folded = folded(&heapbpf, input, by);
            assert_eq!(roots(&folded), BTreeMap::from([(root.as_str(), BAKED + FORGED)]), "{input}, {by}");
        }
        let nested = folded(&heapbpf, input, "heap,command");
        assert!(nested.lines().all(|line| line.starts_with(&format!("libc;{command};workers ("))), "{nested}");
    }
}
