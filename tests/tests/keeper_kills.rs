//! What is left of heapbpf in a process after `kill -9` of heapbpf at a random point in time: nothing.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::kernel::{children, tasks};
use heapbpf_tests::target::Target;

/// Kills of each kind.
const KILLS: u32 = 60;

/// Time for all kills of a kind.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Only a hang takes this long.
const WITHIN: Duration = Duration::from_secs(60);

/// A generator of numbers (<https://prng.di.unimi.it/splitmix64.c>).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// A thread's state and whether it is traced; `None` where it has exited meanwhile.
fn thread_of(pid: u32, tid: u32) -> Option<(char, bool)> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some((field("State:")?.chars().next()?, field("TracerPid:")? != "0"))
}

fn is_free(pid: u32) -> bool {
    let threads = tasks(pid).into_iter().filter_map(|tid| thread_of(pid, tid));
    threads.into_iter().all(|(state, is_traced)| !is_traced && !matches!(state, 't' | 'T'))
}

/// Fails unless no thread of the target is stopped or traced soon, and it has no child and works.
#[track_caller]
fn assert_untouched(target: &mut Target, kill: u32) {
    let deadline = Instant::now() + WITHIN;
    while !is_free(target.pid()) {
        assert!(Instant::now() < deadline, "kill {kill}: threads of the target are stopped or traced");
        target.assert_running();
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(children(target.pid()), Vec::<u32>::new(), "kill {kill}");
    target.order("check");
    target.assert_running();
}

/// How long a heap snapshot by `heapbpf leaks` takes.
#[track_caller]
fn duration(arguments: &[&str]) -> Duration {
    let begun = Instant::now();
    let outcome = Heapbpf::new(arguments).run();
    assert!(matches!(outcome.status.code(), Some(0 | 4)), "{outcome:?}");
    begun.elapsed()
}

/// Kills heapbpf at random points in time of a heap snapshot.
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
        // Every other time in the middle of the stop, which is shorter than what precedes and follows it.
        let limit = spawned + whole * 2;
        if kill % 2 == 0 {
            while is_free(target.pid()) && Instant::now() < limit {}
            thread::sleep(Duration::from_micros(random.below(4000)));
        } else {
            let micros = u64::try_from(whole.as_micros()).unwrap_or(u64::MAX);
            thread::sleep(Duration::from_micros(random.below(micros)));
        }
        // Kills it, if it has not exited.
        drop(session);
        assert_untouched(&mut target, kill);
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
fn heapbpf_is_killed_while_it_reads_a_stopped_process() {
    check_kills("read");
}
