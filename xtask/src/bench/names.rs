//! `bench names`: how many frames of stripped programs have names, without debug files and with a debuginfod of this machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use super::figures::{self, verdict};
use super::{Bench, Measured, Page, all_met, programs};
use crate::archive::Archive;
use crate::command;
use crate::packages;
use crate::process::{Output, PATIENCE, Program, bound};

/// Measures the share of named frames in stripped programs, which are built from Debian's sources. The page is
/// docs/debug-files.md.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Duration of a recording.
    #[arg(long, default_value_t = 5, value_name = "SECONDS")]
    seconds: u64,
    /// Write the table into docs/debug-files.md.
    #[arg(long)]
    write: bool,
}

/// Of the frames, weighted by the bytes that their stacks have allocated.
const NAMED_PERCENT_MIN: f64 = 99.0;
const COMMITS: usize = 30_000;
const KEYS: usize = 20_000;

/// A program of Debian, as it is built from its source. A package's binaries cannot be used: their debug files are not on the
/// mirrors.
struct Source {
    name: &'static str,
    packages: &'static [&'static str],
    /// For `bash`, in the folder with the unpacked sources. Libraries whose functions are in stacks are linked statically, because
    /// their debug files are not on the mirrors either.
    build: &'static str,
    /// From that folder; `*` is the version.
    program: [&'static str; 2],
    /// Arguments of the program, with this folder for its files.
    arguments: fn(&Path) -> Result<Vec<String>>,
    /// Once it runs.
    load: fn(&Path) -> Result<Option<Program>>,
}

const SOURCES: [Source; 3] = [
    Source {
        name: "memcached",
        packages: &["memcached", "libevent"],
        build: "(cd libevent-*/ && ./configure -q --prefix=\"$PWD/../prefix\" --disable-shared --disable-openssl --disable-samples \
                --disable-libevent-regress && make -s -j2 install AUTOMAKE=: ACLOCAL=: AUTOCONF=: AUTOHEADER=:)\n\
                cd memcached-*/ && ./configure -q --with-libevent=\"$PWD/../prefix\" --disable-docs --disable-extstore && make -s -j2 memcached",
        program: ["memcached-", "memcached"],
        arguments: |folder| Ok(words(&format!("-u root -U 0 -m 64 -s {}", socket(folder)))),
        load: memcached_load,
    },
    Source {
        name: "redis-server",
        packages: &["redis"],
        build: "make -s -j2 -C redis-*/src redis-server USE_SYSTEM_JEMALLOC=yes USE_JEMALLOC=yes CFLAGS=-I/usr/include/liblzf \
                LDFLAGS='-llzf -latomic'",
        program: ["redis-", "src/redis-server"],
        arguments: |folder| {
            Ok(words(&format!("--port 0 --save {{}} --dir {} --unixsocket {}", folder.display(), socket(folder))))
        },
        load: redis_load,
    },
    Source {
        name: "git",
        packages: &["git", "zlib"],
        build: "(cd zlib-*/ && ./configure --static --prefix=\"$PWD/../prefix\" && make -s -j2 install)\n\
                make -s -j2 -C git-*/ git ZLIB_PATH=\"$PWD/prefix\" NO_CURL=1 NO_EXPAT=1 NO_GETTEXT=1 NO_TCLTK=1 NO_OPENSSL=1 NO_PERL=1",
        program: ["git-", "git"],
        arguments: git_arguments,
        load: |_| Ok(None),
    },
];

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let bench = Bench::new(packages::BENCH_NAMES, 1)?;
    let mut rows = Vec::new();
    let mut missed = Vec::new();
    let mut verdicts = String::new();
    for source in &SOURCES {
        let folder = bench.empty_folder(source.name)?;
        let program = source.build(&folder)?;
        let debuginfod = Debuginfod::start(&folder.join("debug"))?;
        let mut named = Vec::new();
        for options in [vec![], vec!["--debuginfod".to_owned(), debuginfod.url()]] {
            let report = bench.folder.join("names.json");
            let work = bench.empty_folder("work")?;
            let mut record = bench.command(&bench.heapbpf);
            record.args(["--interval", "64", "-q", "-o"]).arg(&report).args(options);
            record
                .env("DEBUGINFOD_CACHE_PATH", folder.join("cache"))
                .env("GIT_CONFIG_NOSYSTEM", "1")
                .env("HOME", &work);
            let mut heapbpf =
                Program::start(record.arg("--").arg(&program).args((source.arguments)(&work)?), Output::None)?;
            let load = (source.load)(&work)?;
            thread::sleep(Duration::from_secs(arguments.seconds));
            // heapbpf passes it on to its command.
            kill_process(Pid::from_raw(heapbpf.pid().cast_signed()).context("a PID is positive")?, Signal::TERM)?;
            let status = heapbpf.wait()?;
            drop(load);
            ensure!(report.exists(), "heapbpf: {status}");
            named.push(Named::of(&fs::read_to_string(&report)?)?);
        }
        let [without, with] = named.as_slice() else { unreachable!("there are two variants") };
        let cells = |named: &Named| format!("{:.1} %", named.percent);
        rows.push(vec![
            source.name.to_owned(),
            cells(without),
            format!("{} → {}", without.addresses, without.labels),
            without.advice.clone(),
            cells(with),
        ]);
        if with.percent < NAMED_PERCENT_MIN {
            missed.push(format!("named frames of {}", source.name));
        }
        let verdict = verdict(-with.percent, -NAMED_PERCENT_MIN);
        verdicts += &format!(
            "- {}: {:.2} % of the frames have names, limit {NAMED_PERCENT_MIN}: {verdict}. Without: {}.\n",
            source.name,
            with.percent,
            with.unnamed()
        );
    }
    let head = ["program", "without debug files", "addresses → labels", "advice of the report", "with debuginfod"];
    let text = format!("{}\n{verdicts}", figures::table(&head, &rows));
    let page = Page::new(&bench.repository, "docs/debug-files.md", arguments.write);
    all_met(&page.publish("names", Measured { text, missed })?)
}

