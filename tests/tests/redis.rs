//! A real program under load: redis with jemalloc.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, text};
use heapbpf_tests::kernel::{assert_no_probes, changed_code};
use heapbpf_tests::target::run;
use tempfile::TempDir;

/// A redis-server of its own, on a socket in a directory of its own. Killed when dropped.
struct Redis {
    child: Child,
    directory: TempDir,
}

impl Redis {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("there is a directory for temporary files");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no", "--unixsocket"])
            .arg(directory.path().join("socket"))
            .arg("--dir")
            .arg(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("redis-server: {error}: `apt-get install redis` has it"));
        let redis = Self { child, directory };
        let deadline = Instant::now() + Duration::from_secs(30);
        while UnixStream::connect(redis.socket()).is_err() {
            assert!(Instant::now() < deadline, "redis does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        redis.assert_answers();
        redis
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Sets keys of 512 bytes each, so often.
    fn set_keys(&self, times: u32) {
        run(Command::new("redis-benchmark").arg("-s").arg(self.socket()).args([
            "-t",
            "set",
            "-d",
            "512",
            "-r",
            "10000",
            "-c",
            "10",
            "-q",
            "-n",
            &times.to_string(),
        ]));
    }

    fn assert_answers(&self) {
        let mut stream = UnixStream::connect(self.socket()).expect("redis listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("30 s is a timeout");
        stream.write_all(b"PING\r\n").expect("redis listens");
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).expect("redis answers");
        assert_eq!(&answer, b"+PONG\r\n");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn redis_under_load_is_profiled_without_a_loss() {
    let redis = Redis::start();
    let mut heapbpf = Heapbpf::of(redis.pid(), "-o out.svg -o out.json");
    let session = heapbpf.start();
    redis.set_keys(20_000);
    let _ = session.interrupt().expect_code(0);
    redis.assert_answers();
    assert_no_probes(redis.pid());

    let report = heapbpf.report("out.json");
    report.assert_complete();
    let process = report.process(redis.pid());
    assert!(!process.exited);
    let jemalloc = process
        .heaps
        .iter()
        .find(|heap| heap.name == "jemalloc")
        .unwrap_or_else(|| panic!("no jemalloc among {:?}", process.heaps));
    for function in ["malloc", "calloc", "realloc", "free"] {
        let hook = jemalloc.hooks.iter().find(|hook| hook.function == function);
        let hook = hook.unwrap_or_else(|| panic!("`{function}` is not among {:?}", jemalloc.hooks));
        assert!(hook.attached && hook.module.ends_with("/libjemalloc.so.2"), "{hook:?}");
    }

    // 20,000 draws out of 10,000 keys name some 8,600 different ones, each with 512 bytes to hold on to.
    let totals = jemalloc.totals.estimates();
    assert!(totals.live_bytes > 8_000.0 * 512.0, "{totals:?}");
    assert!(totals.alloc_count > 20_000.0, "{totals:?}");

    // Debian's redis-server is a link to redis-check-rdb.
    let own = |frame: &heapbpf_tests::report::Frame| {
        frame.module.as_deref().is_some_and(|module| module.contains("/redis-")) && frame.function.is_some()
    };
    let mut named: Vec<&str> = process
        .callsites
        .iter()
        .flat_map(|callsite| &callsite.stack)
        .filter(|frame| own(frame))
        .filter_map(|frame| frame.function.as_deref())
        .collect();
    named.sort_unstable();
    named.dedup();
    assert!(!named.is_empty(), "no function of redis has a name");
    let svg = text(&heapbpf.file("out.svg"));
    assert!(named.iter().any(|name| svg.contains(name)), "none of {named:?} is in the SVG");
}

#[test]
fn redis_survives_the_death_of_the_profiler_under_load() {
    let redis = Redis::start();
    let mut heapbpf = Heapbpf::of(redis.pid(), "-o out.json");
    let session = heapbpf.start();
    assert!(!changed_code(redis.pid()).is_empty(), "there were no probes");
    thread::scope(|scope| {
        let load = scope.spawn(|| redis.set_keys(20_000));
        session.kill();
        load.join().expect("redis answered all requests");
    });
    redis.assert_answers();
    assert_no_probes(redis.pid());
    assert!(fs::exists(redis.socket()).expect("the directory is ours"));
}
