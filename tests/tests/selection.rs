//! Selection of targets: by name, by control group, all processes, large ones.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use heapbpf_tests::cgroup::Group;
use heapbpf_tests::fuse::{Fuse, Options};
use heapbpf_tests::heapbpf::{Heapbpf, Session};
use heapbpf_tests::kernel::{assert_no_probes, changed_code, tasks};
use heapbpf_tests::report::Report;
use heapbpf_tests::target::{Target, build};

/// Returns a unique name.
fn name(word: &str) -> String {
    format!("{word}-of-{}", std::process::id())
}

/// The service under this name.
fn service(name: &str) -> Target {
    Target::spawn(Command::new(build("service.c")).arg0(name))
}

/// heapbpf at an interval of 1, which leaves processes alone that are not targets.
fn heapbpf(arguments: &[&str]) -> Heapbpf {
    Heapbpf::new(["-v", "--interval", "1", "--scope", "process", "-o", "out.json"].iter().chain(arguments))
}

/// Returns the number of blocks that this process kept while it was recorded.
#[track_caller]
fn kept(report: &Report, target: &Target) -> u64 {
    report.process(target.pid()).exact_by_leaf().get("keeps").map_or(0, |counts| counts.alloc_count)
}

fn commands(report: &Report) -> Vec<(u32, &str)> {
    report.targets.iter().map(|process| (process.pid, process.command.as_str())).collect()
}

#[track_caller]
fn wait_until_recorded(session: &mut Session, target: &Target) {
    session.wait_for(&format!("process {} ", target.pid()));
}

/// Makes targets of these names keep as many blocks each as their index, and checks which are in the report. The others
/// must have no probe.
#[track_caller]
fn check(names: &[&str], arguments: &[&str], expected: &[&str]) {
    let mut targets: Vec<(String, Target)> = names.iter().map(|name| (name.to_string(), service(name))).collect();
    let pids: Vec<String> = targets.iter().map(|(_, target)| target.pid().to_string()).collect();
    let arguments: Vec<&str> = arguments
        .iter()
        .map(|&argument| match argument.strip_prefix('#') {
            Some(place) => pids[place.parse::<usize>().expect("a place")].as_str(),
            None => argument,
        })
        .collect();
    let mut heapbpf = heapbpf(&arguments);
    let session = heapbpf.start();
    for (count, (name, target)) in (1..).zip(&mut targets) {
        let is_meant = expected.contains(&name.as_str());
        assert_eq!(!changed_code(target.pid()).is_empty(), is_meant, "{name}: probes");
        target.work(&format!("keep 100 {count}"));
    }
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_eq!(report.targets.len(), expected.len(), "{:?}", commands(&report));
    for (count, (name, target)) in (1..).zip(&mut targets) {
        target.assert_running();
        if expected.contains(&name.as_str()) {
            assert_eq!(kept(&report, target), count, "{name}");
            let process = report.process(target.pid());
            assert_eq!((process.command.as_str(), process.beginning.origin.as_str()), (name.as_str(), "running"));
        }
        assert_no_probes(target.pid());
    }
}

#[test]
fn by_name_and_pattern_with_exclusions() {
    let (a, b, b2, c) = (name("named-a"), name("named-b"), name("named-b2"), name("named-c"));
    let names = [a.as_str(), &b, &b2, &c];
    let (all, b_all, one_of) = (name("named-*"), name("named-b*"), name("named-[ac]"));
    check(&names, &["--cmdline", &a], &[&a]);
    check(&names, &["--cmdline", &a, "--cmdline", &b_all], &[&a, &b, &b2]);
    check(&names, &["--cmdline", &one_of], &[&a, &c]);
    check(&names, &["--cmdline", &all, "--exclude", &b_all, "--exclude", &c], &[&a]);
}

#[test]
fn by_pid_despite_other_options() {
    let (a, b, c) = (name("number-a"), name("number-b"), name("number-c"));
    let names = [a.as_str(), &b, &c];
    check(&names, &["--pid", "#0", "--pid", "#2", "--pid", "#0"], &[&a, &c]);
    check(&names, &["--pid", "#1", "--cmdline", &a, "--exclude", &b], &[&a, &b]);
}

