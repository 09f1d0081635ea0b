//! `cargo xtask build-ebpf`: the kernel side, from source to the object that is committed. This file is the verb; how
//! a toolchain is found, what it is told and what becomes of its output are modules of their own.

mod compile;
mod install;
mod object;
mod record;
mod rustc;
mod toolchain;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

pub(crate) use rustc::stand_in as stand_in_for_rustc;

use crate::repository::Repository;
use record::Record;
use toolchain::Toolchain;

/// Where the committed object is, from the repository's root.
const COMMITTED: &str = "profiler/bpf/heapbpf.bpf.o";
/// Where it is written what built it.
const RECORD: &str = "profiler/bpf/toolchain.txt";

/// Builds the kernel side into the committed object.
///
/// The object is committed so that building heapbpf takes a stable Rust and nothing else. Those who change
/// profiler-ebpf or profiler-common build it anew with this, which takes a compiler with the source of `core` and
/// bpf-linker, and commit the result together with profiler/bpf/toolchain.txt. The same toolchain makes the same bytes
/// in every folder, and --check relies on that.
#[derive(clap::Args)]
#[command(after_help = "Toolchains, the first that is complete:
  1. Debian's: apt-get install rustc-web cargo-web rust-web-src
  2. rustup's: rustup toolchain install nightly --component rust-src
and with either: bpf-linker 0.13

Examples:
  cargo xtask build-ebpf             after a change to the kernel side
  cargo xtask build-ebpf --install   the same, and get the toolchain first if it is missing
  cargo xtask build-ebpf --check     does the committed object come from this source?
  cargo xtask build-ebpf --debug     an object that logs, for HEAPBPF_BPF_OBJECT=… heapbpf …")]
pub(crate) struct Arguments {
    /// Rebuild elsewhere and fail if the committed object differs. Where this machine's toolchain is another than the
    /// one that made it, bytes prove nothing: the rebuilt object is then left at target/rebuilt.bpf.o to be tested.
    #[arg(long, conflicts_with_all = ["debug", "out"])]
    check: bool,
    /// Install what is missing (Debian: with apt-get, as root or through sudo). Does nothing where all is there.
    #[arg(long)]
    install: bool,
    /// Build with the feature `log` and with DWARF into target/heapbpf-debug.bpf.o.
    #[arg(long)]
    debug: bool,
    /// Write the object here and leave the committed one alone.
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
}

/// Runs the verb.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    let toolchain = if arguments.install { install::find_or_install()? } else { Toolchain::find()? };
    let record = Record::of(&toolchain)?;
    eprintln!("toolchain:\n{record}");
    if arguments.check {
        return check(&repository, &toolchain, &record);
    }
    let object = compile::build(&repository, &toolchain, arguments.debug)?;
    if arguments.debug {
        let path = arguments.out.clone().unwrap_or_else(|| repository.target.join("heapbpf-debug.bpf.o"));
        write(&path, &object)?;
        println!("its log goes to heapbpf's: HEAPBPF_BPF_OBJECT={} RUST_LOG=debug heapbpf …", path.display());
        return Ok(());
    }
    let object = object::publish(&object, &compile::private_paths(&repository, &toolchain)?)?;
    if let Some(path) = &arguments.out {
        return write(path, &object);
    }
    write(&repository.root.join(COMMITTED), &object)?;
    write(&repository.root.join(RECORD), record.to_string().as_bytes())
}

/// Compares the committed object with a rebuilt one, as far as that says something.
fn check(repository: &Repository, toolchain: &Toolchain, here: &Record) -> Result<()> {
    const REMEDY: &str = "run `cargo xtask build-ebpf` and commit";
    let read = |path: &str| fs::read(repository.root.join(path)).with_context(|| format!("no `{path}`: {REMEDY}"));
    let committed = read(COMMITTED)?;
    let recorded = String::from_utf8(read(RECORD)?)?.parse::<Record>().context(format!("`{RECORD}`: {REMEDY}"))?;
    let rebuilt_path = repository.target.join("rebuilt.bpf.o");
    // One from an earlier check would be taken for this one's.
    match fs::remove_file(&rebuilt_path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let rebuilt = compile::build(repository, toolchain, false)?;
    let rebuilt = object::publish(&rebuilt, &compile::private_paths(repository, toolchain)?)?;
    if committed == rebuilt {
        println!("`{COMMITTED}` is what this source gives: {} bytes, equal", committed.len());
        return Ok(());
    }
    write(&rebuilt_path, &rebuilt)?;
    let differences = recorded.differences(here);
    if differences.is_empty() {
        bail!(
            "`{COMMITTED}` ({} bytes) is not what this source gives ({} bytes, left at `{}`), with the very toolchain \
             that `{RECORD}` names: {REMEDY}",
            committed.len(),
            rebuilt.len(),
            rebuilt_path.display()
        );
    }
    println!(
        "not compared: `{COMMITTED}` was made by another toolchain, so its bytes prove nothing here:\n{}\nthe object \
         rebuilt here is left to be tested: HEAPBPF_BPF_OBJECT={} cargo xtask test",
        differences.join("\n"),
        rebuilt_path.display()
    );
    Ok(())
}

/// Writes a file and its folder, and says so.
fn write(path: &Path, content: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("could not make the folder `{}`", folder.display()))?;
    }
    fs::write(path, content).with_context(|| format!("could not write `{}`", path.display()))?;
    println!("wrote {} ({} bytes)", path.display(), content.len());
    Ok(())
}
