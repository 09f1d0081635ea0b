//! `bench frameworks`: stacks of services that use frameworks, compared with those that the services describe themselves.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use heapbpf_tests::interpreters::{JAVA_HOME, NODE_VERSIONS, node_folder};
use heapbpf_tests::report::{Callsite, Frame};

use super::tool::{Agent, callsites};
use super::{Bench, Measured, Page, all_met, figures};
use crate::process::{Output, Program, bound, descendants};
use crate::{command, interpreters, packages, viewers};

/// Compares stacks of services with those that the services describe themselves.
///
/// Each service handles requests with functions that allocate blocks of one size, and writes the language's own description of each block's
/// stack. Functions, files and lines of all frames of the language are compared. The frameworks are installed in exact versions into
/// `target/frameworks` (PyPI, npm), and as packages of Debian (torch, puma, sinatra, php-fpm, nginx). Requires root.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask bench frameworks                               everything
  cargo xtask bench frameworks --write                       and into docs/unwinding.md
  cargo xtask bench frameworks --service numba --explain     which stacks of one service differ")]
pub(super) struct Arguments {
    /// Service to profile: a part of its name. May be given several times. Default: all.
    #[arg(long, value_name = "NAME")]
    service: Vec<String>,
    /// List stacks that differ.
    #[arg(long)]
    explain: bool,
    /// Write the table into docs/unwinding.md.
    #[arg(long, conflicts_with_all = ["service", "explain"])]
    write: bool,
}

struct Service {
    name: &'static str,
    /// Module of the language's frames in reports.
    language: &'static str,
    /// Bytes of each described block. Java rounds them up to a multiple of 8; PHP's strings have a header.
    bytes: u64,
    /// The words in braces are those of `Place`.
    command: &'static str,
    /// Another program, which the requests pass first.
    proxy: Option<&'static str>,
}

impl Service {
    const fn python(name: &'static str, command: &'static str) -> Self {
        Self { name, language: "[python]", bytes: 40_961, command, proxy: None }
    }

    const fn javascript(name: &'static str, command: &'static str) -> Self {
        Self { name, language: "[javascript]", bytes: 40_961, command, proxy: None }
    }
}

const SERVICES: [Service; 14] = [
    Service::python("FastAPI, uvicorn with uvloop", "{venv}/python {programs}/fastapi_uvloop.py {port}"),
    Service::python(
        "Flask, gunicorn with 2 processes",
        "{venv}/gunicorn --chdir {programs} --bind 127.0.0.1:{port} --workers 2 flask_service:app",
    ),
    Service::python(
        "Django, gunicorn with 2 processes of 4 threads",
        "{venv}/gunicorn --chdir {programs} --bind 127.0.0.1:{port} --workers 2 --threads 4 django_service:application",
    ),
    Service::python("Flask, gevent", "{venv}/python {programs}/flask_service.py {port}"),
    Service::python("numba", "{venv}/python {programs}/plain.py {port} numba_work"),
    Service::python("pandas", "{venv}/python {programs}/plain.py {port} pandas_work"),
    Service::python("torch", "/usr/bin/python3 {programs}/plain.py {port} torch_work"),
    Service {
        name: "JDK's HTTP server, virtual threads",
        language: "[java]",
        bytes: 40_968,
        command: "{java} -Xms128m -Xmx128m -XX:+UnlockDiagnosticVMOptions -XX:+ShowHiddenFrames -cp {work} demo.Virtual {port}",
        proxy: None,
    },
    Service::javascript("Express and sharp, Node.js 18", "{node-18} {programs}/express.js {port}"),
    Service::javascript("Express and sharp, Node.js 22", "{node-22} {programs}/express.js {port}"),
    Service::javascript("Express and sharp, Node.js 24", "{node-24} {programs}/express.js {port}"),
    Service::javascript("TypeScript (lines of the compiled file), Node.js 24", "{node-24} {work}/typed.js {port}"),
    Service {
        name: "Sinatra, puma with 3 threads",
        language: "[ruby]",
        bytes: 40_961,
        command: "puma --bind tcp://127.0.0.1:{port} --threads 3:3 --workers 0 {programs}/sinatra_service.ru",
        proxy: None,
    },
    Service {
        name: "php-fpm, 2 processes",
        language: "[php]",
        bytes: 40_984,
        command: "/usr/sbin/php-fpm8.2 --allow-to-run-as-root --nodaemonize --fpm-config {work}/fpm.conf",
        proxy: Some("/usr/sbin/nginx -c {work}/nginx.conf"),
    },
];

