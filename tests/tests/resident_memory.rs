//! The account of the resident memory: its parts sum up, each kind of growth is found, and growth that hooked heaps do not explain
//! is reported first, with what helps.

use std::path::Path;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, Outcome};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::Target;
use serde_json::{Value, json};

const MIB: i64 = 1 << 20;

/// Adds the resident pages that no hooked heap has.
const WITH_PAGES: &str = "--heap all --heap pages";

struct Recorded {
    account: Value,
    outcome: Outcome,
}

impl Recorded {
    fn growth(&self, field: &str) -> i64 {
        self.account["growth"][field].as_i64().unwrap_or_else(|| panic!("no {field}: {:#}", self.account["growth"]))
    }

    /// Growth of the parts of a class.
    fn growth_of(&self, class: &str) -> i64 {
        let points = self.account["points"].as_array().expect("a list");
        let bytes = |point: &Value| -> i64 {
            let parts = point["parts"].as_array().expect("a list").iter().filter(|part| part["class"] == class);
            parts.map(|part| part["bytes"].as_i64().expect("a number")).sum()
        };
        bytes(&points[points.len() - 1]) - bytes(&points[0])
    }

    /// The first lines of the summary, after its heading.
    #[track_caller]
    fn assert_summary(&self, is_warned: bool, texts: &[&str]) {
        let summary = &self.outcome.stdout;
        assert_eq!(self.outcome.status.code(), Some(if is_warned { 3 } else { 0 }), "{summary}");
        assert_eq!(summary.contains("this profile misses most of the growth"), is_warned, "{summary}");
        for text in texts {
            assert!(summary.contains(text), "{text:?} is missing:\n{summary}");
        }
    }
}

fn record(target: &mut Target, options: &str, line: &str) -> Recorded {
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("{options} -o out.json"));
    let session = heapbpf.start();
    target.run_command(line);
    let outcome = session.interrupt();
    target.assert_running();
    let text = std::fs::read_to_string(heapbpf.file("out.json")).expect("it was written");
    let report: Value = serde_json::from_str(&text).expect("it is JSON");
    let account = report["targets"][0]["memory"].clone();
    assert_sums_up(&account);
    Recorded { account, outcome }
}

fn assert_sums_up(account: &Value) {
    let points = account["points"].as_array().expect("a list");
    assert!(points.len() >= 2, "one at the start and one at the end: {points:?}");
    for point in points {
        let parts = point["parts"].as_array().expect("a list");
        let sum: i64 = parts.iter().map(|part| part["bytes"].as_i64().expect("a number")).sum();
        assert_eq!(sum, point["rss_bytes"].as_i64().expect("a number"), "{point:#}");
        let pss = point["pss_bytes"].as_i64().expect("a number");
        assert!(pss > 0 && pss <= sum, "{pss} of {sum}");
    }
}

fn check(bytes: i64, expected_mebibytes: i64) {
    let expected = expected_mebibytes * MIB;
    assert!((bytes - expected).abs() < expected / 20 + MIB, "{bytes} bytes instead of {expected_mebibytes} MiB");
}

#[test]
fn growth_of_a_hooked_heap_is_explained() {
    let mut target = Target::start("resident.c");
    let recorded = record(&mut target, "", "blocks 40");
    // malloc adds 12 bytes to each block of 100.
    check(recorded.growth_of("live_blocks"), 40);
    check(recorded.growth_of("live_blocks") + recorded.growth_of("heap_overhead"), 45);
    assert_eq!(recorded.account["growth"]["unexplained"], false);
    recorded.assert_summary(false, &["resident memory: "]);
}

#[test]
fn growth_of_mappings_is_reported_first_with_what_helps() {
    let mut target = Target::start("resident.c");
    let recorded = record(&mut target, "", "maps 64");
    check(recorded.growth("bytes"), 64);
    check(recorded.growth_of("unexplained"), 64);
    assert_eq!(recorded.account["growth"]["unexplained"], true);
    assert_eq!(recorded.account["growth"]["others"][0]["class"], "unexplained");
    recorded.assert_summary(true, &["hooked heaps explain none of it", "unexplained 64", "--heap mmap"]);
    let warning = recorded.outcome.stdout.find("this profile misses").expect("checked above");
    let health = recorded.outcome.stdout.find("health:").expect("a section");
    assert!(warning < health);
}

