//! `cargo xtask demo`: builds heapbpf and a small leaking program, and profiles it.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::command::{self, Privilege, Repository};
use crate::process::{Program, bound};

const DURATION: &str = "5s";
const INCOMPLETE: i32 = 3;

/// Profiles a small leaking program and prints the paths of its reports.
///
/// Builds heapbpf in release mode and the target tests/targets/leaky.rs, starts the target, attaches heapbpf to it for
/// five seconds, prints the callsites with most live memory, and writes leaky.html, leaky.svg and leaky.json to target/demo.
/// Profiling another process requires root: sudo is used where possible.
#[derive(clap::Args)]
#[command(after_help = "The widest tower of the flame graph is `cache_insert`, which keeps a KiB of every request. \
                  `parse_request` allocates most often and keeps no block. HEAPBPF_BIN=PATH uses that binary instead of \
                  building one.")]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> Result<()> {
    let privilege = Privilege::find();
    if privilege == Privilege::Missing {
        bail!("profiling another process requires root, and sudo is not available: run `cargo xtask demo` as root");
    }
    let repository = Repository::find()?;
    let folder = repository.target.join("demo");
    command::empty_folder(&folder)?;
    let heapbpf = repository.heapbpf()?;
    let (source, program) = (repository.root.join("tests/targets/leaky.rs"), folder.join("leaky"));
    command::compile("rustc", "--edition=2024 -O -g -Cforce-frame-pointers=yes", &source, &program)?;
    let (target, _) = Program::ready(&mut bound(program))?;
    profile(&heapbpf, privilege, target.pid(), &folder)
}

fn profile(heapbpf: &Path, privilege: Privilege, target: u32, folder: &Path) -> Result<()> {
    let [page, svg, json] = ["leaky.html", "leaky.svg", "leaky.json"].map(|name| folder.join(name));
    let mut command = privilege.command(heapbpf).context("neither root nor sudo")?;
    if privilege == Privilege::Sudo {
        eprintln!("profiling another process requires root: using sudo");
    }
    command.args(["--pid", &target.to_string(), "--duration", DURATION, "--trim"]);
    command.args([&page, &svg, &json].iter().flat_map(|output| ["-o".as_ref(), output.as_os_str()]));
    eprintln!("+ {}", command::line(&command));
    let status = command.status().with_context(|| format!("could not start `{}`", heapbpf.display()))?;
    match status.code() {
        Some(0) => {}
        Some(INCOMPLETE) => eprintln!("the profile is incomplete: see the messages of heapbpf above"),
        _ => bail!("heapbpf failed: {status}"),
    }
    for written in [&page, &svg, &json] {
        if !written.exists() {
            bail!("heapbpf succeeded without writing `{}`", written.display());
        }
    }
    println!(
        "page:        {} (open it in a browser)\nflame graph: {}\nreport:      {}",
        page.display(),
        svg.display(),
        json.display()
    );
    Ok(())
}