/// Smaller than all blocks, so that each is sampled.
const INTERVAL: &str = "8192";
const WARM_UP_REQUESTS: u32 = 400;
const REQUESTS: u32 = 2_000;
const CLIENTS: u32 = 4;
/// A request that waits longer has failed.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
const EQUAL_MIN: f64 = 0.99;
/// Differing stacks that `--explain` lists.
const EXPLAINED_MAX: usize = 5;
/// Stands in stacks where native functions are missing between those of a language.
const CUT: &str = "[native functions missing]";
/// The outermost function of a virtual thread.
const CONTINUED: &str = "java.lang.VirtualThread.run";
/// Frameworks of PyPI and npm.
const LISTS: [&str; 2] = ["requirements.txt", "package.json"];
const STAMP: &str = "installed";

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let is_requested = |service: &&Service| {
        arguments.service.is_empty() || arguments.service.iter().any(|name| service.name.contains(name))
    };
    let services: Vec<_> = SERVICES.iter().filter(is_requested).collect();
    if services.is_empty() {
        let names: Vec<_> = SERVICES.iter().map(|service| service.name).collect();
        bail!("unknown service; supported are {}", names.join("; "));
    }
    let bench = Bench::new(&format!("{} {}", packages::BENCH_FRAMEWORKS, packages::VIEWERS), 1)?;
    let page = Page::new(&bench.repository, "docs/unwinding.md", arguments.write);
    all_met(&page.publish("frameworks", compared(&bench, &services, arguments.explain)?)?)
}

fn compared(bench: &Bench, services: &[&Service], explain: bool) -> Result<Measured> {
    let place = Place::install(bench)?;
    let (mut rows, mut missed) = (Vec::new(), Vec::new());
    for service in services {
        let row = place.compare(bench, service).with_context(|| format!("profiling {}", service.name))?;
        eprintln!("{}", row.cells().join(" | "));
        if explain {
            println!("{}", row.differing());
        }
        if row.equal() < EQUAL_MIN {
            missed.push(format!("stacks of {}: `--explain` shows those that differ", row.name));
        }
        rows.push(row.cells());
    }
    let head = ["service", "blocks", "equal, by bytes", "stacks", "equal stacks", "ends of the others, by bytes"];
    Ok(Measured { text: figures::table(&head, &rows), missed })
}

/// What the words in braces stand for, in commands and configuration files.
struct Place {
    programs: PathBuf,
    modules: PathBuf,
    words: BTreeMap<String, String>,
}

impl Place {
    fn install(bench: &Bench) -> Result<Self> {
        let repository = &bench.repository;
        let viewers = viewers::install(repository)?;
        let interpreters = interpreters::install_machines(repository, &viewers)?;
        let programs = repository.root.join("tests/frameworks");
        let folder = repository.target.join("frameworks");
        install_lists(&programs, &folder, &viewers)?;
        let mut words = BTreeMap::new();
        let mut add = |name: &str, path: PathBuf| words.insert(name.to_owned(), path.display().to_string());
        for version in NODE_VERSIONS {
            add(&node_folder(version), interpreters.join(node_folder(version)).join("bin/node"));
        }
        add("venv", folder.join("venv/bin"));
        add("java", interpreters.join("java").join(JAVA_HOME).join("bin/java"));
        add("programs", programs.clone());
        add("work", bench.folder.clone());
        let place = Self { programs, modules: folder.join("node_modules"), words };
        place.compile(bench, &viewers)?;
        Ok(place)
    }

    fn compile(&self, bench: &Bench, viewers: &Path) -> Result<()> {
        let mut javac = Command::new("javac");
        // It warns about `Unsafe`, which no option prevents.
        javac.args(["-nowarn", "-XDignore.symbol.file", "-d"]).arg(&bench.folder);
        command::run(javac.arg(self.programs.join("Virtual.java")))?;
        let mut tsc = Command::new(viewers.join("venv/bin/node"));
        tsc.arg(self.modules.join("typescript/bin/tsc")).args(["--target", "es2022", "--module", "commonjs"]);
        tsc.args(["--types", "node", "--typeRoots"])
            .arg(self.modules.join("@types"))
            .arg("--outDir")
            .arg(&bench.folder);
        command::run(tsc.arg(self.programs.join("typed.ts")))
    }

