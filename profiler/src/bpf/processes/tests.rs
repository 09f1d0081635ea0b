//! On the kernel of this machine, with shells for targets.

use std::fmt::Debug;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use aya::Pod;
use profiler_common::record::{ExecRecord, ForkRecord, RecordKind};

use super::*;
use crate::bpf::fixture;
use crate::bpf::load::LinkKind;
use crate::bpf::ring::Ring;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Fork { parent: u32, child: u32, shares_memory: u32 },
    Exec(u32),
}

/// Fields at their offsets: what decodes them elsewhere is not to be known here.
fn seen(bytes: &[u8]) -> Seen {
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("records are whole"));
    match RecordKind::from_wire(bytes[0]) {
        Some(RecordKind::Fork) => Seen::Fork {
            parent: word(4),
            child: word(std::mem::offset_of!(ForkRecord, child)),
            shares_memory: word(std::mem::offset_of!(ForkRecord, shares_memory)),
        },
        Some(RecordKind::Exec) => {
            assert_eq!(bytes.len(), size_of::<ExecRecord>());
            Seen::Exec(word(4))
        }
        other => panic!("a record of kind {other:?}, with no probe attached"),
    }
}

fn drain(ring: &mut Ring) -> Vec<Seen> {
    let mut records = Vec::new();
    ring.drain(usize::MAX, |bytes| records.push(seen(bytes)));
    records
}

/// Watches, with nobody for a target yet.
fn watching(watch_execs: bool) -> (Kernel, Ring) {
    let mut kernel = fixture::kernel_that(LinkKind::Perf, |config| config.watch_execs = watch_execs);
    kernel.watch_processes().expect("this kernel has raw tracepoints and type information");
    let ring = kernel.take_ring().expect("not taken yet");
    (kernel, ring)
}

fn has<K: Pod, V: Pod + Debug>(kernel: &Kernel, map: &'static str, key: K) -> Option<V> {
    let map: HashMap<_, K, V> = HashMap::try_from(kernel.map(map).expect("it exists")).expect("of this size");
    map.get(&key, 0).ok()
}

fn put<K: Pod, V: Pod>(kernel: &mut Kernel, map: &'static str, key: K, value: V) {
    let map = kernel.map_mut(map).expect("it exists");
    let mut map: HashMap<_, K, V> = HashMap::try_from(map).expect("of this size");
    map.insert(key, value, 0).expect("there is room");
}