#[test]
fn a_pattern_without_a_match_waits_for_one() {
    let name = name("later");
    let mut heapbpf = heapbpf(&["--cmdline", &name]);
    let mut session = heapbpf.start();
    let mut target = Target::spawn(Command::new(build("family.c")).arg0(&name));
    wait_until_recorded(&mut session, &target);
    target.work("keep 100 3");
    target.exit(0);
    let outcome = session.interrupt().expect_code(0);
    assert!(outcome.stderr.contains("of which none runs yet"), "{}", outcome.stderr);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let process = report.process(target.pid());
    assert_eq!((report.targets.len(), process.beginning.origin.as_str(), process.exited), (1, "exec", true));
    assert_eq!(kept(&report, &target), 3);
    let begins = process.exact_by_leaf().get("begins").map_or(0, |counts| counts.alloc_count);
    assert!(begins == 7 || !process.beginning.from_first_call, "{begins} of 7: {:?}", process.beginning);
}

#[test]
fn a_program_behind_wrappers_is_one_target() {
    let name = name("wrapped");
    let mut heapbpf = heapbpf(&["--cmdline", &name]);
    let mut session = heapbpf.start();
    // Two quick execs, both of which match.
    let script = format!("exec -a {name} {}", build("family.c").display());
    let mut targets: Vec<Target> = (0..10)
        .map(|_| {
            let mut target = Target::spawn(Command::new("bash").arg0(&name).args(["-c", &script]));
            wait_until_recorded(&mut session, &target);
            target.work("keep 100 3");
            target
        })
        .collect();
    let _ = session.interrupt().expect_counted();
    let report = heapbpf.report("out.json");
    report.assert_complete_but_for_programs();
    for target in &mut targets {
        let programs: Vec<_> = report.targets.iter().filter(|process| process.pid == target.pid()).collect();
        let last = programs.last().expect("it is a target");
        assert!(programs.len() <= 2 && !last.exited && !last.replaced, "{programs:?}");
        assert!(programs.len() == 1 || programs[0].replaced, "{programs:?}");
        let keeps = last.exact_by_leaf().get("keeps").map_or(0, |counts| counts.alloc_count);
        // Probes of the first program stay for the second; without them, nothing is recorded before the command.
        assert_eq!(keeps, 3, "{:?}", last.beginning);
        target.assert_running();
    }
}

#[test]
fn a_program_started_by_vfork_is_a_target() {
    let mut target = Target::start("spawner.c");
    let mut heapbpf = heapbpf(&["--pid", &target.pid().to_string()]);
    let mut session = heapbpf.start();
    target.work("spawn 100 5");
    target.exec(&format!("launch {}", build("family.c").display()));
    // One of the earlier ones may have lived long enough to be recorded, too.
    session.wait_for("(family) is being recorded");
    target.work("keep 100 3");
    let outcome = session.interrupt();
    assert!(matches!(outcome.status.code(), Some(0 | 3)), "{outcome:?}");
    let report = heapbpf.report("out.json");
    report.assert_complete_but_for_programs();
    let of_parent = report.process(target.pid()).exact_by_leaf();
    assert_eq!(of_parent["keeps"].alloc_count, 5);
    let launched: Vec<_> = report.targets.iter().filter(|process| process.command.ends_with("/family")).collect();
    let [launched] = launched.as_slice() else { panic!("{:?}", commands(&report)) };
    assert_eq!(launched.beginning.origin, "exec");
    assert_eq!(launched.exact_by_leaf()["keeps"].alloc_count, 3);
    assert_eq!(launched.totals.inherited_count.as_u64(), Some(0));
}

#[test]
fn by_control_group_and_below() {
    let words = [name("group"), name("below"), name("outside")];
    let [mut inside, mut below, mut outside] = words.each_ref().map(|word| service(word));
    let group = Group::unified(&name("cgroup"));
    let inner = Group::unified(&format!("{}/inner", name("cgroup")));
    group.add(inside.pid());
    inner.add(below.pid());
    let path = group.directory().display().to_string();
    let mut heapbpf = heapbpf(&["--cgroup", &path]);
    let mut session = heapbpf.start();
    assert!(changed_code(outside.pid()).is_empty(), "it is in another group");
    // A process that starts in the group.
    let script = format!("echo $$ > {} && exec {}", group.processes().display(), build("service.c").display());
    let mut later = Target::spawn(Command::new("sh").args(["-c", &script]));
    wait_until_recorded(&mut session, &later);
    for target in [&mut inside, &mut below, &mut outside, &mut later] {
        target.work("keep 100 5");
    }
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_eq!(report.targets.len(), 3, "{:?}", commands(&report));
    for target in [&inside, &below, &later] {
        assert_eq!(kept(&report, target), 5);
    }
    drop((inside, below, later));
}