#[test]
fn pages_explain_what_no_hooked_heap_has() {
    let mut target = Target::start("resident.c");
    let recorded = record(&mut target, WITH_PAGES, "maps 64");
    check(recorded.growth_of("live_blocks"), 64);
    check(recorded.growth("hooked_bytes"), 64);
    recorded.assert_summary(false, &["live blocks: pages 64", "maps"]);
}

#[test]
fn pages_explain_the_objects_of_interpreters() {
    for mut target in [python("pymalloc"), php("1")] {
        let recorded = record(&mut target, WITH_PAGES, "60");
        let (hooked, all) = (recorded.growth("hooked_bytes"), recorded.growth("bytes"));
        assert!(hooked * 100 >= all * 95, "{hooked} of {all}");
        recorded.assert_summary(false, &["live blocks: pages"]);
    }
}

#[test]
fn with_the_mmap_heap_mappings_are_explained() {
    let mut target = Target::start("resident.c");
    let recorded = record(&mut target, "--heap mmap", "maps 64");
    check(recorded.growth_of("live_blocks"), 64);
    recorded.assert_summary(false, &[]);
}

#[test]
fn shared_memory_and_stacks_are_named() {
    let mut target = Target::start("resident.c");
    let recorded = record(&mut target, "", "shared 48");
    check(recorded.growth_of("shared"), 48);
    recorded.assert_summary(true, &["shared memory 48", "shared memory is not allocated on the heap"]);
    let recorded = record(&mut target, "", "stacks 40");
    check(recorded.growth_of("stacks"), 40);
    recorded.assert_summary(true, &["stacks 3", "stacks of threads"]);
    let recorded = record(&mut target, WITH_PAGES, "stacks 40");
    recorded.assert_summary(false, &["use_stack"]);
}

#[test]
fn growth_below_the_limit_is_not_reported() {
    let mut target = Target::start("resident.c");
    let recorded = record(&mut target, "", "maps 12");
    check(recorded.growth("bytes"), 12);
    recorded.assert_summary(false, &[]);
}

#[test]
fn memory_from_before_belongs_to_its_heap() {
    let mut target = Target::start("resident.c");
    target.run_command("blocks 40");
    let recorded = record(&mut target, "", "blocks 20");
    check(recorded.growth_of("live_blocks"), 20);
    check(recorded.growth("hooked_bytes"), 22);
    let before = recorded.account["points"][0]["parts"].as_array().expect("a list");
    let overhead = before.iter().find(|part| part["class"] == "heap_overhead").expect("brk is glibc's");
    assert_eq!(overhead["name"], "libc");
    check(overhead["bytes"].as_i64().expect("a number"), 45);
}

fn python(setting: &str) -> Target {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/objects.py");
    Target::spawn(Command::new("/usr/bin/python3").env("PYTHONMALLOC", setting).arg(script))
}

#[test]
fn objects_of_python_are_advised_on_and_the_advice_helps() {
    let recorded = record(&mut python("pymalloc"), "", "60");
    assert_eq!(recorded.account["runtimes"], json!(["cpython"]));
    recorded.assert_summary(true, &["PYTHONMALLOC=malloc"]);
    let recorded = record(&mut python("malloc"), "", "60");
    let (hooked, all) = (recorded.growth("hooked_bytes"), recorded.growth("bytes"));
    assert!(hooked * 10 >= all * 8, "{hooked} of {all}");
    recorded.assert_summary(false, &[]);
}

fn php(setting: &str) -> Target {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/strings.php");
    Target::spawn(Command::new("php").env("USE_ZEND_ALLOC", setting).arg(script))
}

