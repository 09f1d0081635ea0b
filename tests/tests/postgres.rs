//! A real program of many processes: postgres, whose postmaster forks for each connection.

#![expect(clippy::print_stderr, clippy::cast_precision_loss, reason = "prints figures with --nocapture")]

use heapbpf_tests::heapbpf::{Heapbpf, Outcome};
use heapbpf_tests::kernel::assert_no_probes;
use heapbpf_tests::postgres::Postgres;
use heapbpf_tests::report::{Process, Report};

/// Returns the only target of this process.
#[track_caller]
fn only(report: &Report, pid: u32) -> &Process {
    let programs: Vec<&Process> = report.targets.iter().filter(|process| process.pid == pid).collect();
    let [program] = programs.as_slice() else { panic!("{} targets of {pid}", programs.len()) };
    program
}

/// Checks a process that answered a connection and exited.
#[track_caller]
fn check_backend(backend: &Process, postmaster: u32) {
    let pid = backend.pid;
    assert_eq!((backend.beginning.origin.as_str(), backend.beginning.parent), ("fork", Some(postmaster)));
    assert!(backend.exited && !backend.replaced, "{pid}");
    assert!(backend.exit_code.is_none_or(|code| code == 0), "{pid}: {:?}", backend.exit_code);
    assert!(backend.beginning.delay_ns.is_some(), "{pid}");
    // Debian's postgres exports only names that its extensions may call.
    let frames = || backend.callsites.iter().flat_map(|callsite| &callsite.stack);
    let named = frames().filter(|frame| frame.function.is_some()).count();
    assert!(named * 2 > frames().count(), "{pid}: {named} of {} frames have names", frames().count());
    let inherited = backend.callsites.iter().filter(|callsite| callsite.inherited);
    let count: u64 = inherited.map(|callsite| callsite.totals.inherited_count.as_u64().expect("exact")).sum();
    assert_eq!(backend.totals.inherited_count.as_u64(), Some(count), "{pid}");
}

/// Fails unless the answer to `SORT` is in the ledger of the process that computed it.
#[track_caller]
fn check_sort(backend: &Process) {
    let sorts = backend.exact_under(|name| name == "tuplesort_begin_datum" || name == "tuplesort_begin_heap");
    assert!(sorts.alloc_count > 0 && sorts.alloc_bytes > 10_000, "{:?}: {sorts:?}", backend.beginning);
    let plans = backend.callsites.iter().filter(|callsite| callsite.has(|name| name == "PostgresMain"));
    assert!(plans.count() > 0, "no stack reaches the backend's main loop");
}

const SORT: &str = "select count(*) from (select x from generate_series(1, 20000) as x order by random()) as y";

/// Fails unless the exit code and the summary report the drops.
#[track_caller]
fn check_losses(report: &Report, outcome: &Outcome) {
    let lost: u64 = report.health.lost.values().sum();
    let code = outcome.status.code();
    assert_eq!(report.others.skipped_count, 0, "{:?}", report.others.skipped);
    assert!(
        code == Some(0) && lost * 1000 <= report.health.events
            || code == Some(3) && outcome.stdout.contains("incomplete"),
        "{lost} lost: {outcome:?}"
    );
}

/// Runs backends while heapbpf records.
fn record(hold: &str) {
    let postgres = Postgres::start();
    let before = postgres.backends();
    let arguments = ["-v", "--cmdline", "postgres", "--interval", "1", "--hold", hold, "-o", "out.json"];
    let mut heapbpf = Heapbpf::new(arguments);
    let mut session = heapbpf.start();
    postgres.bench(&["-n", "-c", "4", "-j", "1", "-t", "50"]);
    let mut client = postgres.connect();
    let backend = client.backend;
    session.wait_for(&format!("process {backend} (postgres) is being recorded"));
    assert_eq!(client.query(SORT), "20000");
    client.close();
    let outcome = session.interrupt();
    let report = heapbpf.report("out.json");
    check_losses(&report, &outcome);

    let backends: Vec<u32> = postgres.backends().difference(&before).copied().collect();
    assert!(backends.len() >= 6 && backends.contains(&backend), "{backends:?}");
    let seen = |pid: &&u32| report.targets.iter().any(|process| process.pid == **pid);
    let unseen = backends.iter().filter(|pid| !seen(pid)).count();
    assert!(unseen as u64 <= report.others.short_lived_count, "{unseen} of {backends:?}");
    backends.iter().filter(seen).for_each(|&pid| check_backend(only(&report, pid), postgres.postmaster()));
    check_sort(only(&report, backend));
    let mut late: Vec<u64> = report.targets.iter().filter_map(|process| process.beginning.delay_ns).collect();
    late.sort_unstable();
    let of = |at: usize| late[at] as f64 / 1e6;
    eprintln!(
        "--hold {hold}: seen {:.1} to {:.1} ms after the fork, median {:.1}",
        of(0),
        of(late.len() - 1),
        of(late.len() / 2)
    );
    // Besides those, the processes that ran all the time.
    let postmaster = only(&report, postgres.postmaster());
    assert!(!postmaster.exited && postmaster.beginning.origin == "running");
    assert!(postmaster.callsites.iter().any(|callsite| callsite.has(|name| name == "PostmasterMain")));
    let stay = report.targets.iter().filter(|process| !process.exited).count();
    assert!(stay >= 4, "{stay} processes of the server");
    assert_no_probes(postgres.postmaster());
}

#[test]
fn each_backend_has_its_own_ledger() {
    record("execs");
}

#[test]
fn backends_are_recorded_when_forks_are_held_too() {
    record("forks");
}

#[test]
fn a_server_started_later_is_recorded_with_all_its_processes() {
    let mut heapbpf = Heapbpf::new(["-v", "--cmdline", "postgres", "--interval", "1", "-o", "out.json"]);
    let mut session = heapbpf.start();
    let postgres = Postgres::start();
    let mut client = postgres.connect();
    let pid = client.backend;
    session.wait_for(&format!("process {pid} (postgres) is being recorded"));
    assert_eq!(client.query(SORT), "20000");
    client.close();
    let outcome = session.interrupt();
    let report = heapbpf.report("out.json");
    check_losses(&report, &outcome);
    let backend = only(&report, pid);
    check_backend(backend, postgres.postmaster());
    check_sort(backend);
    // It started with what the postmaster had set up, and freed most of it.
    let inherited = backend.totals.inherited_count.as_u64().expect("exact");
    assert!(inherited > 0 && backend.totals.exact().free_count > 0, "{:?}", backend.totals);
    let postmaster = only(&report, postgres.postmaster());
    assert_eq!(postmaster.beginning.origin, "exec");
    assert!(postmaster.callsites.iter().any(|callsite| callsite.has(|name| name == "PostmasterMain")));
}
