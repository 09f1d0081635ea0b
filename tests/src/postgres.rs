//! A PostgreSQL cluster of the tests' own: a server whose processes are copies of one. Refuses to know anything of the
//! profiler.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::target::run;

/// It refuses to run as root.
const USER: &str = "postgres";

/// The database's user.
const ROLE: &str = "tests";

/// Until it listens, or has ended. Only a hang takes this long.
const WITHIN: Duration = Duration::from_secs(60);

/// A running server on a socket in a directory of its own, with pgbench's tables. Ended when dropped.
#[derive(Debug)]
pub struct Postgres {
    child: Child,
    programs: PathBuf,
    directory: TempDir,
}

/// A connection: `psql`, which asks one question at a time.
#[derive(Debug)]
pub struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
    /// The process that answers.
    pub backend: u32,
}

impl Postgres {
    /// Makes a cluster, starts its server and waits until it listens.
    ///
    /// # Panics
    ///
    /// When that fails.
    #[track_caller]
    pub fn start() -> Self {
        let programs = programs();
        let directory = tempfile::tempdir().expect("there is a directory for temporary files");
        run(Command::new("chown").arg(USER).arg(directory.path()));
        let data = directory.path().join("data");
        let arguments = ["--no-sync", "--auth", "trust", "--username", ROLE, "-D"];
        run(unprivileged(&programs.join("initdb"), directory.path()).args(arguments).arg(&data));
        let log = File::create(directory.path().join("log")).expect("the directory is ours");
        let mut server = unprivileged(&programs.join("postgres"), directory.path());
        server.arg("-D").arg(&data).arg("-k").arg(directory.path());
        let settings =
            ["listen_addresses=", "fsync=off", "autovacuum=off", "log_connections=on", "log_line_prefix=%p|"];
        server.args(settings.into_iter().flat_map(|setting| ["-c", setting]));
        let child = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let postgres = Self { child: child.expect("setpriv starts"), programs, directory };
        let deadline = Instant::now() + WITHIN;
        while !postgres.client("pg_isready").arg("-q").status().expect("pg_isready starts").success() {
            assert!(Instant::now() < deadline, "postgres does not listen: {}", postgres.log());
            thread::sleep(Duration::from_millis(50));
        }
        postgres.bench(&["-i", "-q", "-s", "1"]);
        postgres
    }

    /// The process that all others are copies of.
    pub fn postmaster(&self) -> u32 {
        self.child.id()
    }

    /// Runs pgbench to its end.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn bench(&self, arguments: &[&str]) {
        run(self.client("pgbench").args(arguments).arg("postgres"));
    }

    /// Opens a connection.
    ///
    /// # Panics
    ///
    /// When it is refused.
    #[track_caller]
    pub fn connect(&self) -> Client {
        let mut command = self.client("psql");
        command.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "postgres"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("psql starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let stdin = child.stdin.take();
        let mut client = Client { child, stdin, answers, backend: 0 };
        client.backend = client.ask("select pg_backend_pid()").parse().expect("a number");
        client
    }

    /// The processes that have had connections so far.
    ///
    /// # Panics
    ///
    /// When its log cannot be read.
    pub fn backends(&self) -> BTreeSet<u32> {
        let log = self.log();
        let authorized = log.lines().filter(|line| line.contains("connection authorized"));
        authorized.filter_map(|line| line.split_once('|')?.0.parse().ok()).collect()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).expect("the directory is ours")
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.arg("-h").arg(self.directory.path()).args(["-U", ROLE]);
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGQUIT is "at once", for all of its processes.
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let _ = pid.map(|pid| kill_process(pid, Signal::QUIT));
        let deadline = Instant::now() + WITHIN;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Client {
    /// Asks, and waits for the first line of the answer.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[track_caller]
    pub fn ask(&mut self, query: &str) -> String {
        let stdin = self.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{query};").expect("psql listens");
        self.answers.recv_timeout(WITHIN).unwrap_or_else(|error| panic!("no answer to `{query}`: {error}"))
    }

    /// Ends the connection, and waits until its process is gone.
    ///
    /// # Panics
    ///
    /// When it stays.
    #[track_caller]
    pub fn close(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().expect("it is our child").success(), "psql failed");
        let deadline = Instant::now() + WITHIN;
        while Path::new(&format!("/proc/{}", self.backend)).exists() {
            assert!(Instant::now() < deadline, "backend {} does not end", self.backend);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program as postgres' own user, in a directory that it may be in.
fn unprivileged(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--init-groups", "--"]).arg(program).current_dir(directory);
    command
}

/// Where the newest installed version has its programs.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql");
    let versions = versions.unwrap_or_else(|error| panic!("postgres: {error}: `apt-get install postgresql` has it"));
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.flatten().map(|entry| entry.path()).max_by_key(version);
    newest.expect("a version of postgres is installed").join("bin")
}