    fn filled(&self, text: &str, port: u16) -> String {
        let filled = text.replace("{port}", &port.to_string());
        self.words.iter().fold(filled, |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    }

    fn start(&self, line: &str, port: u16, stacks: &Path) -> Result<Program> {
        let filled = self.filled(line, port);
        let mut words = filled.split_ascii_whitespace();
        let mut command = bound(words.next().context("a command has a program")?);
        command.args(words).env("STACKS", stacks).env("PYTHONPATH", &self.programs).env("PYTHONDONTWRITEBYTECODE", "1");
        // PHP's own allocator takes strings from chunks.
        command.env("NODE_PATH", &self.modules).env("USE_ZEND_ALLOC", "0");
        Program::start(&mut command, Output::None)
    }

    fn compare(&self, bench: &Bench, service: &Service) -> Result<Row> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        for name in ["fpm.conf", "nginx.conf"] {
            let text = fs::read_to_string(self.programs.join(name))?;
            fs::write(bench.folder.join(name), self.filled(&text, port))?;
        }
        let stacks = bench.folder.join("stacks");
        File::create(&stacks)?;
        let mut program = self.start(service.command, port, &stacks)?;
        let _proxy = service.proxy.map(|line| self.start(line, port, &stacks)).transpose()?;
        program.until(|_| request(port, "/0").ok())?;
        drive(port, WARM_UP_REQUESTS)?;
        let mut record = bench.record(program.pid());
        record.args(descendants(program.pid()).iter().flat_map(|pid| ["--pid".to_owned(), pid.to_string()]));
        let agent = Agent::start(record.args(["--interval", INTERVAL]), &bench.folder.join("report.json"))?;
        // The services append.
        File::options().write(true).open(&stacks)?.set_len(0)?;
        drive(port, REQUESTS)?;
        agent.interrupt()?;
        let report = agent.finish()?;
        let described = described(&fs::read_to_string(&stacks)?)?;
        let mut row = Row { name: service.name, bytes: service.bytes, described, recorded: BTreeMap::new() };
        callsites(&report).for_each(|callsite| row.add(service, callsite));
        Ok(row)
    }
}

/// Installs what the lists contain, once.
fn install_lists(programs: &Path, folder: &Path, viewers: &Path) -> Result<()> {
    let [python, node] = LISTS.map(|name| programs.join(name));
    let wanted = fs::read_to_string(&python)? + &fs::read_to_string(&node)?;
    if fs::read_to_string(folder.join(STAMP)).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    eprintln!("installing frameworks of PyPI and npm into {}", folder.display());
    command::empty_folder(folder)?;
    viewers::install_python(&folder.join("venv"), ["--requirement".as_ref(), python.as_os_str()])?;
    fs::copy(&node, folder.join(LISTS[1]))?;
    let mut npm = viewers::npm(viewers)?;
    npm.current_dir(folder).args(["install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]);
    command::run(npm.arg("--loglevel=error"))?;
    Ok(fs::write(folder.join(STAMP), wanted)?)
}

fn request(port: u16, path: &str) -> Result<()> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(ANSWERED_WITHIN))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let head = String::from_utf8_lossy(&answer[..answer.len().min(12)]).into_owned();
    ensure!(head.starts_with("HTTP/1.") && head.ends_with(" 200"), "`{path}` was answered by `{head}`");
    Ok(())
}

/// Sends requests of both kinds, from several clients.
fn drive(port: u16, requests: u32) -> Result<()> {
    let paths = move |first: u32| {
        let numbers = (first..requests).step_by(CLIENTS as usize);
        numbers.map(|number| if number % 3 == 0 { format!("/function/{number}") } else { format!("/{number}") })
    };
    let clients: Vec<_> = (0..CLIENTS)
        .map(|first| thread::spawn(move || paths(first).try_for_each(|path| request(port, &path))))
        .collect();
    clients.into_iter().try_for_each(|client| client.join().expect("clients do not panic"))
}

/// Functions, files and lines, the innermost first. Lines that do not exist are 0.
type Stack = Vec<(String, String, u32)>;

fn described(text: &str) -> Result<BTreeMap<Stack, u64>> {
    let mut stacks = BTreeMap::new();
    for line in text.lines() {
        let stack: Stack = serde_json::from_str(line).with_context(|| format!("the service wrote `{line}`"))?;
        *stacks.entry(comparable(stack)).or_default() += 1;
    }
    Ok(stacks)
}

/// Leaves out addresses in names of Java's classes, files without lines, and what continues a virtual thread: Java's own description ends
/// there.
fn comparable(frames: impl IntoIterator<Item = (String, String, u32)>) -> Stack {
    let mut stack: Stack = Vec::new();
    for (function, file, line) in frames.into_iter().skip_while(allocates) {
        let file = if line == 0 { String::new() } else { file };
        stack.push((plain(&function), file, line));
        if function == CONTINUED {
            break;
        }
    }
    stack
}

/// Gives methods in C the file and line of their caller, as Ruby does.
fn locate(stack: &mut Stack) {
    let mut caller = (String::new(), 0);
    for (_, file, line) in stack.iter_mut().rev() {
        if *line == 0 {
            (*file, *line) = caller.clone();
        }
        caller = (file.clone(), *line);
    }
}

