//! Functions of TypeScript in stacks of a minified bundle, by its source map: beside the bundle, inside it, and hostile.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, text};
use heapbpf_tests::interpreters::{NODE_VERSIONS, node, tested};
use heapbpf_tests::report::Report;
use heapbpf_tests::target::Target;
use tempfile::TempDir;

/// What `bundle.js` leaks, of which the minified functions are `a`, `n`, `addEntry` and `f`: function, file, and the line of the call.
const LEAKS: [(&str, &str, u32); 4] = [
    ("leakBuffers", "leak.ts", 10),
    ("leakArrow", "leak.ts", 15),
    ("addEntry", "leak.ts", 22),
    ("handleLine", "main.ts", 10),
];
const COMMENT: &str = "//# sourceMappingURL=bundle.js.map";

fn source(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/targets/typescript")).join(name)
}

/// The bundle in a folder of its own.
struct Bundle(TempDir);

impl Bundle {
    fn new() -> Self {
        let bundle = Self(tempfile::tempdir().expect("temporary folder"));
        bundle.write("bundle.js", &text(&source("bundle.js")));
        bundle.write("bundle.js.map", &text(&source("bundle.js.map")));
        bundle
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).expect("it is ours");
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.0.path().join(name)).expect("it is ours");
    }

    /// A recording of the bundle's leaks, and the report that `convert` makes of it when the files are gone.
    fn record(&self, node: &Path, options: &str) -> (Report, Report, String) {
        let mut command = Command::new(node);
        // Lines of optimized code in loops are those of the loop.
        command.args(["--no-opt", "--max-lazy"]).arg(self.0.path().join("bundle.js"));
        let mut target = Target::spawn(&mut command);
        target.run_command("100");
        let arguments = format!("--interval 1 {options} -o out.json -o out.heapbpf");
        let mut heapbpf = Heapbpf::of(target.pid(), &arguments);
        let session = heapbpf.start();
        target.run_command("100");
        let outcome = session.interrupt();
        drop(target);
        let report = heapbpf.report("out.json");
        let recording = heapbpf.file("out.heapbpf");
        for file in fs::read_dir(self.0.path()).expect("it is ours") {
            fs::remove_file(file.expect("it is ours").path()).expect("it is ours");
        }
        let mut convert =
            Heapbpf::new(["convert".as_ref(), recording.as_os_str(), "-o".as_ref(), "again.json".as_ref()]);
        let _ = convert.run();
        (report, convert.report("again.json"), outcome.stdout)
    }
}

/// Functions of the bundle in stacks, with the names of their files.
fn functions(report: &Report) -> BTreeSet<(String, String, u32)> {
    let frames = report.targets.iter().flat_map(|target| &target.callsites).flat_map(|callsite| &callsite.stack);
    let of_program = frames.filter_map(|frame| {
        let (function, file) = (frame.function.clone()?, frame.file.as_deref()?);
        let is_own = frame.module.as_deref() == Some("[javascript]") && file.starts_with('/');
        is_own.then(|| (function, file.rsplit('/').next().unwrap_or(file).to_owned(), frame.line.unwrap_or(0)))
    });
    of_program.collect()
}

fn versions() -> Vec<PathBuf> {
    let installed = NODE_VERSIONS.map(node);
    tested([PathBuf::from("/usr/bin/node")].into_iter().chain(installed))
}

#[track_caller]
fn check_translated(case: &str, report: &Report) {
    let found = functions(report);
    for (function, file, line) in LEAKS {
        assert!(found.contains(&(function.to_owned(), file.to_owned(), line)), "{case}: no {function} in {found:?}");
    }
    assert!(found.iter().all(|(_, file, _)| file.ends_with(".ts")), "{case}: {found:?}");
}

#[track_caller]
fn check_minified(case: &str, report: &Report) {
    let found = functions(report);
    for function in ["a", "n", "addEntry", "f"] {
        let expected = (function.to_owned(), "bundle.js".to_owned(), 1);
        assert!(found.contains(&expected), "{case}: no {function} in {found:?}");
    }
    assert!(found.iter().all(|(_, file, _)| file == "bundle.js"), "{case}: {found:?}");
}

#[test]
fn functions_of_a_bundle_are_those_of_its_sources() {
    for node in versions() {
        let (report, again, _) = Bundle::new().record(&node, "");
        let case = node.display().to_string();
        check_translated(&case, &report);
        check_translated(&format!("{case}, converted"), &again);
    }
}

#[test]
fn a_bundle_can_contain_its_map() {
    let bundle = Bundle::new();
    let map = text(&source("bundle.js.map")).replace('%', "%25").replace('"', "%22").replace(['\n', ' '], "");
    let inline = format!("//# sourceMappingURL=data:application/json,{map}");
    bundle.write("bundle.js", &text(&source("bundle.js")).replace(COMMENT, &inline));
    bundle.remove("bundle.js.map");
    let (report, again, _) = bundle.record(&versions()[0], "");
    check_translated("inline", &report);
    check_translated("inline, converted", &again);
}

#[test]
fn source_maps_can_be_left_out() {
    let (report, again, _) = Bundle::new().record(&versions()[0], "--no-source-maps");
    check_minified("without maps", &report);
    check_minified("without maps, converted", &again);
}

#[test]
fn hostile_maps_cost_their_mappings_and_are_reported() {
    let own = text(&source("bundle.js.map"));
    let nested = "[".repeat(1 << 20);
    for (map, reason) in [
        ("{\"version\":4,\"mappings\":\"AAAA\"}", "no source map of version 3"),
        (&*nested, "no source map of version 3"),
        (&own.replace("\"src/leak.ts\", \"src/main.ts\"", ""), "malformed mappings"),
    ] {
        let bundle = Bundle::new();
        bundle.write("bundle.js.map", map);
        let (report, _, summary) = bundle.record(&versions()[0], "");
        check_minified(reason, &report);
        assert!(summary.contains(reason) && summary.contains("bundle.js.map"), "{reason}: {summary}");
    }
    // Another build was installed while the program ran.
    let bundle = Bundle::new();
    let mut command = Command::new(&versions()[0]);
    let mut target = Target::spawn(command.arg("--no-opt").arg(bundle.0.path().join("bundle.js")));
    bundle.write("bundle.js", &format!("// Another build.\n{}", text(&source("bundle.js"))));
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    target.run_command("100");
    let outcome = session.interrupt();
    check_minified("another build", &heapbpf.report("out.json"));
    assert!(outcome.stdout.contains("the script was changed after the program loaded it"), "{}", outcome.stdout);
}
