//! Tests on the kernel of this machine, with shells as targets.

use std::fmt::Debug;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use aya::Pod;
use aya::maps::Array;
use profiler_common::limits::{INFLIGHT_BUCKETS, INFLIGHT_WAYS};
use profiler_common::record::{ExecRecord, ForkRecord, RecordKind};
use profiler_common::target::FOLLOWS_FORKS;

use super::*;
use crate::bpf::fixture;
use crate::bpf::load::LinkKind;
use crate::bpf::ring::Ring;

/// A decoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    Fork { parent: u32, child: u32, shares_memory: u32 },
    Exec(u32),
}

/// Decodes a record at field offsets, independently of the decoder.
fn decode(bytes: &[u8]) -> Record {
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("records are whole"));
    match RecordKind::from_wire(bytes[0]) {
        Some(RecordKind::Fork) => Record::Fork {
            parent: word(4),
            child: word(std::mem::offset_of!(ForkRecord, child)),
            shares_memory: word(std::mem::offset_of!(ForkRecord, shares_memory)),
        },
        Some(RecordKind::Exec) => {
            assert_eq!(bytes.len(), size_of::<ExecRecord>());
            Record::Exec(word(4))
        }
        other => panic!("a record of kind {other:?}, with no probe attached"),
    }
}

fn drain(ring: &mut Ring) -> Vec<Record> {
    let mut records = Vec::new();
    ring.drain(usize::MAX, |bytes| records.push(decode(bytes)));
    records
}

/// A kernel side with tracepoints attached, without targets.
fn monitoring(all_execs: bool) -> (Kernel, Ring) {
    let mut kernel = fixture::kernel_that(LinkKind::Perf, |config| config.all_execs = all_execs);
    kernel.attach_tracepoints().expect("this kernel has raw tracepoints and BTF");
    let ring = kernel.take_ring().expect("not taken yet");
    (kernel, ring)
}

fn get<K: Pod, V: Pod + Debug>(kernel: &Kernel, map: &'static str, key: K) -> Option<V> {
    let map: HashMap<_, K, V> = HashMap::try_from(kernel.map(map).expect("it exists")).expect("of this size");
    map.get(&key, 0).ok()
}

fn put<K: Pod, V: Pod>(kernel: &mut Kernel, map: &'static str, key: K, value: V) {
    let map = kernel.map_mut(map).expect("it exists");
    let mut map: HashMap<_, K, V> = HashMap::try_from(map).expect("of this size");
    map.insert(key, value, 0).expect("there is room");
}

/// A bucket of calls: the threads' ids, then the calls of 64 bytes each.
type CallBucket = [u64; INFLIGHT_WAYS * 9];

fn call_bucket(kernel: &Kernel, thread: u64) -> (u32, CallBucket) {
    let index = u32::try_from(thread & u64::from(INFLIGHT_BUCKETS - 1)).expect("it has few bits");
    let map = Array::<_, CallBucket>::try_from(kernel.map("INFLIGHT").expect("it exists")).expect("of this size");
    (index, map.get(&index, 0).expect("the index is below the length"))
}

fn start_call(kernel: &mut Kernel, thread: u64) {
    let (index, mut bucket) = call_bucket(kernel, thread);
    let free = bucket[..INFLIGHT_WAYS].iter().position(|&owner| owner == 0).expect("there is room");
    bucket[free] = thread;
    let map = kernel.map_mut("INFLIGHT").expect("it exists");
    Array::<_, CallBucket>::try_from(map)
        .expect("of this size")
        .set(index, bucket, 0)
        .expect("the index is below the length");
}

fn is_in_call(kernel: &Kernel, thread: u64) -> bool {
    call_bucket(kernel, thread).1[..INFLIGHT_WAYS].contains(&thread)
}