impl Source {
    /// Builds and strips the program; its debug file is in the folder `debug`.
    fn build(&self, folder: &Path) -> Result<PathBuf> {
        eprintln!("building {} from Debian's source", self.name);
        let archive = Archive::open_sources(&folder.join("apt"), &[("Debian", &["bookworm"])])?;
        command::run(archive.apt("apt-get").args(["update", "-qq", "--error-on=any"]))?;
        let mut download = archive.apt("apt-get");
        download.args(["source", "-qq", "-o", "APT::Sandbox::User=root"]).args(self.packages);
        command::run(download.current_dir(folder))?;
        let mut build = Command::new("bash");
        build.args(["-euc", self.build]).current_dir(folder).env("CFLAGS", "-O2 -g").env_remove("MAKEFLAGS");
        command::output(&mut build)?;
        let [start, program] = self.program;
        let is_source = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            path.is_dir() && name.strip_prefix(start).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let mut unpacked = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        let built = unpacked.find(is_source).context("the source is unpacked")?.join(program);
        let debug = folder.join("debug");
        fs::create_dir(&debug)?;
        let objcopy = |arguments: &[&str], from: &Path, to: &Path| {
            command::run(Command::new("objcopy").args(arguments).arg(from).arg(to))
        };
        objcopy(&["--only-keep-debug"], &built, &debug.join(self.name).with_extension("debug"))?;
        let stripped = folder.join(self.name);
        objcopy(&["--strip-all"], &built, &stripped)?;
        Ok(stripped)
    }
}

/// Killed when dropped.
struct Debuginfod {
    port: u16,
    _process: Program,
}