/// A shell that does what it is told, line by line.
struct Shell {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Shell {
    /// Starts it and waits until it runs: what starts it goes on a moment before its exec is told.
    fn start(script: &str) -> Self {
        let mut child = Command::new("/bin/sh")
            .args(["-c", &format!("echo ready; {script}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut shell = Self { child, stdin, stdout };
        assert_eq!(shell.answer(), "ready");
        shell
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn send(&mut self) {
        writeln!(self.stdin, "go").expect("it reads");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it writes");
        line.trim_end().to_owned()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("there is memory")
}

/// How long a wake-up may take. Only one that never comes takes this long.
const WOKEN_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn forks_of_forks_are_told_while_they_run() {
    runtime().block_on(async {
        let (mut kernel, mut ring) = watching(false);
        let mut shell = Shell::start("read x; ( ( echo in; read y ); echo out; read z ); echo end");
        kernel.set_target(Pid(shell.pid()), true).expect("there is room");
        let mappings = ProcessMappings { first: 3, count: 4 };
        put(&mut kernel, "PROCESSES", shell.pid(), mappings);
        assert_eq!(drain(&mut ring), []);

        shell.send();
        let woken = tokio::time::timeout(WOKEN_WITHIN, ring.filled()).await;
        woken.expect("a fork wakes the agent").expect("the ring can be waited for");
        assert_eq!(shell.answer(), "in");
        let records = drain(&mut ring);
        let [
            Seen::Fork { parent, child, shares_memory: 0 },
            Seen::Fork { parent: middle, child: last, shares_memory: 0 },
        ] = records[..]
        else {
            panic!("two forks expected: {records:?}");
        };
        assert_eq!((parent, middle), (shell.pid(), child));
        for pid in [child, last] {
            assert!(std::path::Path::new(&format!("/proc/{pid}/stat")).exists(), "it runs until it is told to end");
            assert_eq!(has(&kernel, "TARGETS", pid), Some(FOLLOWS_FORKS));
            assert_eq!(has(&kernel, "PROCESSES", pid), Some(mappings), "its stacks unwind as its parent's do");
        }

        // Ends tell nothing; the agent, who has been told of the beginnings, sees them by itself.
        shell.send();
        assert_eq!(shell.answer(), "out");
        shell.send();
        assert_eq!(shell.answer(), "end");
        assert_eq!(drain(&mut ring), []);
    });
}

#[test]
fn forks_that_are_not_to_be_followed_are_not_told() {
    runtime().block_on(async {
        let (mut kernel, mut ring) = watching(false);
        let mut shell = Shell::start("read x; ( echo in; read y ); echo out; read z; ( echo again )");
        kernel.set_target(Pid(shell.pid()), false).expect("there is room");
        shell.send();
        assert_eq!(shell.answer(), "in");
        kernel.set_target(Pid(shell.pid()), true).expect("there is room");
        kernel.forget_target(Pid(shell.pid())).expect("it is there");
        kernel.forget_target(Pid(shell.pid())).expect("it need not be there");
        shell.send();
        assert_eq!(shell.answer(), "out");
        shell.send();
        assert_eq!(shell.answer(), "again");
        assert_eq!(drain(&mut ring), []);
    });
}

#[test]
fn execs_are_told_of_targets() {
    runtime().block_on(async {
        let (mut kernel, mut ring) = watching(false);
        let script = "read x; exec /bin/sh -c 'echo new; read y'";
        let (mut shell, mut stranger) = (Shell::start(script), Shell::start(script));
        let pid = shell.pid();
        kernel.set_target(Pid(pid), false).expect("there is room");
        put(&mut kernel, "PROCESSES", pid, ProcessMappings { first: 3, count: 4 });
        put(&mut kernel, "INFLIGHT", u64::from(pid) << 32 | u64::from(pid), [0u8; 64]);
        for shell in [&mut stranger, &mut shell] {
            shell.send();
            assert_eq!(shell.answer(), "new");
        }
        assert_eq!(drain(&mut ring), [Seen::Exec(pid)]);
        assert_eq!(has::<u32, ProcessMappings>(&kernel, "PROCESSES", pid), None, "those of the old program");
        assert_eq!(has::<u64, [u8; 64]>(&kernel, "INFLIGHT", u64::from(pid) << 32 | u64::from(pid)), None);
        assert_eq!(has(&kernel, "TARGETS", pid), Some(0u32), "the agent decides what it is now");
    });
}

#[test]
fn execs_are_told_of_all_where_wished() {
    runtime().block_on(async {
        let (_kernel, mut ring) = watching(true);
        let shell = Shell::start("read x");
        // Other tests start programs meanwhile.
        let records = drain(&mut ring);
        assert!(records.contains(&Seen::Exec(shell.pid())), "{records:?}");
        assert!(records.iter().all(|record| matches!(record, Seen::Exec(_))), "forks of targets alone: {records:?}");
    });
}

#[test]
fn an_exec_is_seen_once_by_its_copies() {
    runtime().block_on(async {
        let (kernel, mut ring) = watching(true);
        let shells: Vec<Shell> = (0..20).map(|_| Shell::start("read x")).collect();
        let records = drain(&mut ring);
        for shell in &shells {
            let of_it = records.iter().filter(|record| **record == Seen::Exec(shell.pid())).count();
            assert_eq!(of_it, 1, "{records:?}");
        }
        // Those that are skipped and those of other tests are counted too, so the sum does not say how many there were.
        assert!(Counters::read_one(&kernel, Counter::ExecsSeen).expect("it is there") >= 20);
        assert_eq!(kernel.tracepoints_missed(), 0);
    });
}

#[test]
fn children_that_share_the_memory_are_told_apart_and_threads_are_none() {
    runtime().block_on(async {
        let (mut kernel, mut ring) = watching(false);
        let me = std::process::id();
        kernel.set_target(Pid(me), true).expect("there is room");
        let thread = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        let tid = thread.join().expect("it does not panic");
        let wait = |command: &mut Command| command.spawn().map(|child| (child.id(), child.wait_with_output()));
        // The standard library forks in the cheap way, unless something is asked for that this way cannot do.
        let (sharing, _) = wait(&mut Command::new("/bin/true")).expect("there is such a program");
        let (copying, _) = wait(Command::new("/bin/true").uid(0)).expect("there is such a program");
        kernel.forget_target(Pid(me)).expect("it is there");

        // Other tests of this program start processes meanwhile.
        let records = drain(&mut ring);
        let of = |pid| {
            let is_its =
                |record: &&Seen| matches!(record, Seen::Fork { child, .. } | Seen::Exec(child) if *child == pid);
            records.iter().filter(is_its).copied().collect::<Vec<_>>()
        };
        let fork = |child, shares_memory| Seen::Fork { parent: me, child, shares_memory };
        assert_eq!(of(sharing), [fork(sharing, 1), Seen::Exec(sharing)]);
        assert_eq!(of(copying), [fork(copying, 0), Seen::Exec(copying)]);
        assert_eq!((of(tid), of(me)), (vec![], vec![]), "a thread is no process");
    });
}

#[test]
fn calls_that_a_threads_end_cuts_short_are_forgotten() {
    runtime().block_on(async {
        let (mut kernel, mut ring) = watching(false);
        let mut shell = Shell::start("read x");
        let (key, other) = (u64::from(shell.pid()) << 32 | u64::from(shell.pid()), u64::from(shell.pid()) << 32);
        put(&mut kernel, "INFLIGHT", key, [1u8; 64]);
        put(&mut kernel, "INFLIGHT", other, [1u8; 64]);
        shell.child.kill().expect("it runs");
        shell.child.wait().expect("it is our child");
        assert_eq!(has::<u64, [u8; 64]>(&kernel, "INFLIGHT", key), None, "that of the thread");
        assert_eq!(has(&kernel, "INFLIGHT", other), Some([1u8; 64]), "no other");
        assert_eq!(drain(&mut ring), []);
    });
}

#[test]
fn who_ends_is_forgotten_with_the_last_thread() {
    runtime().block_on(async {
        let (mut kernel, mut ring) = watching(false);
        let me = std::process::id();
        let (mut shell, stranger) = (Shell::start("read x; exit 0"), Shell::start("read x"));
        let mappings = ProcessMappings { first: 3, count: 4 };
        for pid in [me, shell.pid(), stranger.pid()] {
            kernel.set_target(Pid(pid), false).expect("there is room");
            put(&mut kernel, PROCESSES, pid, mappings);
        }
        std::thread::spawn(|| ()).join().expect("it does not panic");
        shell.send();
        shell.child.wait().expect("it is our child");
        let known =
            |pid| (has::<u32, u32>(&kernel, TARGETS, pid), has::<u32, ProcessMappings>(&kernel, PROCESSES, pid));
        assert_eq!(known(shell.pid()), (None, None));
        assert_eq!(known(stranger.pid()), (Some(0), Some(mappings)), "it runs");
        assert_eq!(known(me), (Some(0), Some(mappings)), "a thread is not the process");
        assert_eq!(drain(&mut ring), []);
    });
}

#[test]
fn who_runs_in_its_parents_memory_is_a_target_for_its_forks_alone_and_forgotten_when_it_ends() {
    runtime().block_on(async {
        let (mut kernel, mut ring) = watching(false);
        // What is not there cannot be executed: the child ends.
        let mut shell = Shell::start(
            "read x; exec python3 -c '
import os, subprocess, sys
print(subprocess._USE_VFORK, flush=True)
sys.stdin.readline()
try:
    subprocess.Popen([\"/nonexistent/program\"])
except FileNotFoundError:
    print(\"none\", flush=True)
sys.stdin.readline()
'",
        );
        shell.send();
        assert_eq!(shell.answer(), "True");
        kernel.set_target(Pid(shell.pid()), true).expect("there is room");
        shell.send();
        assert_eq!(shell.answer(), "none");
        let records = drain(&mut ring);
        let [Seen::Fork { child, shares_memory: 1, .. }] = records[..] else {
            panic!("a vfork expected: {records:?}");
        };
        assert_eq!(has::<u32, u32>(&kernel, TARGETS, child), None);
        assert_eq!(has(&kernel, TARGETS, shell.pid()), Some(FOLLOWS_FORKS));
    });
}
