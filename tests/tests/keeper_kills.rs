//! Processes after `kill -9` of heapbpf at a random time: nothing is left in them.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::kernel::{children, keeper, require_root, state, tasks};
use heapbpf_tests::target::{Target, build, run};

/// Number of kills of each kind.
const KILLS: u32 = 60;

/// Maximum time for all kills of a kind.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Timeout for hangs.
const WITHIN: Duration = Duration::from_secs(60);

/// Random number generator (<https://prng.di.unimi.it/splitmix64.c>).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
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

/// Kills heapbpf at random times during a heap snapshot.
#[track_caller]
fn check_kills(snapshot: &str) {
    let mut target = Target::start("interrupted_calls.c");
    let pid = target.pid().to_string();
    let arguments = ["leaks", "--pid", &pid, "--quiet", "--snapshot", snapshot];
    let whole = duration(&arguments);
    let mut random = Random(u64::from(std::process::id()));
    let begun = Instant::now();
    for kill in 1..=KILLS {
        let mut heapbpf = Heapbpf::new(arguments);
        let session = heapbpf.spawn();
        let spawned = Instant::now();
        // Every other kill is in the middle of the stop, which is shorter than what precedes and follows it.
        let limit = spawned + whole * 2;
        if kill % 2 == 0 {
            while is_free(target.pid()) && Instant::now() < limit {}
            thread::sleep(Duration::from_micros(random.below(4000)));
        } else {
            let micros = u64::try_from(whole.as_micros()).unwrap_or(u64::MAX);
            thread::sleep(Duration::from_micros(random.below(micros)));
        }
        // Kills heapbpf unless it has exited.
        drop(session);
        let pid = target.pid();
        assert_untouched(&mut target, pid, kill);
        target.assert_running();
        if begun.elapsed() > TIME_MAX {
            break;
        }
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
    let mut random = Random(u64::from(std::process::id()));
    let begun = Instant::now();
    for kill in 1..=KILLS {
        let mut command = Command::new(binary());
        command.args(["leaks", "--quiet", "--snapshot", "fork", "--"]).arg(&program).stderr(Stdio::null());
        let mut heapbpf = Target::spawn(&mut command);
        let pid = heapbpf.child_pid();
        run(Command::new("kill").args(["-USR1", &heapbpf.pid().to_string()]));
        let limit = Instant::now() + Duration::from_secs(2);
        while state(pid) != 't' && Instant::now() < limit {}
        thread::sleep(Duration::from_micros(random.below(4000)));
        heapbpf.kill();
        assert_untouched(&mut heapbpf, pid, kill);
        heapbpf.begin_exit(0);
        if begun.elapsed() > TIME_MAX {
            break;
        }
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
