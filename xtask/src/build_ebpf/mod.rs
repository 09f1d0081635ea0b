//! `cargo xtask build-ebpf`: builds the kernel side into the object that is committed, without DWARF, which is most of it, and
//! without paths of this machine. BTF stays: the loader and the verifier's log use it.

mod compile;
mod toolchain;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use object::build::elf::{Builder, SectionData};
use object::elf;

pub(crate) use compile::stand_in as stand_in_for_rustc;

use crate::repository::Repository;
use toolchain::{Toolchain, differences};

const COMMITTED: &str = "profiler/bpf/heapbpf.bpf.o";
const RECORD: &str = "profiler/bpf/toolchain.txt";

/// Builds the kernel side into the committed object.
///
/// The object is committed so that building heapbpf requires a stable Rust only. After a change of profiler-ebpf or
/// profiler-common, rebuild it, which requires a compiler with the source of `core` and bpf-linker, and commit it together with
/// profiler/bpf/toolchain.txt. Equal toolchains build equal objects in every folder; --check relies on that.
#[derive(clap::Args)]
#[command(after_help = "Toolchains, the first that is complete:
  1. Debian's: apt-get install rustc-web cargo-web rust-web-src
  2. rustup's: rustup toolchain install nightly --component rust-src
and with either: bpf-linker 0.13

Examples:
  cargo xtask build-ebpf             after a change to the kernel side
  cargo xtask build-ebpf --install   the same, after installing a missing toolchain
  cargo xtask build-ebpf --check     check that the committed object is built from this source
  cargo xtask build-ebpf --debug     an object that logs, for HEAPBPF_BPF_OBJECT=… heapbpf …")]
pub(crate) struct Arguments {
    /// Rebuild elsewhere and fail if the committed object differs. Objects of different toolchains cannot be compared: then
    /// the rebuilt object is written to target/rebuilt.bpf.o to be tested.
    #[arg(long, conflicts_with_all = ["debug", "out"])]
    check: bool,
    /// Install missing parts of the toolchain (Debian: with apt-get, as root or through sudo).
    #[arg(long)]
    install: bool,
    /// Build with the feature `log` and with DWARF into target/heapbpf-debug.bpf.o.
    #[arg(long)]
    debug: bool,
    /// Write the object here instead of replacing the committed one.
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    let toolchain = if arguments.install { toolchain::find_or_install()? } else { Toolchain::find()? };
    let record = toolchain.record();
    eprintln!("toolchain:\n{record}");
    if arguments.check {
        return check(&repository, &toolchain, &record);
    }
    let object = compile::build(&repository, &toolchain, arguments.debug)?;
    if arguments.debug {
        let path = arguments.out.clone().unwrap_or_else(|| repository.target.join("heapbpf-debug.bpf.o"));
        write(&path, &object)?;
        println!("its log is part of heapbpf's: HEAPBPF_BPF_OBJECT={} RUST_LOG=debug heapbpf …", path.display());
        return Ok(());
    }
    let object = publish(&object, &compile::private_paths(&repository, &toolchain)?)?;
    if let Some(path) = &arguments.out {
        return write(path, &object);
    }
    write(&repository.root.join(COMMITTED), &object)?;
    write(&repository.root.join(RECORD), record.as_bytes())
}

fn check(repository: &Repository, toolchain: &Toolchain, here: &str) -> Result<()> {
    const REMEDY: &str = "run `cargo xtask build-ebpf` and commit";
    let read = |path: &str| fs::read(repository.root.join(path)).with_context(|| format!("no `{path}`: {REMEDY}"));
    let committed = read(COMMITTED)?;
    let recorded = String::from_utf8(read(RECORD)?)?;
    let rebuilt_path = repository.target.join("rebuilt.bpf.o");
    if rebuilt_path.exists() {
        fs::remove_file(&rebuilt_path)?;
    }
    let rebuilt = compile::build(repository, toolchain, false)?;
    let rebuilt = publish(&rebuilt, &compile::private_paths(repository, toolchain)?)?;
    if committed == rebuilt {
        println!("`{COMMITTED}` is equal to the object rebuilt from this source: {} bytes", committed.len());
        return Ok(());
    }
    write(&rebuilt_path, &rebuilt)?;
    let differences = differences(&recorded, here).context(format!("`{RECORD}`: {REMEDY}"))?;
    if differences.is_empty() {
        bail!(
            "`{COMMITTED}` ({} bytes) differs from the object rebuilt from this source ({} bytes, written to `{}`) with the same \
             toolchain that `{RECORD}` names: {REMEDY}",
            committed.len(),
            rebuilt.len(),
            rebuilt_path.display()
        );
    }
    println!(
        "not compared: `{COMMITTED}` was built with another toolchain:\n{}\ntest the object that was rebuilt \
         here: HEAPBPF_BPF_OBJECT={} cargo xtask test",
        differences.join("\n"),
        rebuilt_path.display()
    );
    Ok(())
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("could not create the folder `{}`", folder.display()))?;
    }
    fs::write(path, content).with_context(|| format!("could not write `{}`", path.display()))?;
    println!("wrote {} ({} bytes)", path.display(), content.len());
    Ok(())
}

fn publish(linked: &[u8], private_paths: &[String]) -> Result<Vec<u8>> {
    let stripped = strip(linked).context("the linker's output could not be stripped")?;
    if let Some(path) = private_paths.iter().find(|path| contains(&stripped, path.as_bytes())) {
        bail!("the object contains `{path}`, a folder of this machine, and would differ on any other");
    }
    Ok(stripped)
}

/// Removes the debug sections, the relocations for them and their section symbols.
fn strip(linked: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(linked)?;
    let is_debug = |name: &[u8]| name.starts_with(b".debug_") || name.starts_with(b".rel.debug_");
    let debug: Vec<_> = builder
        .sections
        .iter()
        .filter(|section| is_debug(section.name.as_slice()))
        .map(|section| section.id())
        .collect();
    for id in debug {
        builder.sections.get_mut(id).delete = true;
    }
    builder.delete_orphans();
    // LLVM keeps sections' names and symbols' names in one table, and `object` writes two.
    if !builder.sections.iter().any(|section| matches!(section.data, SectionData::SectionString)) {
        let names = builder.sections.add();
        names.name = ".shstrtab".into();
        names.sh_type = elf::SHT_STRTAB;
        names.sh_addralign = 1;
        names.data = SectionData::SectionString;
    }
    let mut stripped = Vec::new();
    builder.write(&mut stripped)?;
    Ok(stripped)
}

fn contains(content: &[u8], wanted: &[u8]) -> bool {
    !wanted.is_empty() && content.windows(wanted.len()).any(|window| window == wanted)
}

#[cfg(test)]
mod tests;
