//! Function names that no compiler generates, in `named.c`: every format has them unchanged, or as docs/formats.md
//! specifies, and formats opened by browsers treat them as text only.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use heapbpf_tests::heapbpf::{Heapbpf, binary, text};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::Target;
use heapbpf_tests::{shared, viewers};
use serde_json::{Value, json};

use super::fixture::read;
use super::flamegraph;

/// As in `named.c`, except one that is too long for here.
const NAMES: [&str; 11] = [
    "</script><script>window.owned = 1</script>",
    "<img src=x onerror=window.owned=2>",
    "]]><script>window.owned = 3</script><![CDATA[",
    "a;b c 12",
    "it's an & and <T>",
    "größe_日本語_🦀",
    "{{constructor.constructor(`window.owned=8`)()}}",
    "--></text></svg><svg onload=window.owned=9>",
    "javascript:window.owned=10",
    "core::ops::function::FnOnce<(T, &'a str)>::call_once",
    "%s%n&lt;b&gt;%3Cscript%3E",
];

/// Extensions of formats that have names unchanged.
const WHOLE: [&str; 6] = ["json", "pb.gz", "speedscope.json", "fxprofile.json", "perfetto-trace", "otlp"];

/// A name of 10,000 bytes.
fn long() -> String {
    "0123456789".repeat(1000)
}

/// All of them.
fn names() -> Vec<String> {
    NAMES.into_iter().map(str::to_owned).chain([long()]).collect()
}

/// Shortens names for assertion messages.
fn brief(names: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    names.into_iter().map(|name| if name == long() { "(the long one)".to_owned() } else { name }).collect()
}

/// Returns a name as in folded text, where `;` separates frames and a number after a blank is a value.
fn in_folded_text(name: &str) -> String {
    name.replace(';', ":").replace("c 12", "c_12")
}

/// Returns the path of the recording.
#[track_caller]
fn recording() -> &'static Path {
    static RECORDING: OnceLock<PathBuf> = OnceLock::new();
    RECORDING.get_or_init(|| {
        let directory = shared::folder("named", &shared::of_recordings(), |directory| {
            let mut target = Target::spawn(&mut Command::new(Recipe::of("named.c").flags("-g0").build()));
            let file = directory.join("named.heapbpf");
            let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 1 -o {}", file.display()));
            let session = heapbpf.start();
            target.work("go");
            let _ = session.interrupt().expect_code(0);
        });
        directory.join("named.heapbpf")
    })
}

#[track_caller]
fn converted(extension: &str) -> PathBuf {
    let path = recording().with_file_name(format!("{}.{extension}", std::process::id()));
    let mut convert = Command::new(binary());
    convert.env("NO_COLOR", "1").arg("convert").arg(recording()).arg("-o").arg(&path);
    let _ = viewers::text(&mut convert);
    path
}

#[test]
fn formats_that_can_represent_every_name_do() {
    let names = json!(names()).to_string();
    for extension in WHOLE {
        let path = converted(extension);
        let missing = viewers::python("names.py", &[path.as_os_str(), names.as_ref()]);
        let missing = missing.as_array().expect("it is a list").iter().filter_map(Value::as_str);
        assert_eq!(brief(missing.map(str::to_owned)), BTreeSet::new(), "not in `.{extension}`");
    }
}

#[test]
fn json_has_each_name_once_and_unchanged() {
    let report = read(&converted("json"));
    let callsites = report["targets"][0]["callsites"].as_array().expect("it has callsites");
    let found = callsites.iter().filter_map(|it| it["stack"][0]["function"].as_str().map(str::to_owned));
    let expected = names().into_iter().chain(["plain".to_owned()]);
    assert_eq!(brief(found), brief(expected));
}

#[test]
fn folded_lines_stay_well_formed() {
    let path = converted("folded");
    let lines = text(&path);
    let read = viewers::python("speedscope.py", &[&path]);
    let stacks = read["profiles"][0]["stacks"].as_array().expect("it has stacks");
    assert_eq!(stacks.len(), lines.lines().count());
    let leaf = |stack: &Value| stack[0].as_array().and_then(|frames| frames.last()?.as_str().map(str::to_owned));
    let expected = names().into_iter().map(|name| in_folded_text(&name)).chain(["plain".to_owned()]);
    assert_eq!(brief(stacks.iter().filter_map(leaf)), brief(expected));
}

#[test]
fn a_flame_graph_shows_names_and_executes_none() {
    let opened = flamegraph::open(&converted("svg"), "call_once", "named (");
    let titles = flamegraph::frames(&opened["frames"]);
    let found: BTreeSet<&str> =
        titles.iter().map(|frame| frame.title.rsplit_once(" (").expect("titles end in numbers").0).collect();
    // Names longer than 1,000 characters are truncated.
    let expected = NAMES.iter().map(|name| in_folded_text(name)).chain([format!("{}…", &long()[..999])]);
    for name in expected {
        assert!(found.contains(name.as_str()), "no `{name:.100}` among {found:.200?}");
    }
    assert_eq!(opened["found"].as_array().map(Vec::len), Some(1), "{}", opened["found"]);
}
