//! Code that moves: plugins that are loaded where another one was, and code of a program in memory without a file. Each has its own names,
//! and is unwound by its own table.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, Session};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Callsite, Counts, Report};
use heapbpf_tests::target::{Target, copy_program};
use rustix::process::Signal;
use tempfile::tempdir;

fn plugin(number: u32) -> PathBuf {
    plugin_with(number, "")
}

fn plugin_with(number: u32, flags: &str) -> PathBuf {
    Recipe::of("swapped.c").flags(&format!("-g -shared -fPIC -DNUMBER={number} {flags}")).build()
}

/// Moves the code in memory away from its place in the file, as lld does.
const APART: &str = "-Wl,--section-start=.init=0x30000";

/// Whether a stack is that of a call by the plugin, down to `main`.
fn is_whole(callsite: &Callsite, number: u32) -> bool {
    let functions: Vec<&str> = callsite.stack.iter().filter_map(|frame| frame.function.as_deref()).collect();
    let function = format!("plugin_{number}");
    functions.starts_with(&[function.as_str(), "plugin_keeps", "plugin_caller", "work", "main"])
        && callsite.end.as_deref() == Some("complete")
}

/// A recording of a program, whose dumps are numbered.
struct Recorded {
    target: Target,
    heapbpf: Heapbpf,
    session: Session,
    dumps: u32,
}

impl Recorded {
    fn start(options: &str) -> Self {
        let program = Recipe::of("swapping.c").libraries("-ldl").build();
        let target = Target::spawn(&mut Command::new(program));
        let mut heapbpf = Heapbpf::of(target.pid(), options);
        let session = heapbpf.start();
        Self { target, heapbpf, session, dumps: 0 }
    }

    fn dump(&mut self) -> Report {
        self.dumps += 1;
        let name = format!("out.{:04}.json", self.dumps);
        self.session.signal(Signal::USR1);
        self.session.wait_for(&name);
        self.heapbpf.report(&name)
    }

    /// Loads a plugin, and has it keep blocks until the recording has a whole stack of one: it knows the file from then on. The first stacks
    /// may be cut. Returns the number of blocks.
    fn introduce(&mut self, path: &Path, number: u32, size: u32) -> u64 {
        let _ = self.target.work(&format!("load {}", path.display()));
        let pid = self.target.pid();
        for count in 1..=100 {
            let _ = self.target.work(&format!("keep {size} 1"));
            let report = self.dump();
            if report.process(pid).callsites.iter().any(|callsite| is_whole(callsite, number)) {
                let _ = self.target.work("unload");
                return count;
            }
        }
        panic!("no whole stack of plugin {number}");
    }

    fn cycle(&mut self, rounds: u32, size: u32, count: u32, plugins: [&Path; 2]) {
        let [first, second] = plugins.map(Path::display);
        let _ = self.target.work(&format!("cycle {rounds} {size} {count} {first} {second}"));
    }
}

/// Fails unless all blocks have the names of their plugins, and no stack has frames that it did not have. While the agent is late, stacks
/// are cut.
fn check(report: &Report, pid: u32, expected: &[(u32, Counts)]) {
    let process = report.process(pid);
    let leaves = process.exact_by_leaf();
    for (number, counts) in expected {
        let name = format!("plugin_{number}");
        assert_eq!(leaves.get(&name), Some(counts), "plugin {number}: {leaves:?}");
        for callsite in process.callsites.iter().filter(|callsite| callsite.has(|function| function == name)) {
            let functions: Vec<&str> = callsite.stack.iter().filter_map(|frame| frame.function.as_deref()).collect();
            let whole = [name.as_str(), "plugin_keeps", "plugin_caller", "work", "main"];
            let is_cut = callsite.end.as_deref() == Some("missing_module") && whole.starts_with(&functions);
            assert!(is_cut || is_whole(callsite, *number), "{callsite:?}");
        }
    }
}

