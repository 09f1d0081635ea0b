//! Real programs under load, checked for leaks: they answer every request correctly and continue, and reported leaks
//! are real. `docs/leaks.md` explains each of them.

#![expect(clippy::print_stderr, reason = "prints figures with --nocapture")]

mod runs;

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use heapbpf_tests::kernel::{assert_no_probes, tracer};
use heapbpf_tests::nginx::Nginx;
use heapbpf_tests::postgres::Postgres;
use heapbpf_tests::redis::{self, Redis};
use heapbpf_tests::target::run;
use heapbpf_tests::unreachable::{Check, Leak};
use runs::{launch, run_check, under_load};

/// Not only Debian's Python: one with its own arenas, caches and objects.
const PYTHON: &str = "/usr/bin/python3";

/// Checks a process whose heap can be walked with each method, and fails if the reported leaks exceed
/// `leaked_bytes_max`.
fn check_with_each_method(pid: u32, heap: &str, known_bytes_min: u64, leaked_bytes_max: u64) -> Vec<Check> {
    let ways = ["", "--snapshot fork", "--watch 3s", "--watch 2s --snapshot fork"];
    let looks: Vec<Check> = ways.iter().map(|arguments| run_check(pid, arguments)).collect();
    for (found, way) in looks.iter().zip(ways) {
        assert_eq!(found.method, if way.contains("fork") { "fork" } else { "read" });
        assert_eq!(found.watched_ns.is_some(), way.contains("watch"));
        let heap = found.heap(heap);
        assert_eq!((heap.precision.as_str(), heap.gaps.len()), ("walked", 0), "{:?}", heap.gaps);
        assert!(found.known.bytes >= known_bytes_min, "`{way}`: {}", found.leak_list());
        assert!(found.leaked.bytes <= leaked_bytes_max, "`{way}`: {}", found.leak_list());
    }
    assert_no_probes(pid);
    assert_eq!(tracer(pid), None);
    looks
}

#[test]
fn redis_under_load() {
    let redis = Redis::start();
    redis.set_and_get(2000);
    under_load(
        || redis.set_and_get(200),
        || {
            for found in check_with_each_method(redis.pid(), "jemalloc", 1 << 20, 0) {
                assert!(found.known.count > 1000, "{}", found.leak_list());
            }
        },
    );
    assert_no_probes(redis.pid());
    redis.shut_down();
}

