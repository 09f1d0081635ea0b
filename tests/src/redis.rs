//! A private redis-server with jemalloc: a real program.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags};
use tempfile::TempDir;

use crate::kernel::tracer;
use crate::target::run;

/// Timeout until it listens.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Arguments of a redis-server with its socket in this directory.
pub fn arguments(directory: &Path) -> Vec<String> {
    let fixed = ["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"];
    let socket = directory.join("socket").display().to_string();
    let directory = directory.display().to_string();
    let places = ["--unixsocket", &socket, "--dir", &directory];
    fixed.into_iter().chain(places).map(str::to_owned).collect()
}

/// Waits until the redis-server with its socket in this directory answers.
#[track_caller]
pub fn wait_until_ready(directory: &Path) {
    let deadline = Instant::now() + READY_WITHIN;
    while UnixStream::connect(directory.join("socket")).is_err() {
        assert!(Instant::now() < deadline, "redis does not listen");
        thread::sleep(Duration::from_millis(20));
    }
    ask(directory, "PING", b"+PONG\r\n");
}

/// Shuts down the redis-server with its socket in this directory.
#[track_caller]
pub fn shut_down(directory: &Path) {
    // The answer is the end of the connection.
    ask(directory, "SHUTDOWN NOSAVE", b"");
}

#[track_caller]
fn ask(directory: &Path, question: &str, expected: &[u8]) {
    let mut stream = UnixStream::connect(directory.join("socket")).expect("redis listens");
    stream.set_read_timeout(Some(READY_WITHIN)).expect("a minute is a timeout");
    stream.write_all(format!("{question}\r\n").as_bytes()).expect("redis listens");
    let mut answer = vec![0; expected.len().max(1)];
    let length = stream.read(&mut answer).expect("redis answers");
    assert_eq!(&answer[..length], expected);
}

/// A running redis-server on a socket in its own directory. Killed when dropped.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    directory: TempDir,
}

/// The allocator, which the loader maps after some other libraries.
const ALLOCATOR: &str = "libjemalloc.so.2";

/// Timeout until a tracer is attached. Then the loader continues without one.
const HELD_WITHIN: Duration = Duration::from_secs(10);

/// Interval between two checks of the process, which is traced for some milliseconds.
const CHECK_EVERY: Duration = Duration::from_micros(200);

/// Identification of a program of 32 bits: the loader ignores the file, and searches on.
const OTHER_CLASS: [u8; 64] = {
    let mut header = [0; 64];
    header[0] = 0x7f;
    (header[1], header[2], header[3]) = (b'E', b'L', b'F');
    // `ELFCLASS32`, `ELFDATA2LSB`, `EV_CURRENT`
    (header[4], header[5], header[6]) = (1, 1, 1);
    header
};

/// A pipe under the allocator's name, in a folder that the loader searches first: it waits for the pipe to be opened.
struct Barrier(TempDir);

impl Barrier {
    #[track_caller]
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("there is a directory for temporary files");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mkfifoat(CWD, directory.path().join(ALLOCATOR), mode).expect("the directory is ours");
        Self(directory)
    }

    /// Waits until a tracer is attached to the process, then has its loader search on. Keep the pipe until the loader has read it.
    #[track_caller]
    fn open_when_held(&self, pid: u32) -> File {
        let deadline = Instant::now() + HELD_WITHIN;
        while tracer(pid).is_none() && Instant::now() < deadline {
            thread::sleep(CHECK_EVERY);
        }
        let deadline = Instant::now() + READY_WITHIN;
        // Without a reader, opening it would wait.
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let path = self.0.path().join(ALLOCATOR);
        loop {
            // The tracer attaches first, and stops the process then.
            thread::sleep(CHECK_EVERY);
            let opened = rustix::fs::open(&path, flags, Mode::empty()).map(File::from);
            match opened.map_err(io::Error::from).and_then(|mut pipe| pipe.write_all(&OTHER_CLASS).map(|()| pipe)) {
                Ok(pipe) => return pipe,
                Err(error) => {
                    assert!(Instant::now() < deadline, "the loader does not open {}: {error}", path.display())
                }
            }
        }
    }
}

impl Redis {
    /// Starts it and waits until it answers.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_as("redis-server")
    }

    /// Starts it under this name and waits until it answers.
    #[track_caller]
    pub fn start_as(name: &str) -> Self {
        let redis = Self::spawn(Command::new("redis-server").arg0(name));
        wait_until_ready(redis.directory.path());
        redis
    }

    /// The same with a loader that waits, before it maps the allocator, until a tracer is attached to the process.
    #[track_caller]
    pub fn start_held_as(name: &str) -> Self {
        let barrier = Barrier::new();
        let mut command = Command::new("redis-server");
        let redis = Self::spawn(command.arg0(name).env("LD_LIBRARY_PATH", barrier.0.path()));
        let _pipe = barrier.open_when_held(redis.pid());
        wait_until_ready(redis.directory.path());
        redis
    }

    #[track_caller]
    fn spawn(command: &mut Command) -> Self {
        let directory = tempfile::tempdir().expect("there is a directory for temporary files");
        let child = command
            // heapbpf does the same: redis copies each environment variable when it starts.
            .env("NO_COLOR", "1")
            .env_remove("RUST_LOG")
            .args(arguments(directory.path()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("redis-server: {error}: `apt-get install redis` has it"));
        Self { child, directory }
    }

    /// Its PID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Sets keys of 512 bytes each, `times` times.
    #[track_caller]
    pub fn set_keys(&self, times: u32) {
        let times = times.to_string();
        let fixed = ["-t", "set", "-d", "512", "-r", "10000", "-c", "10", "-q", "-n", &times];
        run(Command::new("redis-benchmark").arg("-s").arg(self.socket()).args(fixed));
    }

    /// Sets and gets a key, `times` times. Fails unless the value is the one set.
    #[track_caller]
    pub fn set_and_get(&self, times: u32) {
        let mut stream = UnixStream::connect(self.socket()).expect("redis listens");
        stream.set_read_timeout(Some(READY_WITHIN)).expect("a minute is a timeout");
        let mut answers = BufReader::new(stream.try_clone().expect("it is a descriptor"));
        let mut answer = |expected: &str| {
            let mut line = String::new();
            answers.read_line(&mut line).expect("redis answers");
            assert_eq!(line.trim_end(), expected);
        };
        for number in 0..times {
            let (key, value) = (number % 1000, format!("{number:0200}"));
            write!(stream, "SET key{key} {value}\r\nGET key{key}\r\n").expect("redis listens");
            ["+OK", "$200", &value].into_iter().for_each(&mut answer);
        }
    }

    /// Fails unless it answers.
    #[track_caller]
    pub fn assert_answers(&self) {
        ask(self.directory.path(), "PING", b"+PONG\r\n");
    }

    /// Shuts it down, and waits for its exit.
    #[track_caller]
    pub fn shut_down(mut self) {
        shut_down(self.directory.path());
        let status = self.child.wait().expect("it is our child");
        assert!(status.success(), "redis ended with {status}");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