/// A function's name without the address that ends the name of Java's hidden classes.
fn plain(function: &str) -> String {
    let parts = ["/0x", "+0x", ".0x"].iter().find_map(|mark| function.split_once(mark));
    let Some((class, rest)) = parts else { return function.to_owned() };
    format!("{class}{}", rest.trim_start_matches(|digit: char| digit.is_ascii_hexdigit()))
}

/// Whether a function of the language or its libraries allocates for its caller, who describes the stack.
fn allocates((function, file, _): &(String, String, u32)) -> bool {
    file.starts_with("node:")
        || function.contains("Unsafe.allocateMemory")
        || ["*", "String#*"].contains(&function.as_str())
}

struct Row {
    name: &'static str,
    bytes: u64,
    described: BTreeMap<Stack, u64>,
    /// Numbers of blocks by the reason why the stack ends.
    recorded: BTreeMap<Stack, BTreeMap<String, u64>>,
}

impl Row {
    #[expect(clippy::cast_possible_truncation, reason = "numbers of blocks and bytes")]
    fn add(&mut self, service: &Service, callsite: &Callsite) {
        // Exact, but not written as integers.
        let [count, bytes] = [&callsite.totals.alloc_count, &callsite.totals.alloc_bytes]
            .map(|number| number.as_f64().unwrap_or(0.0).round() as u64);
        if count == 0 || bytes != count * self.bytes {
            return;
        }
        let is_shown = |frame: &&Frame| {
            frame.module.as_deref() == Some(service.language) && frame.function.as_deref() != Some(CUT)
        };
        let frames = callsite.stack.iter().filter(is_shown).map(|frame| {
            let function = frame.function.clone().unwrap_or_else(|| "?".to_owned());
            (function, frame.file.clone().unwrap_or_default(), frame.line.unwrap_or(0))
        });
        let mut stack = comparable(frames);
        if service.language == "[ruby]" {
            locate(&mut stack);
        }
        let ends = self.recorded.entry(stack).or_default();
        *ends.entry(callsite.end.clone().unwrap_or_default()).or_default() += count;
    }

    fn recorded(&self, stack: &Stack) -> u64 {
        self.recorded.get(stack).map_or(0, |ends| ends.values().sum())
    }

    fn blocks(&self) -> u64 {
        self.described.values().sum()
    }

    /// The share of the described blocks, all of which have the same size, whose stacks are equal.
    fn equal(&self) -> f64 {
        let equal: u64 = self.described.iter().map(|(stack, &count)| count.min(self.recorded(stack))).sum();
        equal as f64 / self.blocks().max(1) as f64
    }

    /// Recorded stacks of more blocks than are described.
    fn others(&self) -> impl Iterator<Item = (&Stack, &BTreeMap<String, u64>)> {
        self.recorded
            .iter()
            .filter(|(stack, _)| self.recorded(stack) > self.described.get(*stack).copied().unwrap_or(0))
    }

    fn cells(&self) -> Vec<String> {
        let equal = self.described.iter().filter(|&(stack, &count)| self.recorded(stack) == count).count();
        let mut ends = BTreeMap::<&str, u64>::new();
        for (end, count) in self.others().flat_map(|(_, ends)| ends) {
            *ends.entry(end).or_default() += count;
        }
        let share = |count: u64| format!("{:.2} %", count as f64 / self.blocks().max(1) as f64 * 100.0);
        let ends: Vec<_> = ends.into_iter().map(|(end, count)| format!("{end} {}", share(count))).collect();
        vec![
            self.name.to_owned(),
            self.blocks().to_string(),
            format!("{:.2} %", self.equal() * 100.0),
            self.described.len().to_string(),
            equal.to_string(),
            if ends.is_empty() { "none".to_owned() } else { ends.join(", ") },
        ]
    }

    fn differing(&self) -> String {
        let missing = self.described.iter().filter(|&(stack, &count)| count > self.recorded(stack));
        let missing = missing.map(|(stack, count)| (*count, format!("described {count}: {stack:?}")));
        let others = self.others().map(|(stack, ends)| (ends.values().sum(), format!("recorded {ends:?}: {stack:?}")));
        let lines = [missing.collect::<Vec<(u64, String)>>(), others.collect()].map(|mut lines| {
            lines.sort_by(|a, b| b.cmp(a));
            lines.into_iter().take(EXPLAINED_MAX).map(|(_, line)| line).collect::<Vec<_>>().join("\n")
        });
        lines.join("\n")
    }
}