fn check_engine(engine: &str) {
    let mut recorded = Recorded::start(&format!("--interval 1 --engine {engine} -o out.json -o out.heapbpf"));
    let folder = tempdir().expect("it can be made");
    // A plugin that is rebuilt is another file with the same path.
    let rebuilt = folder.path().join("rebuilt.so");
    copy_program(plugin(3), &rebuilt);
    let (first, second) = (plugin(1), plugin(2));
    let firsts = recorded.introduce(&first, 1, 100);
    let seconds = recorded.introduce(&second, 2, 200);
    let thirds = recorded.introduce(&rebuilt, 3, 300);
    recorded.cycle(1000, 16, 1, [&first, &second]);
    recorded.cycle(10, 24, 1, [&second, &rebuilt]);
    let next = folder.path().join("next.so");
    copy_program(plugin(5), &next);
    fs::rename(&next, &rebuilt).expect("one folder");
    let fifths = recorded.introduce(&rebuilt, 5, 500);
    recorded.cycle(10, 32, 3, [&first, &rebuilt]);
    let Recorded { mut target, heapbpf, session, .. } = recorded;
    let _ = session.interrupt().expect_counted();
    target.assert_running();
    let expected = [
        (1, Counts::kept(firsts + 1000 + 30, 100 * firsts + 16 * 1000 + 32 * 30)),
        (2, Counts::kept(seconds + 1000 + 10, 200 * seconds + 16 * 1000 + 24 * 10)),
        (3, Counts::kept(thirds + 10, 300 * thirds + 24 * 10)),
        (5, Counts::kept(fifths + 30, 500 * fifths + 32 * 30)),
    ];
    check(&heapbpf.report("out.json"), target.pid(), &expected);
    let recording = heapbpf.file("out.heapbpf");
    let mut converted =
        Heapbpf::new(["convert".as_ref(), recording.as_os_str(), "-o".as_ref(), "converted.json".as_ref()]);
    let outcome = converted.run();
    assert!(matches!(outcome.status.code(), Some(0 | 3)), "{}", outcome.stderr);
    check(&converted.report("converted.json"), target.pid(), &expected);
    target.exit(0);
}

#[test]
fn plugins_at_one_address_keep_their_names_and_stacks() {
    check_engine("trap");
}

#[test]
fn plugins_of_the_inline_engine_do_too() {
    check_engine("inline");
}

/// Segments of a library may be further apart in memory than in the file.
#[test]
fn a_plugin_whose_code_is_moved_in_memory_is_known_when_it_is_loaded_again() {
    let mut recorded = Recorded::start("--interval 1 -o out.json");
    let apart = plugin_with(7, APART);
    let blocks = recorded.introduce(&apart, 7, 700);
    recorded.cycle(100, 40, 1, [&apart, &apart]);
    let Recorded { mut target, heapbpf, session, .. } = recorded;
    let _ = session.interrupt().expect_counted();
    check(&heapbpf.report("out.json"), target.pid(), &[(7, Counts::kept(blocks + 200, 700 * blocks + 40 * 200))]);
    target.exit(0);
}

/// Records a program that moves its code while it is recorded, or before.
fn check_moved(moves_before: bool) {
    let mut target = Target::start("moved.c");
    if moves_before {
        let _ = target.work("move");
    }
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    let _ = target.work("keep 16 100");
    if !moves_before {
        let _ = target.work("move");
    }
    let _ = target.work("keep 24 200");
    let _ = session.interrupt().expect_code(0);
    target.assert_running();
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let process = report.process(target.pid());
    assert_eq!(process.exact_by_leaf()["moved_leaf"], Counts::kept(300, 16 * 100 + 24 * 200));
    for callsite in process.callsites.iter().filter(|callsite| callsite.has(|name| name == "moved_leaf")) {
        let functions: Vec<&str> = callsite.stack.iter().filter_map(|frame| frame.function.as_deref()).collect();
        assert!(functions.starts_with(&["moved_leaf", "moved_middle", "work", "main"]), "{callsite:?}");
        assert_eq!(callsite.end.as_deref(), Some("complete"), "{functions:?}");
    }
    target.exit(0);
}

#[test]
fn code_keeps_its_names_where_a_program_moves_it() {
    check_moved(false);
}

#[test]
fn code_that_was_moved_before_has_its_names() {
    check_moved(true);
}