#[test]
fn by_a_containers_id() {
    let id = format!("{:0>64x}", u64::from(std::process::id()) | 0xc0ff_ee00_0000_0000);
    let id: String = id.chars().rev().collect();
    let version_1 = Group::of_hierarchy("pids", &format!("docker-{id}.scope"));
    let group = version_1.unwrap_or_else(|| Group::unified(&format!("docker-{id}.scope")));
    let words = [name("contained"), name("free")];
    let [mut contained, mut free] = words.each_ref().map(|word| service(word));
    group.add(contained.pid());
    let mut heapbpf = heapbpf(&["--cgroup", &id[..12]]);
    let session = heapbpf.start();
    for target in [&mut contained, &mut free] {
        target.work("keep 100 5");
    }
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    assert_eq!(report.targets.len(), 1, "{:?}", commands(&report));
    assert_eq!(kept(&report, &contained), 5);
    drop(contained);
}

#[test]
fn processes_that_grow_beyond_the_minimum_become_targets() {
    /// More than any other process of the tests has, less than 60,000 blocks of a page.
    const LARGE: &str = "200MiB";
    const GROW: &str = "keep 4080 60000";
    let (names, all) = ([name("size-large"), name("size-small"), name("size-grows")], name("size-*"));
    for how in [vec!["--all"], vec!["--cmdline", &all]] {
        let [mut large, mut small] = [&names[0], &names[1]].map(|name| service(name));
        large.work(GROW);
        let mut heapbpf = heapbpf(
            &[how, vec!["--min-rss", LARGE, "--exclude", "rustc", "--exclude", "clippy*", "--exclude", "cargo*"]]
                .concat(),
        );
        let mut session = heapbpf.start();
        let mut grows = service(&names[2]);
        for target in [&mut large, &mut small, &mut grows] {
            target.work("keep 100 5");
        }
        assert!(!changed_code(large.pid()).is_empty(), "it was large enough");
        assert!(changed_code(grows.pid()).is_empty(), "it has not grown yet");
        grows.work(GROW);
        wait_until_recorded(&mut session, &grows);
        grows.work("keep 100 7");
        assert!(changed_code(small.pid()).is_empty(), "it is too small");
        let _ = session.interrupt().expect_code(0);
        let report = heapbpf.report("out.json");
        assert_eq!((kept(&report, &large), kept(&report, &grows)), (5, 7));
        assert_eq!(report.process(grows.pid()).beginning.origin, "running");
        let pids: Vec<u32> = report.targets.iter().map(|process| process.pid).collect();
        assert!(!pids.contains(&small.pid()), "{pids:?}");
        small.assert_running();
    }
}

/// Also where a program runs whose file cannot be read.
#[test]
fn all_processes_are_recorded_beside_a_file_system_that_does_not_answer() {
    let mut fuse = Fuse::mount(&[("program", &build("service.c"))], Options::default());
    let mut held = Target::spawn(&mut Command::new(fuse.path("program")));
    fs::read(fuse.path("program")).expect("it answers");
    let mut other = service(&name("other"));
    fuse.hang();
    let mut heapbpf = heapbpf(&["--all", "--exclude", "rustc", "--exclude", "clippy*", "--exclude", "cargo*"]);
    let session = heapbpf.start();
    held.work("keep 100 5");
    other.work("keep 100 7");
    let outcome = session.interrupt();
    let report = heapbpf.report("out.json");
    assert_eq!((report.process(held.pid()).totals.exact().alloc_count, kept(&report, &other)), (5, 7));
    let unanswered = format!("`{}` does not answer", fuse.folder().display());
    assert!(outcome.stderr.contains(&unanswered), "{outcome:?}");
}

#[test]
fn a_threads_number_selects_its_process() {
    let mut target = Target::start("workers.c");
    let thread = tasks(target.pid()).into_iter().find(|task| *task != target.pid()).expect("it has threads");
    let message = format!("heapbpf: {thread} is a thread of process {}, which is taken instead\n", target.pid());
    let thread = thread.to_string();
    for words in [&["--pid", &thread][..], &[&thread], &["record", "--pid", &thread]] {
        let mut heapbpf = Heapbpf::new(words.iter().chain(&["--interval", "1", "-o", "out.json"]));
        let session = heapbpf.start();
        target.work("baker 10 1000");
        let outcome = session.interrupt();
        assert!(outcome.stderr.starts_with(&message), "{words:?}: {outcome:?}");
        let taken = heapbpf.report("out.json").process(target.pid()).exact_by_leaf()["take"].alloc_count;
        assert_eq!(taken, 10, "{words:?}");
    }
    for words in [["leaks", "--pid", &thread], ["doctor", "--pid", &thread]] {
        let outcome = Heapbpf::new(words).run();
        assert!(outcome.stderr.contains(&message), "{words:?}: {outcome:?}");
        assert!(!outcome.stderr.contains("no process"), "{words:?}: {outcome:?}");
    }
}
