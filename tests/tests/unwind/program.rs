//! Real programs under load: Debian's builds, without frame pointers. Each is started and then waits, with all of its
//! code loaded, until the probes are attached.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_tests::target::run;
use tempfile::TempDir;

/// Timeout until a program waits for its load.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A running program. Killed when dropped, together with its load generator.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Mean bytes between samples, chosen for some thousand samples per second.
    pub(crate) interval_bytes: u32,
    child: Child,
    load: Vec<Child>,
    /// Starts the load.
    begin: Option<Box<dyn FnOnce() -> Vec<Child>>>,
    /// Owned for its `Drop`.
    directory: Option<TempDir>,
}

impl Program {
    fn new(
        name: &'static str,
        interval_bytes: u32,
        child: Child,
        begin: impl FnOnce() -> Vec<Child> + 'static,
    ) -> Self {
        Self { name, interval_bytes, child, load: Vec::new(), begin: Some(Box::new(begin)), directory: None }
    }

    /// Keeps a directory until the program ends.
    fn within(mut self, directory: TempDir) -> Self {
        self.directory = Some(directory);
        self
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Starts the load.
    pub(crate) fn begin(&mut self) {
        if let Some(begin) = self.begin.take() {
            self.load = begin();
        }
    }

    /// Whether its work is complete.
    pub(crate) fn ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        for child in self.load.iter_mut().chain([&mut self.child]) {
            // It may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a program with pipes.
fn start(command: &mut Command) -> (Child, ChildStdin, ChildStdout) {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?} is needed here: {error}"));
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    (child, stdin.expect("stdin is piped"), stdout.expect("stdout is piped"))
}

/// Starts a program without input.
fn start_silent(command: &mut Command) -> Child {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("{command:?} is needed here: {error}"))
}

/// Waits for the first line.
fn until_ready(stdout: ChildStdout) -> BufReader<ChildStdout> {
    let mut stdout = BufReader::new(stdout);
    let mut line = String::new();
    stdout.read_line(&mut line).expect("stdout is piped");
    assert_eq!(line, "ready\n");
    stdout
}

/// Reads and discards all output.
fn drain(mut stdout: impl Read + Send + 'static) {
    thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
}

/// Data structures, Lua scripts and the event loop, with jemalloc.
pub(crate) fn redis() -> Program {
    const SCRIPT: &str = "
        local function tree(depth)
            local node = {name = string.rep('x', depth)}
            if depth > 0 then node.a, node.b = tree(depth - 1), tree(depth - 1) end
            return node
        end
        local text = cjson.encode(tree(math.random(6)))
        redis.call('SET', 'tree', text)
        table.sort({3, 1, 2}, function(a, b) return tostring(a) < tostring(b) end)
        local packed = cmsgpack.pack(cjson.decode(text))
        return redis.sha1hex(packed) .. string.gsub(text, 'x', function(x) return x .. x end)";
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let socket = directory.path().join("socket");
    let child = start_silent(
        Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(directory.path()),
    );
    wait(|| UnixStream::connect(&socket).is_ok());
    let benchmark = move |arguments: &[&str]| {
        let mut command = Command::new("redis-benchmark");
        command.arg("-s").arg(&socket).args(["-l", "-q", "-r", "1000"]).args(arguments);
        start_silent(&mut command)
    };
    let begin = move || vec![benchmark(&["-c", "4", "-d", "200"]), benchmark(&["-c", "1", "eval", SCRIPT, "0"])];
    Program::new("redis-server", 256, child, begin).within(directory)
}

/// A script with recursion through C and two threads, with every object from malloc.
pub(crate) fn python() -> Program {
    const SCRIPT: &str = include_str!("../../targets/interpreter.py");
    let (child, _, stdout) = start(Command::new("python3").args(["-c", SCRIPT]).env("PYTHONMALLOC", "malloc"));
    drain(until_ready(stdout));
    Program::new("python3", 1024, child, Vec::new)
}

/// A script with continuous errors: perl's errors leave functions by calls that never return.
pub(crate) fn perl() -> Program {
    const SCRIPT: &str = r#"
        use strict; use warnings;
        $| = 1; print "ready
";
        sub deep { my ($n) = @_; return $n ? [sort { deep($n - 1) && $a <=> $b } 2, 1] : die { code => $n } }
        my $i = 0;
        while (1) {
            $i++;
            eval { my $none; $none->method($i) };
            eval { deep($i % 7) };
            eval { my @all = (1) x ($i % 50); my $sum = $all[0]{key}; };
            my $broken = '(a|b' x ($i % 5 + 1); eval { "x" =~ /$broken/ };
            eval "sub { $i + }";
            my $text = join ',', map { sprintf '%s-%05d', 'n' x ($_ % 9), $_ } 1 .. $i % 100;
            (my $other = $text) =~ s/(n+)-0*(\d+)/length($1) . "<$2>"/ge;
            my %by = map { $_ => [split //, $_] } split /,/, $other;
            my $code = eval 'sub { my %all = @_; return { map { $_ => scalar @{$all{$_}} } sort keys %all } }';
            $code->(%by);
        }"#;
    let (child, _, stdout) = start(Command::new("perl").args(["-e", SCRIPT]));
    drain(until_ready(stdout));
    Program::new("perl", 512, child, Vec::new)
}

/// Queries with recursion, windows, full text, JSON and triggers.
pub(crate) fn sqlite() -> Program {
    const SCHEMA: &str = "
        CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, weight REAL);
        CREATE TABLE log (id INTEGER, what TEXT);
        CREATE INDEX by_name ON item (name, weight);
        CREATE TRIGGER logged AFTER UPDATE ON item BEGIN INSERT INTO log VALUES (new.id, old.name || new.name); END;
        CREATE VIEW heavy AS SELECT name, sum(weight) AS total FROM item GROUP BY name HAVING total > 10;
        CREATE VIRTUAL TABLE page USING fts5(title, body);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
            INSERT INTO item SELECT i, printf('name-%d', i % 97), i * 0.37 FROM n;
        INSERT INTO page SELECT name, printf('%s weighs %f and more', name, weight) FROM item WHERE id < 300;
        SELECT 'ready';\n";
    const QUERIES: &str = "
        SELECT a.name, h.total FROM item a JOIN heavy h USING (name) WHERE a.id IN (SELECT id FROM item WHERE id % 7 = 1);
        SELECT name, rank() OVER (PARTITION BY name ORDER BY weight), group_concat(weight, ';') OVER w FROM item
            WHERE id < 200 WINDOW w AS (ORDER BY id ROWS 3 PRECEDING);
        SELECT json_group_array(json_object('id', id, 'name', name)) FROM item WHERE id < 100;
        SELECT j.value FROM item, json_each('[1,[2,3],{\"a\":4}]') j WHERE item.id < 20;
        SELECT highlight(page, 1, '<', '>') FROM page WHERE page MATCH 'weighs AND name*' ORDER BY rank LIMIT 20;
        BEGIN; UPDATE item SET name = name || 'x' WHERE id % 50 = 3; ROLLBACK;
        CREATE TEMP TABLE copy AS SELECT DISTINCT name, upper(hex(weight)) FROM item ORDER BY 2; DROP TABLE copy;
        WITH RECURSIVE f(a, b) AS (SELECT 0, 1 UNION ALL SELECT b, a + b FROM f LIMIT 50) SELECT max(a) FROM f;
        EXPLAIN QUERY PLAN SELECT * FROM item a, item b, item c WHERE a.id = b.id + 1 AND b.name = c.name;
        REINDEX by_name; ANALYZE;\n";
    let (child, mut stdin, stdout) = start(Command::new("sqlite3").arg(":memory:"));
    stdin.write_all(SCHEMA.as_bytes()).expect("sqlite3 listens");
    let stdout = until_ready(stdout);
    let begin = move || {
        drain(stdout);
        thread::spawn(move || while stdin.write_all(QUERIES.as_bytes()).is_ok() {});
        Vec::new()
    };
    Program::new("sqlite3", 512, child, begin)
}

/// The history of a repository with its patches. It waits because its output is not read.
pub(crate) fn git() -> Program {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let git = || {
        let mut command = Command::new("git");
        command.arg("-C").arg(directory.path()).args(["-c", "core.pager=cat"]);
        command
    };
    run(git().args(["init", "-q", "--bare"]));
    let (mut importer, mut stdin, _stdout) = start(git().args(["fast-import", "--quiet"]));
    stdin.write_all(history().as_bytes()).expect("git listens");
    drop(stdin);
    assert!(importer.wait().expect("it is our child").success(), "git fast-import");
    run(git().args(["repack", "-adfq", "--window=10"]));
    let (child, _, mut stdout) = start(git().args(["log", "-p", "--stat", "-M", "-C", "main"]));
    stdout.read_exact(&mut [0; 1]).expect("there is a history");
    let begin = move || {
        drain(stdout);
        Vec::new()
    };
    Program::new("git", 256, child, begin).within(directory)
}

/// Commits that change, move and add files, in the format of `git fast-import`.
fn history() -> String {
    const COMMITS: u64 = 1500;
    let mut stream = String::new();
    for i in 0..COMMITS {
        let mut text = String::new();
        for line in 0..150 {
            let version = if line % 11 == i % 11 { i } else { i / 40 };
            let _ = writeln!(text, "line {line} of version {version}");
        }
        let _ = write!(
            stream,
            "commit refs/heads/main\ncommitter A <a@b.c> {} +0000\ndata <<E\nchange {i}\nE\n\
             M 100644 inline folder{}/file{}\ndata {}\n{text}\n",
            1_700_000_000 + i,
            i % 5,
            i % 23,
            text.len(),
        );
        if i % 9 == 8 {
            let _ = writeln!(stream, "R folder{}/file{} folder{}/moved{i}", i % 5, i % 23, (i + 1) % 5);
        }
    }
    stream
}

/// The compiler proper, on templates. It waits for its source on standard input.
pub(crate) fn compiler() -> Program {
    const SOURCE: &str = "
        #include <algorithm>\n#include <iostream>\n#include <map>\n#include <regex>\n#include <string>\n#include <vector>
        template <int N> struct Deep { using type = std::map<int, typename Deep<N - 1>::type>; };
        template <> struct Deep<0> { using type = std::vector<std::string>; };
        int main() {
            Deep<24>::type deep;
            std::regex words(\"[a-z]+\");
            std::vector<std::string> all{\"a\", \"b\"};
            std::sort(all.begin(), all.end(), [&](auto &a, auto &b) { return std::regex_match(a, words) && a < b; });
            std::cout << all.size() << deep.size();
        }\n";
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let (source, preprocessed) = (directory.path().join("a.cpp"), directory.path().join("a.ii"));
    fs::write(&source, SOURCE).expect("the directory is ours");
    run(Command::new("g++").args(["-E", "-o"]).arg(&preprocessed).arg(&source));
    let output = Command::new("g++").arg("-print-prog-name=cc1plus").output().expect("g++ runs");
    let compiler = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let source = fs::read(preprocessed).expect("just written");
    let (child, mut stdin, _stdout) =
        start(Command::new(compiler).args(["-fpreprocessed", "-quiet", "-O2", "-o", "/dev/null", "-"]));
    // It reads its source: system call 0, `read`, of descriptor 0.
    let call = PathBuf::from(format!("/proc/{}/syscall", child.id()));
    wait(|| fs::read_to_string(&call).is_ok_and(|call| call.starts_with("0 0x0 ")));
    let begin = move || {
        thread::spawn(move || stdin.write_all(&source));
        Vec::new()
    };
    Program::new("cc1plus", 4096, child, begin)
}

fn wait(mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + READY_WITHIN;
    while !ready() {
        assert!(Instant::now() < deadline, "the program does not wait for its load");
        thread::sleep(Duration::from_millis(10));
    }
}
