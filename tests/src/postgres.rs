//! A private PostgreSQL cluster: a server that forks for each connection.

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

/// User to run the server as; it refuses to run as root.
const USER: &str = "postgres";

/// Database user.
const ROLE: &str = "tests";

/// Timeout until it listens, or has exited.
const WITHIN: Duration = Duration::from_secs(60);

/// A running server on a socket in its own directory, with pgbench's tables. Terminated on drop.
#[derive(Debug)]
pub struct Postgres {
    child: Child,
    programs: PathBuf,
    directory: TempDir,
}

/// A connection: `psql`, with one query at a time.
#[derive(Debug)]
pub struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
    /// PID of its backend.
    pub backend: u32,
}

impl Postgres {
    /// Creates a cluster, starts its server and waits until it listens.
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

    /// PID of the postmaster.
    pub fn postmaster(&self) -> u32 {
        self.child.id()
    }

    /// Runs pgbench to its end.
    #[track_caller]
    pub fn bench(&self, arguments: &[&str]) {
        run(self.client("pgbench").args(arguments).arg("postgres"));
    }

    /// Opens a connection.
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
        client.backend = client.query("select pg_backend_pid()").parse().expect("a number");
        client
    }

    /// Returns the PIDs of all backends so far.
    pub fn backends(&self) -> BTreeSet<u32> {
        let log = self.log();
        let authorized = log.lines().filter(|line| line.contains("connection authorized"));
        authorized.filter_map(|line| line.split_once('|')?.0.parse().ok()).collect()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).expect("the directory is ours")
    }

    /// Returns a command that starts one of PostgreSQL's own clients with this server.
    pub fn client(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.arg("-h").arg(self.directory.path()).args(["-U", ROLE]);
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGQUIT is an immediate shutdown of all its processes.
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
    /// Runs a query, and returns the first line of the result.
    #[track_caller]
    pub fn query(&mut self, query: &str) -> String {
        let stdin = self.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{query};").expect("psql listens");
        self.answers.recv_timeout(WITHIN).unwrap_or_else(|error| panic!("no answer to `{query}`: {error}"))
    }

    /// Closes the connection, and waits until its backend is gone.
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
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a command that runs a program as the postgres user, in a directory accessible to it.
fn unprivileged(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--init-groups", "--"]).arg(program).current_dir(directory);
    command
}

/// Returns the directory of the newest installed version's programs.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql");
    let versions = versions.unwrap_or_else(|error| panic!("postgres: {error}: `apt-get install postgresql` has it"));
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.flatten().map(|entry| entry.path()).max_by_key(version);
    newest.expect("a version of postgres is installed").join("bin")
}
