//! Objects of Python programs by type, read from outside: as many as the programs themselves have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, text};
use heapbpf_tests::interpreters::{Python, VERSIONS};
use heapbpf_tests::target::Target;
use serde_json::Value;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/typed.py")
}

/// Debian's own interpreter, which has no symbols and is optimised at link time.
fn start() -> Target {
    Target::spawn(Command::new("python3").arg(script()))
}

/// What `heapbpf types` prints as JSON of the only runtime.
#[track_caller]
fn types(pid: u32, arguments: &[&str]) -> Value {
    let pid = pid.to_string();
    let words = ["types", "--json", &pid].into_iter().chain(arguments.iter().copied());
    let outcome = Heapbpf::new(words).run().expect_code(0);
    let mut all: Value = serde_json::from_str(&outcome.stdout).expect("it is JSON");
    let runtimes = all["runtimes"].as_array_mut().expect("a list");
    assert_eq!(runtimes.len(), 1);
    runtimes.remove(0)
}

/// Number of objects by type.
fn objects(runtime: &Value) -> BTreeMap<String, u64> {
    let types = runtime["types"].as_array().expect("a list").iter();
    types.map(|one| (one["name"].as_str().expect("text").to_owned(), number(one, "objects"))).collect()
}

fn row<'a>(runtime: &'a Value, name: &str) -> &'a Value {
    let types = runtime["types"].as_array().expect("a list");
    types.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no `{name}`: {types:#?}"))
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("`{name}`: {of}"))
}

/// What the program counts of its own types.
fn own(target: &mut Target) -> BTreeMap<String, u64> {
    let named = target.query("count").into_iter().map(|line| {
        let (name, count) = line.split_once(' ').expect("a name and a number");
        (format!("__main__.{name}"), count.parse().expect("a number"))
    });
    named.collect()
}

const OWN: [&str; 4] = ["__main__.Made", "__main__.Outer.Inner", "__main__.Session", "__main__.Slot"];

#[track_caller]
fn assert_equal(target: &mut Target, runtime: &Value, version: &str) {
    let expected = own(target);
    assert_eq!(expected.keys().collect::<Vec<_>>(), OWN);
    let found = objects(runtime);
    for (name, count) in expected {
        assert_eq!(found.get(&name), Some(&count), "{version}: {name}: {found:#?}");
    }
    // Lists begin with a number, `None` or a type, and then a type: their arrays are no objects of it.
    assert!(!found.contains_key("complex"), "{version}: {found:#?}");
    assert!(found["list"] >= 6300 + number(row(runtime, "__main__.Session"), "objects"), "{version}: {found:#?}");
    // A set of 2,000 numbers has a table of 8,192 entries, or of 32,768 in some versions.
    let bags = row(runtime, "__main__.Bag");
    assert_eq!(number(bags, "objects"), 10);
    assert!(number(bags, "large_bytes") >= 10 * 4096 * 16, "{version}: {bags}");
}

/// The sums are those of `sys._debugmallocstats()`, but for what that call itself needs.
#[test]
fn every_version_has_as_many_objects_as_it_says() {
    for version in VERSIONS {
        let mut target = Target::spawn(&mut Python::of(version).script(&script()));
        for command in ["add 20000", "drop 7000"] {
            target.run_command(command);
        }
        let runtime = types(target.pid(), &[]);
        let own = target.query("stats")[0].parse::<u64>().expect("a number");
        assert_equal(&mut target, &runtime, version);
        let bytes = number(&runtime["blocks"], "bytes");
        assert!(bytes.abs_diff(own) < own / 200, "{version}: {bytes}, not {own}");
        let other = number(&runtime["other"], "bytes");
        // 3,000 arrays of numbers are tables that heapbpf does not know.
        assert!(other < bytes / 20, "{version}: {other} of {bytes} without a type");
        assert_eq!((number(&runtime["unread"], "blocks"), number(&runtime, "one_of")), (0, 1), "{version}");
        // Instances, and what they keep in tables of their own, or in dictionaries.
        let session = row(&runtime, "__main__.Session");
        let least = number(session, "objects") * 48;
        assert!(number(session, "bytes") >= least, "{version}: {session}");
    }
}

#[test]
fn debug_hooks_and_tracemalloc_change_no_count() {
    for (name, value) in [("PYTHONMALLOC", "debug"), ("PYTHONTRACEMALLOC", "1")] {
        let mut target = Target::spawn(Command::new("python3").arg(script()).env(name, value));
        target.run_command("add 3000");
        let runtime = types(target.pid(), &[]);
        assert_equal(&mut target, &runtime, name);
    }
}

/// While three threads allocate and free, each count has all objects that live.
#[test]
fn a_busy_program_is_counted_right() {
    let mut target = start();
    for command in ["add 10000", "churn"] {
        target.run_command(command);
    }
    for _ in 0..10 {
        let runtime = types(target.pid(), &[]);
        let found = objects(&runtime);
        // A pool that changes each time that it is read may have a few of them.
        let unread = number(&runtime["unread"], "blocks");
        let sessions = found["__main__.Session"];
        assert!(sessions <= 10_000 && sessions + unread >= 10_000, "{sessions}, {unread} not read");
        assert!(found["__main__.Slot"] + unread >= 10_000, "{found:#?}");
        let [objects, other, all] =
            [found.values().sum(), number(&runtime["other"], "blocks"), number(&runtime["blocks"], "blocks")];
        assert!(objects + other + unread <= all + all / 10, "{objects}, {other}, {unread}, {all}");
    }
    target.assert_running();
}