#[test]
fn strings_of_php_are_advised_on_and_the_advice_helps() {
    let recorded = record(&mut php("1"), "", "60");
    assert_eq!(recorded.account["runtimes"], json!(["php"]));
    recorded.assert_summary(true, &["USE_ZEND_ALLOC=0", "--heap mmap"]);
    for recorded in [record(&mut php("0"), "", "60"), record(&mut php("1"), "--heap mmap", "60")] {
        let (hooked, all) = (recorded.growth("hooked_bytes"), recorded.growth("bytes"));
        assert!(hooked * 10 >= all * 8, "{hooked} of {all}");
        recorded.assert_summary(false, &[]);
    }
}

#[test]
fn a_launched_program_grows_from_nothing() {
    let mut heapbpf = Heapbpf::new(["-o", "out.json", "--duration", "2s", "--"].into_iter().chain([
        "sh",
        "-c",
        "exec /usr/bin/python3 -c 'import time; x = bytearray(50 << 20); time.sleep(4)'",
    ]));
    let _ = heapbpf.run().expect_code(0);
    let text = std::fs::read_to_string(heapbpf.file("out.json")).expect("it was written");
    let report: Value = serde_json::from_str(&text).expect("it is JSON");
    let targets = report["targets"].as_array().expect("a list");
    let python = targets.iter().find(|target| target["command"] == "/usr/bin/python3").expect("a target");
    assert_eq!(python["memory"]["points"][0]["rss_bytes"], 0);
    assert!(python["memory"]["growth"]["bytes"].as_i64().expect("a number") > 50 * MIB);
}