impl Debuginfod {
    fn start(files: &Path) -> Result<Self> {
        const INDEXED_AFTER: Duration = Duration::from_secs(10);
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = bound("debuginfod");
        command.args(["-F", "-d", ":memory:", "-t", "1", "-p", &port.to_string()]).arg(files);
        let process = Program::start(command.env_remove("DEBUGINFOD_URLS"), Output::None)?;
        thread::sleep(INDEXED_AFTER);
        Ok(Self { port, _process: process })
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

#[derive(Deserialize)]
struct Report {
    targets: Vec<Target>,
    health: Health,
}

#[derive(Deserialize)]
struct Target {
    callsites: Vec<Callsite>,
}

#[derive(Deserialize)]
struct Callsite {
    alloc_bytes: f64,
    stack: Vec<Frame>,
}

#[derive(Deserialize)]
struct Frame {
    function: Option<String>,
    module: Option<String>,
    module_offset: Option<String>,
    function_start: Option<String>,
}

#[derive(Deserialize)]
struct Health {
    symbolization: Symbolization,
}

#[derive(Deserialize)]
struct Symbolization {
    modules: Vec<Module>,
}

#[derive(Deserialize)]
struct Module {
    module: String,
    symbols: String,
    package: Option<String>,
}

struct Named {
    percent: f64,
    /// Different unnamed addresses, and labels that they have in tables and flame graphs.
    addresses: usize,
    labels: usize,
    /// Bytes of frames without a name, by module.
    unnamed: BTreeMap<String, f64>,
    whole: f64,
    advice: String,
}

impl Named {
    fn of(json: &str) -> Result<Self> {
        let report: Report = serde_json::from_str(json)?;
        let (mut whole, mut unnamed) = (0.0, BTreeMap::<String, f64>::new());
        let (mut addresses, mut labels) = (Vec::new(), Vec::new());
        for callsite in report.targets.iter().flat_map(|target| &target.callsites) {
            for frame in &callsite.stack {
                whole += callsite.alloc_bytes;
                if frame.function.is_none() {
                    let module = frame.module.clone().unwrap_or_else(|| "unknown".to_owned());
                    addresses.push((module.clone(), frame.module_offset.clone()));
                    labels.push((module.clone(), frame.function_start.clone().or_else(|| frame.module_offset.clone())));
                    *unnamed.entry(module).or_default() += callsite.alloc_bytes;
                }
            }
        }
        ensure!(whole > 0.0, "nothing was recorded");
        for list in [&mut addresses, &mut labels] {
            list.sort();
            list.dedup();
        }
        let percent = 100.0 * (1.0 - unnamed.values().sum::<f64>() / whole);
        let advised = report.health.symbolization.modules.iter().map(|module| {
            let name = Path::new(&module.module).file_name().unwrap_or_default().display().to_string();
            let package = module.package.as_ref().map(|package| format!(" (`{package}`)")).unwrap_or_default();
            format!("{name}: {}{package}", module.symbols.replace('_', " "))
        });
        let advice = advised.collect::<Vec<_>>().join(", ");
        Ok(Self { percent, addresses: addresses.len(), labels: labels.len(), unnamed, whole, advice })
    }

    /// The modules without names, in percent of all frames.
    fn unnamed(&self) -> String {
        let parts = self.unnamed.iter().map(|(module, bytes)| {
            let name = Path::new(module).file_name().unwrap_or_default().display();
            format!("{name} {:.2} %", 100.0 * bytes / self.whole)
        });
        let parts: Vec<String> = parts.collect();
        if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(|word| if word == "{}" { String::new() } else { word.to_owned() }).collect()
}

fn socket(folder: &Path) -> String {
    folder.join("socket").display().to_string()
}

/// A client that sets and gets keys, until the server exits.
fn memcached_load(folder: &Path) -> Result<Option<Program>> {
    let stream = connect(folder)?;
    thread::spawn(move || -> Result<()> {
        let (mut reader, mut writer) = (BufReader::new(stream.try_clone()?), stream);
        let mut line = String::new();
        for key in (0..KEYS).cycle() {
            write!(writer, "set key{key} 0 0 10\r\n0123456789\r\nget key{key} key{} key{}\r\n", key + 1, key + 2)?;
            line.clear();
            while !line.ends_with("END\r\n") {
                ensure!(reader.read_line(&mut line)? > 0, "the server has exited");
            }
        }
        Ok(())
    });
    Ok(None)
}

fn connect(folder: &Path) -> Result<UnixStream> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match UnixStream::connect(folder.join("socket")) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => return Err(error).context("the server does not listen"),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn redis_load(folder: &Path) -> Result<Option<Program>> {
    drop(connect(folder)?);
    let mut load = bound("redis-benchmark");
    load.arg("-s").arg(folder.join("socket")).args(["-t", "set,get,lpush,lrange_100,hset,sadd,zadd", "-l", "-q"]);
    Program::start(load.args(["-n", "20000", "-r", "100000", "-d", "100", "-c", "20"]), Output::None).map(Some)
}

fn git_arguments(folder: &Path) -> Result<Vec<String>> {
    programs::git_history(folder, COMMITS)?;
    Ok(words(&format!("-C {} --no-pager log -p --stat -M -C", folder.display())))
}