/// A shell that runs a script in steps, one per line of input.
struct Shell {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Shell {
    /// Starts the shell and waits until it runs: `spawn` returns slightly before the exec is recorded.
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
        // The shell may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("there is memory")
}

/// Limit for a wake-up, reached only if it never comes.
const WOKEN_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn nested_forks_are_reported_and_wake_the_agent() {
    runtime().block_on(async {
        let (mut kernel, mut ring) = monitoring(false);
        let mut shell = Shell::start("read x; ( ( echo in; read y ); echo out; read z ); echo end");
        kernel.set_target(Pid(shell.pid()), FOLLOWS_FORKS).expect("there is room");
        let mappings =
            ProcessMappings { first: 3, count: 4, serial: 5, copies: 6, interpreter: 7, machine: 8, changes: 9 };
        put(&mut kernel, "PROCESSES", shell.pid(), mappings);
        assert_eq!(drain(&mut ring), []);

        shell.send();
        let woken = tokio::time::timeout(WOKEN_WITHIN, ring.filled()).await;
        woken.expect("a fork wakes the agent").expect("the ring buffer can be awaited");
        assert_eq!(shell.answer(), "in");
        let records = drain(&mut ring);
        let [
            Record::Fork { parent, child, shares_memory: 0 },
            Record::Fork { parent: middle, child: last, shares_memory: 0 },
        ] = records[..]
        else {
            panic!("two forks expected: {records:?}");
        };
        assert_eq!((parent, middle), (shell.pid(), child));
        for pid in [child, last] {
            assert!(std::path::Path::new(&format!("/proc/{pid}/stat")).exists(), "it waits for input");
            assert_eq!(get(&kernel, "TARGETS", pid), Some(FOLLOWS_FORKS));
            assert_eq!(get(&kernel, "PROCESSES", pid), Some(mappings), "its stacks unwind as its parent's do");
        }

        // Exits write no records; the agent itself detects the exits of reported forks.
        shell.send();
        assert_eq!(shell.answer(), "out");
        shell.send();
        assert_eq!(shell.answer(), "end");
        assert_eq!(drain(&mut ring), []);
    });
}

#[test]
fn forks_are_not_reported_unless_followed() {
    runtime().block_on(async {
        let (mut kernel, mut ring) = monitoring(false);
        let mut shell = Shell::start("read x; ( echo in; read y ); echo out; read z; ( echo again )");
        kernel.set_target(Pid(shell.pid()), 0).expect("there is room");
        shell.send();
        assert_eq!(shell.answer(), "in");
        kernel.set_target(Pid(shell.pid()), FOLLOWS_FORKS).expect("there is room");
        kernel.forget_target(Pid(shell.pid())).expect("it is a target");
        kernel.forget_target(Pid(shell.pid())).expect("it need not be a target");
        shell.send();
        assert_eq!(shell.answer(), "out");
        shell.send();
        assert_eq!(shell.answer(), "again");
        assert_eq!(drain(&mut ring), []);
    });
}

#[test]
fn execs_of_targets_are_reported() {
    runtime().block_on(async {
        let (mut kernel, mut ring) = monitoring(false);
        let script = "read x; exec /bin/sh -c 'echo new; read y'";
        let (mut shell, mut stranger) = (Shell::start(script), Shell::start(script));
        let pid = shell.pid();
        kernel.set_target(Pid(pid), 0).expect("there is room");
        put(
            &mut kernel,
            "PROCESSES",
            pid,
            ProcessMappings { first: 3, count: 4, serial: 5, copies: 6, interpreter: 7, machine: 8, changes: 9 },
        );
        let thread = u64::from(pid) << 32 | u64::from(pid);
        start_call(&mut kernel, thread);
        for shell in [&mut stranger, &mut shell] {
            shell.send();
            assert_eq!(shell.answer(), "new");
        }
        assert_eq!(drain(&mut ring), [Record::Exec(pid)]);
        let mappings = get::<u32, ProcessMappings>(&kernel, "PROCESSES", pid);
        assert_eq!(mappings, Some(ProcessMappings::UNREAD), "stacks are copied until the new mappings are read");
        assert!(!is_in_call(&kernel, thread));
        assert_eq!(get(&kernel, "TARGETS", pid), Some(0u32), "the agent decides whether it stays a target");
    });
}

#[test]
fn execs_of_all_processes_are_reported_on_request() {
    runtime().block_on(async {
        let (_kernel, mut ring) = monitoring(true);
        let shell = Shell::start("read x");
        // Other tests start programs meanwhile.
        let records = drain(&mut ring);
        assert!(records.contains(&Record::Exec(shell.pid())), "{records:?}");
        assert!(records.iter().all(|record| matches!(record, Record::Exec(_))), "forks of targets only: {records:?}");
    });
}

#[test]
fn an_exec_is_reported_once_despite_copies() {
    runtime().block_on(async {
        let (kernel, mut ring) = monitoring(true);
        let shells: Vec<Shell> = (0..20).map(|_| Shell::start("read x")).collect();
        let records = drain(&mut ring);
        for shell in &shells {
            let of_it = records.iter().filter(|record| **record == Record::Exec(shell.pid())).count();
            assert_eq!(of_it, 1, "{records:?}");
        }
        // Skipped runs and the execs of other tests are counted too, so the total is not exact.
        assert!(Counters::read_one(&kernel, Counter::ExecsSeen).expect("it is there") >= 20);
        assert_eq!(kernel.tracepoints_missed(), 0);
    });
}

#[test]
fn children_that_share_memory_are_marked_and_threads_are_not_reported() {
    runtime().block_on(async {
        let (mut kernel, mut ring) = monitoring(false);
        let me = std::process::id();
        kernel.set_target(Pid(me), FOLLOWS_FORKS).expect("there is room");
        let thread = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        let tid = thread.join().expect("it does not panic");
        let wait = |command: &mut Command| command.spawn().map(|child| (child.id(), child.wait_with_output()));
        // The standard library uses vfork unless an option prevents it.
        let (sharing, _) = wait(&mut Command::new("/bin/true")).expect("there is such a program");
        let (copying, _) = wait(Command::new("/bin/true").uid(0)).expect("there is such a program");
        kernel.forget_target(Pid(me)).expect("it is there");

        // Other tests of this program start processes meanwhile.
        let records = drain(&mut ring);
        let of = |pid| {
            let is_its =
                |record: &&Record| matches!(record, Record::Fork { child, .. } | Record::Exec(child) if *child == pid);
            records.iter().filter(is_its).copied().collect::<Vec<_>>()
        };
        let fork = |child, shares_memory| Record::Fork { parent: me, child, shares_memory };
        assert_eq!(of(sharing), [fork(sharing, 1), Record::Exec(sharing)]);
        assert_eq!(of(copying), [fork(copying, 0), Record::Exec(copying)]);
        assert_eq!((of(tid), of(me)), (vec![], vec![]), "a thread is no process");
    });
}

#[test]
fn an_exiting_threads_unfinished_call_is_removed() {
    runtime().block_on(async {
        let (mut kernel, mut ring) = monitoring(false);
        let mut shell = Shell::start("read x");
        // The other thread's call is in the same bucket.
        let thread = u64::from(shell.pid()) << 32 | u64::from(shell.pid());
        let other = thread ^ u64::from(INFLIGHT_BUCKETS);
        start_call(&mut kernel, thread);
        start_call(&mut kernel, other);
        shell.child.kill().expect("it runs");
        shell.child.wait().expect("it is our child");
        assert!(!is_in_call(&kernel, thread), "the thread's own");
        assert!(is_in_call(&kernel, other), "another thread's");
        assert_eq!(drain(&mut ring), []);
    });
}

#[test]
fn a_process_is_removed_with_its_last_thread() {
    runtime().block_on(async {
        let (mut kernel, mut ring) = monitoring(false);
        let me = std::process::id();
        let (mut shell, stranger) = (Shell::start("read x; exit 0"), Shell::start("read x"));
        let mappings =
            ProcessMappings { first: 3, count: 4, serial: 5, copies: 6, interpreter: 7, machine: 8, changes: 9 };
        for pid in [me, shell.pid(), stranger.pid()] {
            kernel.set_target(Pid(pid), 0).expect("there is room");
            put(&mut kernel, PROCESSES, pid, mappings);
        }
        std::thread::spawn(|| ()).join().expect("it does not panic");
        shell.send();
        shell.child.wait().expect("it is our child");
        let known =
            |pid| (get::<u32, u32>(&kernel, TARGETS, pid), get::<u32, ProcessMappings>(&kernel, PROCESSES, pid));
        assert_eq!(known(shell.pid()), (None, None));
        assert_eq!(known(stranger.pid()), (Some(0), Some(mappings)), "it runs");
        assert_eq!(known(me), (Some(0), Some(mappings)), "a thread is not the process");
        assert_eq!(drain(&mut ring), []);
    });
}

#[test]
fn a_vfork_child_is_removed_when_it_exits_without_exec() {
    runtime().block_on(async {
        let (mut kernel, mut ring) = monitoring(false);
        // The exec fails, so the child exits.
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
        kernel.set_target(Pid(shell.pid()), FOLLOWS_FORKS).expect("there is room");
        shell.send();
        assert_eq!(shell.answer(), "none");
        let records = drain(&mut ring);
        let [Record::Fork { child, shares_memory: 1, .. }] = records[..] else {
            panic!("a vfork expected: {records:?}");
        };
        assert_eq!(get::<u32, u32>(&kernel, TARGETS, child), None);
        assert_eq!(get(&kernel, TARGETS, shell.pid()), Some(FOLLOWS_FORKS));
    });
}

#[test]
fn unused_programs_have_no_misses() {
    for links in [LinkKind::Perf, LinkKind::Session] {
        assert_eq!(fixture::kernel(links).probes_missed(), 0);
    }
}