/// Size, resident and anonymous memory of each mapping, without the kernel's own code, which heapbpf reads as it reads other modules.
fn memory(pid: u32) -> Vec<String> {
    let smaps = text(Path::new(&format!("/proc/{pid}/smaps")));
    let counted = |line: &&str| ["Size:", "Rss:", "Anonymous:", "Swap:"].iter().any(|name| line.starts_with(name));
    let own = smaps.split("VmFlags:").filter(|mapping| !mapping.contains("[vdso]"));
    own.flat_map(str::lines).filter(counted).map(str::to_owned).collect()
}

#[test]
fn a_program_is_not_touched() {
    let mut target = start();
    for command in ["add 50000", "drop 30000"] {
        target.run_command(command);
    }
    let before = memory(target.pid());
    types(target.pid(), &[]);
    assert!(memory(target.pid()) == before, "its memory has changed");
    target.assert_running();
}

/// What a process shares with others, and what it has alone, in bytes of pages that were written to.
fn written(pid: u32) -> [i64; 2] {
    let rollup = text(Path::new(&format!("/proc/{pid}/smaps_rollup")));
    ["Shared_Dirty:", "Private_Dirty:"].map(|name| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel has it");
        line.trim().trim_end_matches(" kB").parse::<i64>().expect("a number") << 10
    })
}

/// Reading memory by `process_vm_readv` would make the kernel copy all pages that a forked process shares with its parent.
#[test]
fn a_forked_process_shares_its_memory_as_before() {
    let mut target = start();
    target.run_command("add 50000");
    let child = target.query("fork")[0].parse::<u32>().expect("a number");
    let before = written(child);
    assert!(before[0] > 10 << 20, "it shares {before:?}");
    let runtime = types(child, &[]);
    assert_eq!(objects(&runtime)["__main__.Session"], 50_000);
    // An inventory walks the heap of the C library as well.
    let outcome = Heapbpf::with_inventory(child, "--heap libc -o out.json").start().interrupt();
    assert!(outcome.stdout.contains("allocated before the recording"), "{}", outcome.stdout);
    let after = written(child);
    for (now, then) in after.into_iter().zip(before) {
        assert!((now - then).abs() < 1 << 20, "{before:?} became {after:?}");
    }
}

#[test]
fn growth_is_in_all_reports() {
    let mut target = start();
    target.run_command("add 2000");
    let arguments = "--interval 64KiB -o out.json -o out.heapbpf -o out.html";
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("-vv {arguments}"));
    let mut session = heapbpf.start();
    session.wait_for("objects of Python were counted");
    target.run_command("add 3000");
    let outcome = session.interrupt().expect_code(0);
    let row_of = |report: &Value| {
        let runtime = &report["targets"][0]["memory"]["objects"][0];
        assert_eq!(runtime["language"], "cpython");
        assert!(runtime["since_unix_ns"].as_u64() < runtime["unix_ns"].as_u64());
        let one = row(runtime, "__main__.Session").clone();
        (number(&one, "objects"), number(&one, "grown_objects"))
    };
    let read = |path: &Path| serde_json::from_str::<Value>(&text(path)).expect("it is JSON");
    assert_eq!(row_of(&read(&heapbpf.file("out.json"))), (5000, 3000));
    assert!(outcome.stdout.contains("types of Python objects; growth in"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("__main__.Session"), "{}", outcome.stdout);
    let page = heapbpf.page("out.html");
    let types = page["targets"][0]["objects"][0]["types"].as_array().expect("a list");
    assert!(types.iter().any(|one| one[0] == "__main__.Session" && one[1] == 5000 && one[3] == 3000), "{types:?}");
    // A recording and a JSON report contain the count.
    for source in ["out.heapbpf", "out.json"] {
        let (source, again) = (heapbpf.file(source), heapbpf.file("again.json"));
        let words = ["convert".as_ref(), source.as_os_str(), "-o".as_ref(), again.as_os_str()];
        Heapbpf::new(words).run().expect_code(0);
        assert_eq!(row_of(&read(&again)), (5000, 3000));
    }
}

#[test]
fn types_can_be_left_out() {
    let mut target = start();
    target.run_command("add 100");
    let mut heapbpf = Heapbpf::of(target.pid(), "--no-types -o out.json");
    let outcome = heapbpf.start().interrupt().expect_code(0);
    assert!(!outcome.stdout.contains("types of Python"), "{}", outcome.stdout);
    let report: Value = serde_json::from_str(&text(&heapbpf.file("out.json"))).expect("it is JSON");
    assert_eq!(report["targets"][0]["memory"]["objects"], Value::Array(Vec::new()));
}

#[test]
fn what_has_no_such_heap_is_named() {
    let refused = |target: &Target| {
        let pid = target.pid().to_string();
        Heapbpf::new(["types", pid.as_str()]).run().expect_error(1)
    };
    let target = Target::spawn(Command::new("python3").arg(script()).env("PYTHONMALLOC", "malloc"));
    let error = refused(&target);
    assert!(error.contains("PYTHONMALLOC=malloc"), "{error}");
    let error = refused(&Target::start("exact.c"));
    assert!(
        error.contains("has no runtime whose objects heapbpf counts") && error.contains("heapbpf --pid"),
        "{error}"
    );
    let error = Heapbpf::new(["types"]).run().expect_error(2);
    assert!(error.contains("name a process"), "{error}");
}
