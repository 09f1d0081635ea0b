//! Targets that cannot have stubs: they are recorded by the trap engine, exactly, and the report has the reason.

use std::process::{Child, Command, Stdio};

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::kernel::tracer;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Counts, Report};
use heapbpf_tests::stubs::mapped;
use heapbpf_tests::target::Target;
use rustix::process::{Pid, Signal, kill_process};

use super::{EXACT, assert_unharmed, engine, finish, start, wait_until};

/// Functions of the pool, to be prefixed by a module.
const POOL: [&str; 4] = [
    "pool_get(size=arg2, ptr=ret)",
    "pool_make(ptr=*arg1, size=arg2)",
    "pool_regrow(old=arg2, size=arg4, ptr=ret)",
    "pool_put(old=arg2)",
];

/// Fails unless the only target is recorded by the trap engine, for a reason with one of these words.
#[track_caller]
fn assert_refused(report: &Report, words: &[&str]) {
    let engine = engine(report);
    let reasons: Vec<(&String, &u64)> = engine.refused.iter().collect();
    let [(reason, 1)] = reasons.as_slice() else { panic!("{engine:?}") };
    assert!(words.iter().any(|word| reason.contains(word)), "`{reason}` has none of {words:?}");
    assert_eq!((engine.targets, engine.passed_calls), (0, 0), "{engine:?}");
}

/// Records blocks, and expects a refusal.
#[track_caller]
fn check(target: &mut Target, words: &[&str]) {
    let (heapbpf, session) = start(target, EXACT);
    assert_eq!(mapped(target.pid()), 0, "no stubs are mapped");
    target.work("keep 1000 25");
    let report = finish(&heapbpf, session, target);
    assert_eq!(report.process(target.pid()).exact_by_leaf()["keeps"], Counts::kept(25, 25_000));
    assert_refused(&report, words);
    target.work("keep 10 2");
    target.assert_running();
}

#[test]
fn a_static_program() {
    let mut target = Target::spawn(&mut Command::new(Recipe::of("service.c").flags("-static").build()));
    // Its addresses are so low that there may be no room for stubs, before there are no slots.
    check(&mut target, &["global offset table", "no free addresses"]);
}

/// Its allocator is called directly.
#[test]
fn a_program_that_contains_its_allocator() {
    for libraries in ["-l:libjemalloc.a -lm -lstdc++", "-l:libtcmalloc_minimal.a -lm -lstdc++"] {
        let program = Recipe::of("service.c").libraries(libraries).build();
        let mut target = Target::spawn(&mut Command::new(program));
        let (heapbpf, session) = start(&target, EXACT);
        // Other modules may have slots: the engine decides when it has counted calls in two periods.
        let (pid, mut rounds) = (target.pid(), 0);
        wait_until("it has decided", || {
            target.work("churn 100 20000");
            rounds += 1;
            mapped(pid) == 0 || heapbpf_tests::stubs::slots_to_stubs(pid).expect("it runs").is_empty()
        });
        target.work("keep 1000 25");
        let report = finish(&heapbpf, session, &mut target);
        let functions = report.process(target.pid()).exact_by_leaf();
        assert_eq!(functions["keeps"], Counts::kept(25, 25_000), "{libraries}");
        let churned = Counts {
            free_count: rounds * 20_000,
            free_bytes: rounds * 2_000_000,
            live_count: 0,
            live_bytes: 0,
            ..Counts::kept(rounds * 20_000, rounds * 2_000_000)
        };
        assert_eq!(functions["churns"], churned, "{libraries}");
        assert_refused(&report, &["global offset table"]);
    }
}

/// Hooks of the user: functions of a library, which the program calls through slots, and functions inside the program.
#[test]
fn functions_with_hooks_of_the_user() {
    let library = Recipe::of("pool.c").flags("-shared -fPIC").build().display().to_string();
    let linked = Recipe::of("pooled.c").libraries(&library);
    for (recipe, module) in [(linked, "pool"), (Recipe::of("pooled.c").flags("-DINSIDE"), "pooled")] {
        let mut target = Target::spawn(&mut Command::new(recipe.build()));
        let hooks = POOL.iter().flat_map(|function| ["--hook".to_owned(), format!("pool={module}:{function}")]);
        let words = ["--pid", &target.pid().to_string()].map(str::to_owned).into_iter();
        let mut heapbpf = Heapbpf::new(words.chain(EXACT.split(' ').map(str::to_owned)).chain(hooks));
        let session = heapbpf.start();
        let ledger = target.work("go");
        let report = finish(&heapbpf, session, &mut target);
        report.process(target.pid()).assert_matches(&ledger);
        let engine = engine(&report);
        assert_eq!(engine.targets + engine.refused.values().sum::<u64>(), 1, "{module}: {engine:?}");
    }
}

