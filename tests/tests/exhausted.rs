//! Programs whose memory is exhausted while they are recorded: an exception of `operator new` must reach the program, whose return
//! addresses and frames no probe and no stub may have changed.

use std::path::PathBuf;
use std::process::Command;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::kernel::assert_no_probes;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::Target;

const ENGINES: [&str; 2] = ["trap", "inline"];
/// Those whose operators new throw when memory is exhausted; that of Debian's mimalloc ends the program.
const ALLOCATORS: [&str; 2] = ["-ljemalloc", "-ltcmalloc_minimal"];
/// jemalloc maps each large block, which exhausts mappings; tcmalloc extends a few large ones.
const LIMITS: [(&str, &[&str]); 2] = [
    ("-ljemalloc", &["mappings", "address-space", "data", "locked"]),
    ("-ltcmalloc_minimal", &["address-space", "data"]),
];

fn program(allocator: &str) -> PathBuf {
    Recipe::of("exhausted.cpp").libraries(allocator).build()
}

/// The first blocks are recorded, the exceptions reach the program, and what was left alone is in the report.
#[track_caller]
fn check(engine: &str, allocator: &str, limit: &str, throws: &str) {
    let mut target = Target::spawn(&mut Command::new(program(allocator)));
    let arguments = format!("--engine {engine} --interval 1 -o out.json");
    let mut heapbpf = Heapbpf::of(target.pid(), &arguments);
    let session = heapbpf.start();
    target.work("make 5000 300");
    target.work(&format!("limit {limit}"));
    target.work(throws);
    let _ = session.interrupt();
    target.assert_running();
    assert_no_probes(target.pid());
    target.work(throws);
    target.exit(0);
    let report = heapbpf.report("out.json");
    let made = report.process(target.pid()).exact_under(|function| function.starts_with("makes(")).alloc_count;
    assert!(made >= 300, "{engine} {allocator} {limit}: {made} of 300 blocks are recorded");
    let left = report.health.lost.get("may_throw").copied().unwrap_or(0);
    assert!(left > 0, "{engine} {allocator} {limit}: {:?}", report.health.lost);
}

#[test]
fn exceptions_reach_a_recorded_program() {
    for engine in ENGINES {
        for (allocator, limits) in LIMITS {
            for limit in limits {
                check(engine, allocator, limit, "exhaust 3");
            }
        }
    }
}

/// The kernel calls the probes of all recordings in each process that has a breakpoint.
#[test]
fn exceptions_reach_every_target_of_a_library() {
    for engine in ENGINES {
        for allocator in ALLOCATORS {
            let start = || {
                let mut target = Target::spawn(&mut Command::new(program(allocator)));
                // It resolves its pointers, which can lead to stubs then.
                target.work("make 5000 1");
                target
            };
            let mut targets = [start(), start(), start()];
            let [one, other, third] = targets.each_ref().map(Target::pid);
            let mut both = Heapbpf::of(one, &format!("--engine {engine} --interval 1 --pid {other} -o out.json"));
            let mut alone = Heapbpf::of(third, &format!("--engine {engine} --interval 1 -o out.json"));
            let sessions = [both.start(), alone.start()];
            for target in &mut targets {
                target.work("make 5000 300");
                target.work("limit address-space");
                target.work("exhaust 3");
                target.work("child 3");
            }
            for session in sessions {
                let _ = session.interrupt();
            }
            for (heapbpf, pid) in [(&both, one), (&both, other), (&alone, third)] {
                let report = heapbpf.report("out.json");
                let made = report.process(pid).exact_under(|function| function.starts_with("makes(")).alloc_count;
                assert!(made >= 300, "{engine} {allocator}: {made} of 300 blocks are recorded");
            }
            // The probes of the one recording keep stubs away from no target of the other.
            let by_stubs =
                |heapbpf: &Heapbpf| heapbpf.report("out.json").health.inline_engine.map_or(0, |it| it.targets);
            let expected = if engine == "inline" { [2, 1] } else { [0, 0] };
            let recorded = [&both, &alone].map(by_stubs);
            assert!(recorded.iter().zip(expected).all(|(number, least)| *number >= least), "{allocator}: {recorded:?}");
            for mut target in targets {
                target.assert_running();
                target.exit(0);
            }
        }
    }
}

#[test]
fn a_handler_of_failures_is_called_as_often_as_without_heapbpf() {
    for engine in ENGINES {
        for allocator in ALLOCATORS {
            check(engine, allocator, "address-space", "handle 3");
        }
    }
}