#[test]
fn a_recording_replays_to_the_same_account() {
    let mut target = Target::start("resident.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "-o out.json -o out.heapbpf");
    let session = heapbpf.start();
    target.run_command("maps 32");
    let _ = session.interrupt().expect_code(3);
    let _ = Heapbpf::new([
        "convert".as_ref(),
        heapbpf.file("out.heapbpf").as_os_str(),
        "-o".as_ref(),
        heapbpf.file("again.json").as_os_str(),
    ])
    .run()
    .expect_code(3);
    let memory = |name: &str| {
        let text = std::fs::read_to_string(heapbpf.file(name)).expect("it was written");
        serde_json::from_str::<Value>(&text).expect("it is JSON")["targets"][0]["memory"].clone()
    };
    assert_eq!(memory("again.json"), memory("out.json"));
}

/// What `owned.c` does on a line "all".
mod owned {
    use super::{MIB, Recorded, Value};

    const SMALL: i64 = 400 * 40_000;
    const LARGE: i64 = 100_000 * 300;
    const LIVE: i64 = SMALL / 20 + LARGE / 2 + 8 * MIB;
    const FREE: i64 = SMALL + LARGE + 8 * MIB - LIVE;
    const MAPPED: i64 = 24 * MIB;
    const STACKS: i64 = 10 * (400 << 10);
    /// With the addresses of its blocks.
    const VARIABLES: i64 = 3 * MIB + 8 * 40_300;

    /// Fails unless each kind of memory grew by what the program has of it.
    #[track_caller]
    pub(super) fn check(recorded: &Recorded, heap: &str, mapped_class: &str) {
        for class in ["live_blocks", "heap_overhead"] {
            let others = names(recorded, class).into_iter().filter(|name| ![heap, "mmap"].contains(&name.as_str()));
            assert_eq!(others.collect::<Vec<_>>(), [""; 0], "heaps that the program does not use");
        }
        let recorded_mappings = if mapped_class == "live_blocks" { MAPPED } else { 0 };
        for (class, expected, spare) in [
            ("live_blocks", LIVE + recorded_mappings, MIB),
            // Allocators round sizes up, and keep books. musl returns slots of which none is used.
            ("heap_overhead", FREE, FREE / 4),
            ("unexplained", MAPPED - recorded_mappings, MIB),
            ("stacks", STACKS, MIB / 2),
            ("files", VARIABLES, MIB),
        ] {
            let grown = recorded.growth_of(class);
            let account = &recorded.account;
            assert!(
                (grown - expected).abs() < spare,
                "{heap}: {grown} bytes of {class} instead of {expected}: {account:#}"
            );
        }
    }

    fn names(recorded: &Recorded, class: &str) -> Vec<String> {
        let points = recorded.account["points"].as_array().expect("a list");
        let parts = points.iter().flat_map(|point| point["parts"].as_array().expect("a list"));
        let of_class = parts.filter(|part| part["class"] == class);
        of_class.map(|part: &Value| part["name"].as_str().expect("heaps have names").to_owned()).collect()
    }
}

fn check_owned(recipe: &Recipe, heap: &str) {
    let mut target = Target::spawn(&mut Command::new(recipe.build()));
    owned::check(&record(&mut target, "--interval 1", "all"), heap, "unexplained");
}

#[test]
fn each_kind_of_memory_is_found_with_glibc() {
    check_owned(&Recipe::of("owned.c"), "libc");
}

#[test]
fn each_kind_of_memory_is_found_with_jemalloc() {
    check_owned(&Recipe::of("owned.c").libraries("-ljemalloc"), "jemalloc");
}

#[test]
fn each_kind_of_memory_is_found_with_tcmalloc() {
    check_owned(&Recipe::of("owned.c").libraries("-ltcmalloc_minimal"), "tcmalloc");
}

#[test]
fn each_kind_of_memory_is_found_with_mimalloc() {
    check_owned(&Recipe::of("owned.c").libraries("-lmimalloc"), "mimalloc");
}

/// The kernel merges its groups with what the program maps and with stacks.
#[test]
fn each_kind_of_memory_is_found_with_musl() {
    check_owned(&Recipe::of("owned.c").compiler("musl-gcc").flags("-static"), "musl");
}

/// The C library maps stacks, too.
#[test]
fn with_the_mmap_heap_stacks_are_no_blocks() {
    let mut target = Target::start("owned.c");
    owned::check(&record(&mut target, "--interval 1 --heap all --heap mmap", "all"), "libc", "live_blocks");
}

#[test]
fn stacks_of_thousands_of_threads_are_found() {
    let mut target = Target::start("owned.c");
    let recorded = record(&mut target, "", "stacks 1300");
    let (stacks, used) = (recorded.growth_of("stacks"), 1300 * (16 << 10));
    assert!(stacks >= used, "{stacks} bytes of {used}");
    assert!(recorded.growth_of("unexplained") < MIB, "{:#}", recorded.account);
}

#[test]
fn what_the_inline_engine_maps_is_not_the_programs() {
    let mut target = Target::start("resident.c");
    let recorded = record(&mut target, "--engine inline", "blocks 20");
    let last = recorded.account["points"].as_array().expect("a list").last().expect("one");
    let parts = last["parts"].as_array().expect("a list").iter();
    let found = parts.filter(|part| part["class"] == "shared" || part["name"] == "heapbpf");
    let found: Vec<(&Value, &Value)> = found.map(|part| (&part["class"], &part["name"])).collect();
    assert_eq!(found, [(&json!("other_allocator"), &json!("heapbpf"))], "{last:#}");
}

/// The walk of so many blocks takes longer than what follows the start.
#[test]
fn growth_before_the_inventory_is_complete_counts() {
    let mut target = Target::start("resident.c");
    target.run_command("blocks 60");
    let mut heapbpf = Heapbpf::with_inventory(target.pid(), "-o out.json");
    let session = heapbpf.start();
    target.run_command("maps 48");
    let outcome = session.interrupt();
    let text = std::fs::read_to_string(heapbpf.file("out.json")).expect("it was written");
    let report: Value = serde_json::from_str(&text).expect("it is JSON");
    let recorded = Recorded { account: report["targets"][0]["memory"].clone(), outcome };
    check(recorded.growth_of("unexplained"), 48);
    assert!(recorded.growth_of("live_blocks").abs() < MIB, "the inventory was live before: {:#}", recorded.account);
    recorded.assert_summary(true, &["hooked heaps explain none of it"]);
}