#[test]
fn redis_from_its_first_call_to_its_exit() {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let arguments = redis::arguments(directory.path());
    let command: Vec<&str> = ["redis-server"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let (_, found) = std::thread::scope(|scope| {
        let launched = scope.spawn(|| launch("", &command));
        redis::wait_until_ready(directory.path());
        redis::shut_down(directory.path());
        launched.join().expect("the load thread succeeded")
    });
    assert_eq!(found.heap("jemalloc").precision, "watched");
    assert!(found.known.count > 1000, "{}", found.leak_list());
    assert!(found.leaked.bytes < 4096, "{}", found.leak_list());
}

#[test]
fn nginx_under_load() {
    let nginx = Nginx::start();
    under_load(|| nginx.request(), || drop(check_with_each_method(nginx.worker(), "libc", 100 << 10, 0)));
    nginx.request();
}

#[test]
fn a_postgres_backend_under_load() {
    let postgres = Postgres::start();
    let client = postgres.connect();
    let backend = client.backend;
    let client = Mutex::new(client);
    let ask = |query: &str| client.lock().expect("the load has not failed").query(query);
    let load = || {
        assert_eq!(ask("select count(*) from pgbench_accounts where aid % 7 = 0"), "14285");
        assert_eq!(ask("select sum(length(repeat('x', n))) from generate_series(1, 200) n"), "20100");
        assert_eq!(ask("select relname from pg_class where relname = 'pgbench_tellers'"), "pgbench_tellers");
        assert_eq!(ask("select string_agg(n::text, '' order by n desc) from generate_series(1, 5) n"), "54321");
    };
    under_load(load, || drop(check_with_each_method(backend, "libc", 500 << 10, 4096)));
    // Others are served at the same time: the server sees no backend exit.
    postgres.bench(&["-c", "2", "-t", "20"]);
    client.into_inner().expect("the load has not failed").close();
}

/// A service in Python that reads commands line by line. Killed when dropped.
struct Shelf {
    child: Child,
    pipes: Mutex<RefCell<(ChildStdin, BufReader<ChildStdout>, u64)>>,
}

impl Shelf {
    fn start() -> Self {
        let mut python = Command::new(PYTHON);
        let mut child = python.arg(shelf()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let stdin = child.stdin.take().expect("stdin is piped");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("it speaks");
        assert_eq!(line, "ready\n");
        Self { child, pipes: Mutex::new(RefCell::new((stdin, stdout, 0))) }
    }

    /// Sends a request, and fails unless the answer is correct.
    fn request(&self) {
        let mut pipes = self.pipes.lock().expect("the load has not failed");
        let (stdin, stdout, number) = pipes.get_mut();
        *number += 1;
        writeln!(stdin, "{number}").expect("it listens");
        let mut line = String::new();
        stdout.read_line(&mut line).expect("it answers");
        assert_eq!(line.trim_end().parse::<u64>().ok(), Some(*number + *number % 20), "{line}");
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn shelf() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/shelf.py").display().to_string()
}

/// Leaks of shelf.py.
const FORGOTTEN: u64 = 20;

/// Number of them that each check must find. An interpreter's free memory has many old words, some of which are the
/// upper half of a pointer behind the end of a string: such a word can equal the address of an unreachable block, which
/// then counts as reachable.
const FORGOTTEN_LEAST: u64 = 15;

/// Leaked blocks of the size of those that shelf.py leaks: malloc rounds it up.
fn forgotten(found: &Check) -> u64 {
    let size = |leak: &&Leak| (3001..3001 + 16).contains(&leak.size_bytes);
    found.leaks.iter().filter(size).map(|leak| 1 + leak.similar.count).sum()
}

#[test]
fn python_under_load() {
    let shelf = Shelf::start();
    under_load(
        || shelf.request(),
        || {
            for found in check_with_each_method(shelf.child.id(), "libc", 500 << 10, 65_000) {
                let forgotten = forgotten(&found);
                assert!((FORGOTTEN_LEAST..=FORGOTTEN).contains(&forgotten), "{}", found.leak_list());
            }
        },
    );
}

#[test]
fn python_from_its_first_call_to_its_exit() {
    let (stdout, found) = launch("", &[PYTHON, &shelf()]);
    assert_eq!(stdout.lines().next(), Some("ready"));
    assert_eq!(found.heap("libc").precision, "watched");
    assert!((FORGOTTEN_LEAST..=FORGOTTEN).contains(&forgotten(&found)), "{}", found.leak_list());
    let leak = found.leaks.iter().find(|leak| leak.size_bytes == 3001);
    let leak = leak.unwrap_or_else(|| panic!("no block with the requested size: {}", found.leak_list()));
    assert!(leak.watched, "{leak:?}");
    // A library just loaded has no unwind tables yet: until then, stacks through it end there.
    let functions = leak.functions();
    assert!(functions.is_empty() || functions.contains(&"ffi_call"), "{}", found.leak_list());
}

/// Creates a repository of a few commits.
fn repository() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    git(folder.path(), &["init", "-q"]);
    for number in 0..20 {
        std::fs::write(folder.path().join(format!("file{}", number % 7)), format!("{number}\n").repeat(number + 1))
            .expect("the directory is ours");
        git(folder.path(), &["add", "."]);
        git(folder.path(), &["commit", "-q", "-m", &format!("Change {number}")]);
    }
    std::fs::write(folder.path().join("new"), "new\n").expect("the directory is ours");
    folder
}

const GIT: &str = "/usr/bin/git";

const GIT_AS: [&str; 4] = ["-c", "user.name=Tests", "-c", "user.email=tests@localhost"];

fn git(folder: &Path, words: &[&str]) {
    run(Command::new(GIT).args(GIT_AS).arg("-C").arg(folder).args(words));
}

/// Returns the number of blocks that valgrind reports as unreachable, and their bytes. Like in heapbpf, blocks
/// referenced by interior pointers are reachable.
#[track_caller]
fn lost_for_valgrind(command: &[&str]) -> (u64, u64) {
    let output = Command::new("valgrind").arg("--leak-check=full").args(command).output();
    let output = output.unwrap_or_else(|error| panic!("valgrind: {error}: `apt-get install valgrind` has it"));
    let said = String::from_utf8_lossy(&output.stderr).replace(',', "");
    let of = |kind: &str| {
        let line =
            said.lines().find_map(|line| line.split_once(kind)).unwrap_or_else(|| panic!("no `{kind}`: {said}")).1;
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [bytes, count] = numbers[..] else { panic!("{line}") };
        (count, bytes)
    };
    let (direct, indirect) = (of("definitely lost:"), of("indirectly lost:"));
    (direct.0 + indirect.0, direct.1 + indirect.1)
}

#[test]
fn git_leaks_what_valgrind_reports() {
    let repository = repository();
    let folder = repository.path().display().to_string();
    let calls: [(&[&str], bool); 4] = [
        (&["log", "--stat", "--format=%s"], false),
        (&["status", "--short"], false),
        (&["diff", "HEAD~3"], true),
        (&["blame", "file1"], true),
    ];
    for (words, leaks) in calls {
        let command: Vec<&str> = [GIT, "--no-pager", "-C", &folder].into_iter().chain(words.iter().copied()).collect();
        let alone = Command::new(command[0]).args(&command[1..]).output().expect("git starts");
        let (stdout, found) = launch("", &command);
        assert_eq!(stdout, String::from_utf8_lossy(&alone.stdout), "git {words:?}");
        assert_eq!(found.heap("libc").precision, "watched");
        assert!(found.known.count > 100, "git {words:?}: {}", found.leak_list());
        assert_eq!(found.leak_count > 0, leaks, "git {words:?}: {}", found.leak_list());
        let expected = lost_for_valgrind(&command);
        assert_eq!((found.leaked.count, found.leaked.bytes), expected, "git {words:?}: {}", found.leak_list());
    }
}