/// A system call that seccomp answers by killing must not be made for the target.
#[test]
fn seccomp_filters() {
    for call in ["mmap", "recvmsg", "memfd_create", "socketpair"] {
        for action in ["kill", "refuse"] {
            let mut target = Target::start("confined.c");
            target.work(&format!("{action} {call}"));
            let (heapbpf, session) = start(&target, EXACT);
            target.work("keep 1000 25");
            target.work("churn 100 2000");
            let report = finish(&heapbpf, session, &mut target);
            let functions = report.process(target.pid()).exact_by_leaf();
            assert_eq!(functions["keeps"], Counts::kept(25, 25_000), "{action} {call}");
            assert_eq!(functions["churns"].free_count, 2000, "{action} {call}");
            let engine = engine(&report);
            // `memfd_create` is called by heapbpf itself.
            let is_refused = engine.refused.len() == 1 && engine.targets == 0;
            assert!(is_refused || (call == "memfd_create" && engine.targets == 1), "{action} {call}: {engine:?}");
            let is_explained =
                engine.refused.keys().all(|reason| reason.contains("seccomp") || reason.contains("not permitted"));
            assert!(is_explained, "{action} {call}: {engine:?}");
        }
    }
}

#[test]
fn seccomp_strict_mode() {
    for confinement in ["strict", "filter"] {
        let mut target = Target::start("confined.c");
        target.work(confinement);
        check(&mut target, &["seccomp"]);
    }
}

/// A program of 32 bits has no hooks: neither engine records it, and both report so.
#[test]
fn a_32_bit_program() {
    let program =
        Recipe::of("narrow.c").compiler("gcc").flags("-m32 -nostdlib -static -ffreestanding -fno-pie").build();
    let mut child =
        Command::new(program).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("32-bit programs run here");
    let text = Heapbpf::of(child.id(), EXACT).run().expect_error(1);
    assert!(text.contains("64-bit"), "{text}");
    drop(child.stdin.take());
    assert!(child.wait().expect("it is our child").success(), "it ends as it would have");
}

/// strace, which detaches when it is dropped.
struct Strace(Child);

impl Strace {
    #[track_caller]
    fn attach(pid: u32) -> Self {
        let mut command = Command::new("strace");
        command.args(["-f", "-o", "/dev/null", "-p", &pid.to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}: `cargo xtask test` installs it"));
        wait_until("strace traces it", || tracer(pid).is_some());
        Self(child)
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("pids are positive");
        let _ = kill_process(pid, Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_that_another_tool_traces() {
    let mut target = Target::start("service.c");
    let strace = Strace::attach(target.pid());
    let (heapbpf, session) = start(&target, EXACT);
    target.work("keep 1000 25");
    drop(strace);
    let report = finish(&heapbpf, session, &mut target);
    assert_eq!(report.process(target.pid()).exact_by_leaf()["keeps"], Counts::kept(25, 25_000));
    assert_refused(&report, &["trace", "strace"]);
}

/// The tool begins when slots already lead to stubs: they cannot be restored while it traces.
#[test]
fn a_process_that_another_tool_traces_at_the_end() {
    let mut target = Target::start("service.c");
    let (heapbpf, session) = start(&target, EXACT);
    target.work("keep 1000 25");
    let strace = Strace::attach(target.pid());
    let outcome = session.interrupt();
    assert!(matches!(outcome.status.code(), Some(0 | 3)), "{outcome:?}");
    assert_eq!(heapbpf.report("out.json").process(target.pid()).exact_by_leaf()["keeps"], Counts::kept(25, 25_000));
    target.work("churn 10 1000");
    drop(strace);
    wait_until("strace has detached", || tracer(target.pid()).is_none());
    // What could not be restored must have been reported, and is removed by the next session.
    let is_left = !heapbpf_tests::stubs::slots_to_stubs(target.pid()).expect("it runs").is_empty();
    assert!(!is_left || outcome.stderr.contains("stubs"), "{outcome:?}");
    let (heapbpf, session) = start(&target, EXACT);
    target.work("keep 100 30");
    let report = finish(&heapbpf, session, &mut target);
    assert_eq!(report.process(target.pid()).exact_by_leaf()["keeps"], Counts::kept(30, 3000));
    assert_unharmed(&mut target);
}

#[test]
fn a_process_whose_main_thread_has_exited_is_recorded_by_the_trap_engine() {
    let mut target = Target::start("leaks/departed.c");
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("--scope inode {EXACT}"));
    let session = heapbpf.start();
    let outcome = session.interrupt().expect_counted();
    let reason = "its main thread has exited, by which the kernel finds its memory and descriptors";
    assert!(outcome.stdout.contains(&format!("1 target with the trap engine: {reason}")), "{}", outcome.stdout);
    let report = heapbpf.report("out.json");
    let refused = report.health.inline_engine.expect("it was requested").refused;
    assert_eq!(refused.into_iter().collect::<Vec<_>>(), [(reason.to_owned(), 1)]);
    target.begin_exit(5);
    assert_eq!(target.wait().code(), Some(5));
}
