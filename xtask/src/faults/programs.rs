//! The programs that `cargo xtask faults --engine inline` attacks, and how they are built and started.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::server::Server;
use super::subject::{Subject, Worker};
use crate::command;

/// Flags of all programs in C and C++.
const FLAGS: &str = "-O1 -g -fno-omit-frame-pointer -fno-builtin -pthread -w";
/// Libraries of `tests/targets/`: name, source, flags.
const LIBRARIES: [(&str, &str, &str); 8] = [
    ("small.so", "reloaded.c", "-O2 -Wl,-z,lazy"),
    ("large.so", "reloaded.c", "-O2 -Wl,-z,lazy -DLARGE"),
    ("small-now.so", "reloaded.c", "-O2 -Wl,-z,now"),
    ("large-now.so", "reloaded.c", "-O2 -Wl,-z,now -DLARGE"),
    ("separated.so", "separated.c", "-Wl,-z,lazy"),
    ("deep.so", "separated.c", "-Wl,-z,lazy -Wl,--no-as-needed -ljemalloc"),
    ("wrapping.so", "wrapping.c", "-O2"),
    ("plain.so", "separated.c", "-O2"),
];
/// The kernel writes the processor's number into the memory of threads with restartable sequences; libraries with thread-local
/// variables need room.
const TUNABLES: &str = "glibc.pthread.rseq=0:glibc.rtld.optional_static_tls=8192";

/// A program with its setting.
#[derive(Clone, Copy)]
pub(super) struct Program {
    pub(super) name: &'static str,
    kind: Kind,
    /// Whether nothing runs in it while it waits for a command, so that its memory can be compared.
    pub(super) idles: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Source, flags, arguments, and a library to preload. `@` stands for the folder of libraries.
    Built(&'static str, &'static str, &'static str, &'static str),
    /// An interpreter and its script.
    Script(&'static str, &'static str),
    Java,
    /// Whether it calls C.
    Go(bool),
    Redis,
    Nginx,
    Postgres,
    PhpFpm,
}

const fn built(name: &'static str, source: &'static str, flags: &'static str, arguments: &'static str) -> Program {
    Program { name, kind: Kind::Built(source, flags, arguments, ""), idles: true }
}

const fn preloaded(name: &'static str, library: &'static str) -> Program {
    Program { name, kind: Kind::Built("attacked_churn.c", "", "", library), idles: true }
}

const fn running(name: &'static str, kind: Kind) -> Program {
    Program { name, kind, idles: false }
}

/// All programs.
pub(super) const PROGRAMS: &[Program] = &[
    built("plugins-lazy", "attacked_plugins.c", "-rdynamic", "lazy @small.so @large.so"),
    built("plugins-now", "attacked_plugins.c", "-rdynamic", "now @small-now.so @large-now.so"),
    built("deepbind", "attacked_separate.c", "", "deep @deep.so"),
    built("dlmopen", "attacked_separate.c", "", "namespace @separated.so"),
    built("churn-lazy", "attacked_churn.c", "-Wl,-z,lazy", ""),
    built("churn-now", "attacked_churn.c", "-Wl,-z,now", ""),
    preloaded("preload-jemalloc", "libjemalloc.so.2"),
    preloaded("preload-tcmalloc", "libtcmalloc_minimal.so.4"),
    preloaded("preload-mimalloc", "libmimalloc.so.2.0"),
    preloaded("preload-wrapper", "@wrapping.so"),
    built("linked-jemalloc", "attacked_churn.c", "-Wl,--no-as-needed -ljemalloc", ""),
    built("stacks", "attacked_stacks.c", "", ""),
    running("signals", Kind::Built("attacked_signals.c", "", "", "")),
    running("signals-alternate", Kind::Built("attacked_signals.c", "", "alternate", "")),
    built("exceptions", "attacked_exceptions.cpp", "-std=c++20", ""),
    built("processes", "attacked_processes.c", "", ""),
    built("threads-1000", "attacked_threads.c", "", ""),
    built("seccomp", "attacked_seccomp.c", "", ""),
    // The kernel writes to its rings.
    running("io-uring", Kind::Built("attacked_uring.c", "", "", "")),
    running("go", Kind::Go(false)),
    running("go-cgo", Kind::Go(true)),
    Program { name: "python", kind: Kind::Script("/usr/bin/python3", "attacked.py"), idles: true },
    running("node", Kind::Script("node", "attacked.js")),
    running("ruby", Kind::Script("ruby", "attacked.rb")),
    running("java", Kind::Java),
    running("redis", Kind::Redis),
    running("nginx", Kind::Nginx),
    running("postgres", Kind::Postgres),
    running("php-fpm", Kind::PhpFpm),
];

