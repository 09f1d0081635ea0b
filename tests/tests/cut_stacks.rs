//! Stacks of calls in modules that were mapped shortly before, so that the kernel side does not know them: the agent
//! completes them.

use std::path::PathBuf;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Counts, Report};
use heapbpf_tests::target::Target;

/// A build of the library that is mapped nowhere else.
fn joint(number: u32) -> PathBuf {
    Recipe::of("joint.c").flags(&format!("-shared -fPIC -DNUMBER={number}")).build()
}

fn cut(report: &Report) -> u64 {
    report.health.unwind.get("missing_module").copied().unwrap_or_default()
}

/// Has a target load two libraries several times, and allocate by both before the command ends.
fn check(arguments: &str) {
    let program = Recipe::of("joined.c").libraries("-ldl").build();
    let mut target = Target::spawn(&mut std::process::Command::new(program));
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 1 -o out.json {arguments}"));
    let session = heapbpf.start();
    for number in 0..3 {
        let [first, second] = [2 * number, 2 * number + 1].map(joint);
        target.work(&format!("join {} 40 {} {}", 1000 + number, first.display(), second.display()));
    }
    let _ = session.interrupt().expect_code(0);
    target.assert_running();
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_eq!(cut(&report), 0, "{:?}", report.health.unwind);
    let process = report.process(target.pid());
    assert_eq!(process.exact_by_leaf()["joint_keeps"], Counts::kept(120, 40 * (1000 + 1001 + 1002)));
    for callsite in process.callsites.iter().filter(|callsite| callsite.has(|name| name == "joint_passes")) {
        let functions: Vec<&str> = callsite.stack.iter().filter_map(|frame| frame.function.as_deref()).collect();
        // Of the second library, of the first, of the program.
        let expected = ["joint_keeps", "joint_passes", "joint_keeps", "work", "main"];
        assert!(functions.starts_with(&expected), "{functions:?}");
        assert_eq!(callsite.end.as_deref(), Some("complete"), "{functions:?}");
        let modules: Vec<&str> = callsite.stack[..3].iter().filter_map(|frame| frame.module.as_deref()).collect();
        assert!(modules[0] != modules[1] && modules[2].ends_with("/joined"), "{modules:?}");
    }
    target.exit(0);
}

#[test]
fn calls_through_libraries_that_were_just_loaded_have_whole_stacks() {
    check("");
}

#[test]
fn calls_of_the_inline_engine_too() {
    check("--engine inline");
}

/// Records a script that loads modules, then waits so that the agent can still read its mappings. The intervals are such
/// that an agent without optimisations keeps up: the inline engine's default, because its fallback to probes delays the agent.
fn check_script(words: &[&str]) {
    for (engine, interval) in [("trap", "256KiB"), ("inline", "512KiB")] {
        let arguments = ["record", "--engine", engine, "--interval", interval, "-o", "out.json", "--"];
        let mut heapbpf = Heapbpf::new(arguments.iter().chain(words));
        let _ = heapbpf.run().expect_code(0);
        let report = heapbpf.report("out.json");
        let stacks: u64 = report.health.unwind.values().sum();
        assert!(stacks > 10 && cut(&report) * 1000 <= stacks, "{words:?} {engine}: {:?}", report.health.unwind);
    }
}

#[test]
fn python_loads_extension_modules() {
    let script = "import json, ssl, sqlite3, decimal, ctypes, lzma, bz2, time\n\
                  rows = [json.dumps(list(range(100))) * 10 for _ in range(3000)]\n\
                  time.sleep(1)";
    check_script(&["/usr/bin/python3", "-s", "-c", script]);
}

#[test]
fn perl_loads_extension_modules() {
    let script = "use POSIX; use Storable; use Data::Dumper; use List::Util; use Time::HiRes;\n\
                  my @rows = map { Storable::freeze([1 .. 500]) . ('x' x 10000) } 1 .. 3000; sleep 1;";
    check_script(&["perl", "-e", script]);
}

#[test]
fn node_compiles_and_loads_modules() {
    let script = "require('crypto').createHash('sha256').update('x').digest();\n\
                  const rows = []; for (let i = 0; i < 300; i++) rows.push(Buffer.alloc(100000, i));\n\
                  require('zlib').gzipSync(rows[0]); setTimeout(() => rows.length, 1000);";
    check_script(&["node", "-e", script]);
}
