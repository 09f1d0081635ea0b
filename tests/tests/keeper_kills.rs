//! Processes after `kill -9` of heapbpf at any time: nothing is left in them.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_tests::faults::random::Random;
use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::kernel::{children, keeper, require_root, state, tasks};
use heapbpf_tests::target::{Target, build, run};

/// Number of kills of each kind, at fixed delays; and at random ones if HEAPBPF_FAULTS_RANDOM is set, as by `cargo xtask nightly`.
const KILLS: u32 = 20;
const RANDOM_KILLS: u32 = 60;
/// Maximum duration of a stop.
const STOPPED_WITHIN: Duration = Duration::from_millis(4);

/// Timeout for hangs.
const WITHIN: Duration = Duration::from_secs(60);

/// Points in time for kills, as shares of a duration.
struct Shares {
    random: Option<Random>,
    made: u32,
}

impl Shares {
    fn new() -> Self {
        let is_random = std::env::var_os("HEAPBPF_FAULTS_RANDOM").is_some();
        Self { random: is_random.then(|| Random::new(u64::from(std::process::id()))), made: 0 }
    }

    fn count(&self) -> u32 {
        if self.random.is_some() { RANDOM_KILLS } else { KILLS }
    }

    /// The next point in time. Two consecutive ones are about equal, for two kinds of kills.
    fn of(&mut self, whole: Duration) -> Duration {
        self.made += 1;
        match &mut self.random {
            Some(random) => random.duration(whole),
            None => whole * (self.made / 2) / (KILLS / 2),
        }
    }
}

/// Returns a thread's state and whether it is traced; `None` if it has exited.
fn thread_of(pid: u32, tid: u32) -> Option<(char, bool)> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some((field("State:")?.chars().next()?, field("TracerPid:")? != "0"))
}

fn is_free(pid: u32) -> bool {
    let threads = tasks(pid).into_iter().filter_map(|tid| thread_of(pid, tid));
    threads.into_iter().all(|(state, is_traced)| !is_traced && !matches!(state, 't' | 'T'))
}

/// Fails unless, after a short time, no thread of the process is stopped or traced, and it has no child and works.
#[track_caller]
fn assert_untouched(target: &mut Target, pid: u32, kill: u32) {
    let deadline = Instant::now() + WITHIN;
    while !is_free(pid) {
        assert!(Instant::now() < deadline, "kill {kill}: threads of the target are stopped or traced");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(children(pid), Vec::<u32>::new(), "kill {kill}");
    target.run_command("check");
}

/// Measures the duration of a heap snapshot by `heapbpf leaks`.
#[track_caller]
fn duration(arguments: &[&str]) -> Duration {
    let begun = Instant::now();
    let outcome = Heapbpf::new(arguments).run();
    assert!(matches!(outcome.status.code(), Some(0 | 4)), "{outcome:?}");
    begun.elapsed()
}

/// Kills heapbpf during a heap snapshot.
#[track_caller]
fn check_kills(snapshot: &str) {
    let mut target = Target::start("interrupted_calls.c");
    let pid = target.pid().to_string();
    let arguments = ["leaks", "--pid", &pid, "--quiet", "--snapshot", snapshot];
    let whole = duration(&arguments);
    let mut shares = Shares::new();
    for kill in 1..=shares.count() {
        let mut heapbpf = Heapbpf::new(arguments);
        let session = heapbpf.spawn();
        let spawned = Instant::now();
        // Every other kill is in the middle of the stop, which is shorter than what precedes and follows it.
        let limit = spawned + whole * 2;
        if kill % 2 == 0 {
            while is_free(target.pid()) && Instant::now() < limit {}
            thread::sleep(shares.of(STOPPED_WITHIN));
        } else {
            thread::sleep(shares.of(whole));
        }
        // Kills heapbpf unless it has exited.
        drop(session);
        let pid = target.pid();
        assert_untouched(&mut target, pid, kill);
        target.assert_running();
    }
    target.exit(9);
}

#[test]
fn heapbpf_is_killed_while_it_makes_a_process_fork() {
    check_kills("fork");
}

#[test]
fn heapbpf_is_killed_while_it_makes_its_command_fork() {
    require_root();
    let program = build("interrupted_calls.c");
    let mut shares = Shares::new();
    for kill in 1..=shares.count() {
        let mut command = Command::new(binary());
        command.args(["leaks", "--quiet", "--snapshot", "fork", "--"]).arg(&program).stderr(Stdio::null());
        let mut heapbpf = Target::spawn(&mut command);
        let pid = heapbpf.child_pid();
        run(Command::new("kill").args(["-USR1", &heapbpf.pid().to_string()]));
        let limit = Instant::now() + Duration::from_secs(2);
        while state(pid) != 't' && Instant::now() < limit {}
        thread::sleep(shares.of(STOPPED_WITHIN));
        heapbpf.kill();
        assert_untouched(&mut heapbpf, pid, kill);
        heapbpf.begin_exit(0);
    }
}

#[test]
fn heapbpf_reports_that_its_keeper_was_killed() {
    let mut target = Target::start("leaks/holder.c");
    let pid = target.pid().to_string();
    // The kill is early enough unless the machine is very busy.
    for _ in 0..20 {
        let mut heapbpf = Heapbpf::new(["leaks", "--pid", &pid, "--quiet"]);
        let session = heapbpf.spawn();
        let keeper = loop {
            match keeper(session.pid()) {
                Some(keeper) => break keeper.to_string(),
                None => thread::yield_now(),
            }
        };
        // Makes heapbpf wait for it.
        run(Command::new("kill").args(["-STOP", &keeper]));
        thread::sleep(Duration::from_millis(200));
        run(Command::new("kill").args(["-KILL", &keeper]));
        let outcome = session.wait();
        if outcome.status.code() == Some(0) {
            continue;
        }
        let text = outcome.expect_error(1);
        assert!(text.contains("the keeper process has exited"), "{text}");
        target.run_command("hold global");
        return target.exit(0);
    }
    panic!("the keeper was always done before");
}

#[test]
fn heapbpf_is_killed_while_it_reads_a_stopped_process() {
    check_kills("read");
}