/// A command line, with its environment.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) words: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
}

impl Line {
    /// The command, executed by another program with its arguments unless that is empty.
    pub(super) fn command(&self, before: &[OsString]) -> Command {
        let words: Vec<&OsString> = before.iter().chain(&self.words).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The same for a copy of its program under another name.
    pub(super) fn renamed(&self, program: &Path) -> Self {
        let mut line = self.clone();
        line.words[0] = program.into();
        line
    }
}

/// Where programs are built.
pub(super) struct Workshop {
    sources: PathBuf,
    folder: PathBuf,
}

impl Workshop {
    /// Builds the libraries.
    pub(super) fn new(sources: PathBuf, folder: &Path) -> Result<Self> {
        let workshop = Self { sources, folder: folder.to_owned() };
        for (name, source, flags) in LIBRARIES {
            workshop.compile("gcc", &format!("-shared -fPIC {flags}"), source, name)?;
        }
        Ok(workshop)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn compile(&self, compiler: &str, flags: &str, source: &str, name: &str) -> Result<PathBuf> {
        let program = self.folder.join(name);
        command::output(
            Command::new(compiler)
                .args(FLAGS.split_ascii_whitespace())
                .arg("-o")
                .arg(&program)
                .arg(self.sources.join(source))
                .args(flags.split_ascii_whitespace()),
        )?;
        Ok(program)
    }

    fn placed(&self, word: &str) -> OsString {
        word.strip_prefix('@').map_or_else(|| word.into(), |name| self.folder.join(name).into())
    }

    /// Builds a program that follows the protocol of `attacked.h`; `None` for servers.
    pub(super) fn build(&self, program: &Program) -> Result<Option<Line>> {
        // Only in programs whose memory is compared: elsewhere, restartable sequences are part of what is attacked.
        let tunables = || program.idles.then(|| ("GLIBC_TUNABLES", TUNABLES.into()));
        let line = |words: Vec<OsString>| Ok(Some(Line { words, environment: tunables().into_iter().collect() }));
        match program.kind {
            Kind::Built(source, flags, arguments, preload) => {
                let compiler = if source.ends_with(".cpp") { "g++" } else { "gcc" };
                let path = self.compile(compiler, flags, source, program.name)?;
                let arguments = arguments.split_ascii_whitespace().map(|word| self.placed(word));
                let words = std::iter::once(path.into()).chain(arguments).collect();
                let preload = (!preload.is_empty()).then(|| ("LD_PRELOAD", self.placed(preload)));
                let environment = preload.into_iter().chain(tunables()).collect();
                Ok(Some(Line { words, environment }))
            }
            Kind::Script(interpreter, script) => line(vec![interpreter.into(), self.sources.join(script).into()]),
            Kind::Java => {
                let source = self.sources.join("Attacked.java");
                command::output(Command::new("javac").arg("-d").arg(&self.folder).arg(source))?;
                line(vec!["java".into(), "-cp".into(), self.folder.clone().into(), "Attacked".into()])
            }
            Kind::Go(calls_c) => {
                let path = self.folder.join(program.name);
                let (enabled, other) = if calls_c { ("1", "attacked_c.go") } else { ("0", "attacked_go.go") };
                let mut go = Command::new("go");
                go.env("CGO_ENABLED", enabled).env("GO111MODULE", "off").env("GOCACHE", self.folder.join("go-cache"));
                go.args(["build", "-tags", if calls_c { "c" } else { "" }, "-o"]).arg(&path);
                command::output(go.arg(self.sources.join("attacked.go")).arg(self.sources.join(other)))?;
                line(vec![path.into()])
            }
            Kind::Redis | Kind::Nginx | Kind::Postgres | Kind::PhpFpm => Ok(None),
        }
    }

    /// Starts a program without heapbpf.
    pub(super) fn start(&self, program: &Program, line: Option<&Line>) -> Result<Box<dyn Subject>> {
        let server = match program.kind {
            Kind::Redis => Server::redis(),
            Kind::Nginx => Server::nginx(),
            Kind::Postgres => Server::postgres(),
            Kind::PhpFpm => Server::php_fpm(&self.folder, &self.sources.join("attacked.php")),
            _ => {
                let line = line.context("it was built")?;
                return Ok(Box::new(Worker::spawn(&mut line.command(&[]))?));
            }
        };
        Ok(Box::new(server?))
    }
}
