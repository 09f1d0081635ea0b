//! `cargo xtask demo`: builds heapbpf and a small leaking program, and profiles it.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitStatus;

use anyhow::{Context as _, Result, bail};

use crate::command::{self, Privilege, Repository};
use crate::process::{Program, bound};

const DURATION: &str = "5s";
const MONITORED: &str = "3s";
const INCOMPLETE: i32 = 3;
const LEAKS_FOUND: i32 = 4;

/// Profiles a small leaking program, finds its leak, and prints the path of the page to open.
///
/// Builds heapbpf and the target tests/targets/leaky.rs, and starts the target. Attaches heapbpf to it for five seconds,
/// prints the callsites with most live memory, and writes leaky.html, leaky.svg and leaky.json to target/demo. Then
/// `heapbpf leaks` lists the unreachable blocks. Profiling another process requires root: sudo is used where possible.
#[derive(clap::Args)]
#[command(after_help = "The widest tower of the flame graph is `cache_insert`, which keeps a KiB of every request. \
                  `parse_request` allocates most often and keeps no block. `log_line` leaks. HEAPBPF_BIN=PATH uses that \
                  binary instead of building one.")]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> Result<()> {
    let privilege = Privilege::find();
    if privilege == Privilege::Missing {
        bail!("profiling another process requires root, and sudo is not available: run `cargo xtask demo` as root");
    }
    let repository = Repository::find()?;
    let folder = repository.target.join("demo");
    command::empty_folder(&folder)?;
    let heapbpf = repository.debug_heapbpf()?;
    let (source, program) = (repository.root.join("tests/targets/leaky.rs"), folder.join("leaky"));
    command::compile("rustc", "--edition=2024 -O -g -Cforce-frame-pointers=yes", &source, &program)?;
    let (target, _) = Program::ready(&mut bound(program))?;
    if privilege == Privilege::Sudo {
        eprintln!("profiling another process requires root: using sudo");
    }
    let demo = Demo { heapbpf, privilege, pid: target.pid().to_string() };
    let files = ["leaky.html", "leaky.svg", "leaky.json"].map(|name| folder.join(name));
    demo.profile(&files)?;
    demo.leaks()?;
    let [page, svg, json] = files.map(|file| file.display().to_string());
    println!("\nflame graph: {svg}\nreport:      {json}\n\nopen this page in a browser: {page}");
    Ok(())
}

struct Demo {
    heapbpf: PathBuf,
    privilege: Privilege,
    pid: String,
}

impl Demo {
    fn profile(&self, files: &[PathBuf]) -> Result<()> {
        let outputs = files.iter().flat_map(|output| ["-o".as_ref(), output.as_os_str()]);
        let options = ["--pid", &self.pid, "--duration", DURATION, "--trim"];
        match self.run(options.map(OsStr::new).into_iter().chain(outputs))?.code() {
            Some(0) => {}
            Some(INCOMPLETE) => eprintln!("the profile is incomplete: see the messages of heapbpf above"),
            code => bail!("heapbpf failed: exit code {code:?}"),
        }
        match files.iter().find(|file| !file.exists()) {
            Some(missing) => bail!("heapbpf succeeded without writing `{}`", missing.display()),
            None => Ok(()),
        }
    }

    fn leaks(&self) -> Result<()> {
        let options = ["leaks", "--pid", &self.pid, "--watch", MONITORED, "--limit", "3", "--trim"];
        match self.run(options.map(OsStr::new))?.code() {
            Some(LEAKS_FOUND) => Ok(()),
            code => bail!("heapbpf did not find the leak of `log_line`: exit code {code:?}"),
        }
    }

    fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<ExitStatus> {
        let mut command = self.privilege.command(&self.heapbpf).context("neither root nor sudo")?;
        command.args(arguments);
        eprintln!("\n+ {}", command::line(&command));
        command.status().with_context(|| format!("could not start `{}`", self.heapbpf.display()))
    }
}
