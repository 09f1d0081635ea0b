//! `cargo xtask build-ebpf`: builds the kernel side into the objects that are committed, one for each processor, without DWARF, which is most of it, and
//! without paths of this machine. BTF stays: the loader and the verifier's log use it.
//!
//! Runs the toolchain without the variables of the cargo that started this xtask. This program is the wrapper of rustc that
//! keeps folders of the machine out of the object. Paths of source files, including those in a registry, are renamed by
//! `--remap-path-prefix`. The hash that cargo passes by `-C metadata`, and rustc adds to every symbol, covers the absolute
//! path of crates outside of the workspace, such as profiler-common: no flag replaces it, a wrapper can. Arguments for other
//! targets are not changed.

mod toolchain;

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use anyhow::{Context as _, Result, bail};
use object::build::elf::{Builder, SectionData};
use object::elf;

use crate::architecture::Architecture;
use crate::command::{self, Repository, without_parent_cargo};
use crate::inputs::Recipe;
use toolchain::{TARGET, Toolchain, differences};

/// Processors whose objects are committed. The registers of a probed function differ.
const ARCHITECTURES: [Architecture; 2] = [Architecture::X86_64, Architecture::Aarch64];
const FOLDER: &str = "profiler/bpf";
const RECORD: &str = "profiler/bpf/toolchain.txt";
const RECIPE: Recipe = Recipe {
    // Not `profiler-ebpf/host`, which is compiled for tests only.
    from: &[
        "profiler-ebpf/src",
        "profiler-ebpf/Cargo.toml",
        "profiler-ebpf/Cargo.lock",
        "profiler-common",
        "Cargo.toml",
        "xtask/src/build_ebpf",
    ],
    built: &[FOLDER],
    record: "profiler/bpf/SOURCE",
};

/// Builds the kernel side into the committed objects, one for each processor.
///
/// The objects are committed so that building heapbpf requires a stable Rust only. After a change of profiler-ebpf or
/// profiler-common, rebuild them, which requires a compiler with the source of `core` and bpf-linker, and commit them together
/// with profiler/bpf/toolchain.txt. Equal toolchains build equal objects in every folder; --check relies on that.
#[derive(clap::Args)]
#[command(after_help = "Toolchains, the first that is complete:
  1. Debian's: apt-get install rustc-web cargo-web rust-web-src
  2. rustup's: rustup toolchain install nightly --component rust-src
and with either: bpf-linker 0.13

Examples:
  cargo xtask build-ebpf             after a change to the kernel side
  cargo xtask build-ebpf --install   the same, after installing a missing toolchain
  cargo xtask build-ebpf --check     check that the committed objects are built from this source
  cargo xtask build-ebpf --check --if-changed     the same, in no time if nothing has changed
  cargo xtask build-ebpf --debug     an object that logs, for HEAPBPF_BPF_OBJECT=… heapbpf …")]
pub(crate) struct Arguments {
    /// Rebuild elsewhere and fail if a committed object differs. Objects of different toolchains cannot be compared: then
    /// the rebuilt objects are written to target/rebuilt-ARCH.bpf.o to be tested.
    #[arg(long, conflicts_with_all = ["debug", "out"])]
    check: bool,
    /// With --check: build nothing if neither the source nor what is committed has changed since it was built.
    #[arg(long, requires = "check")]
    if_changed: bool,
    /// Install missing parts of the toolchain (Debian: with apt-get, as root or through sudo).
    #[arg(long)]
    install: bool,
    /// Build with the feature `log` and with DWARF into target/heapbpf-debug.bpf.o.
    #[arg(long)]
    debug: bool,
    /// Write the object here instead of replacing a committed one.
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// Build for this processor only. Default: this machine's with --debug and --out, all otherwise.
    #[arg(long, value_name = "ARCH")]
    arch: Option<Architecture>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    if arguments.if_changed && RECIPE.is_unchanged(&repository.root)? {
        ARCHITECTURES.into_iter().try_for_each(|of| remove_rebuilt(of, &repository))?;
        println!("`{FOLDER}` is unchanged since it was built from this source");
        return Ok(());
    }
    let toolchain = if arguments.install { toolchain::find_or_install()? } else { Toolchain::find()? };
    let record = toolchain.record();
    eprintln!("toolchain:\n{record}");
    if arguments.debug || arguments.out.is_some() {
        return build_one(arguments, &repository, &toolchain);
    }
    let mut chosen = ARCHITECTURES.into_iter().filter(|of| arguments.arch.is_none_or(|arch| arch == *of));
    if arguments.check {
        return chosen.try_for_each(|of| check(of, &repository, &toolchain, &record));
    }
    for architecture in chosen {
        let object = compile(architecture, &repository, &toolchain, false)?;
        let object = publish(&object, &private_paths(architecture, &repository, &toolchain)?)?;
        write(&repository.root.join(committed(architecture)), &object)?;
    }
    write(&repository.root.join(RECORD), record.as_bytes())?;
    // The fingerprint is of all objects.
    if arguments.arch.is_some() { Ok(()) } else { RECIPE.record(&repository.root) }
}

fn committed(architecture: Architecture) -> String {
    format!("profiler/bpf/heapbpf-{}.bpf.o", architecture.name())
}

/// What --check leaves for the tests, if it cannot compare.
fn rebuilt(architecture: Architecture, repository: &Repository) -> PathBuf {
    repository.target.join(format!("rebuilt-{}.bpf.o", architecture.name()))
}

fn remove_rebuilt(architecture: Architecture, repository: &Repository) -> Result<()> {
    let path = rebuilt(architecture, repository);
    if path.exists() { Ok(fs::remove_file(&path)?) } else { Ok(()) }
}

/// Builds an object that is not committed.
fn build_one(arguments: &Arguments, repository: &Repository, toolchain: &Toolchain) -> Result<()> {
    let architecture = arguments.arch.unwrap_or(Architecture::HOST);
    let object = compile(architecture, repository, toolchain, arguments.debug)?;
    let out = arguments.out.clone().unwrap_or_else(|| repository.target.join("heapbpf-debug.bpf.o"));
    if arguments.debug {
        write(&out, &object)?;
        println!("its log is part of heapbpf's: HEAPBPF_BPF_OBJECT={} RUST_LOG=debug heapbpf …", out.display());
        return Ok(());
    }
    write(&out, &publish(&object, &private_paths(architecture, repository, toolchain)?)?)
}

fn check(architecture: Architecture, repository: &Repository, toolchain: &Toolchain, here: &str) -> Result<()> {
    const REMEDY: &str = "run `cargo xtask build-ebpf` and commit";
    let read = |path: &str| fs::read(repository.root.join(path)).with_context(|| format!("no `{path}`: {REMEDY}"));
    let path = committed(architecture);
    let committed = read(&path)?;
    let recorded = String::from_utf8(read(RECORD)?)?;
    remove_rebuilt(architecture, repository)?;
    let rebuilt_path = rebuilt(architecture, repository);
    let object = compile(architecture, repository, toolchain, false)?;
    let rebuilt = publish(&object, &private_paths(architecture, repository, toolchain)?)?;
    if committed == rebuilt {
        println!("`{path}` is equal to the object rebuilt from this source: {} bytes", committed.len());
        return Ok(());
    }
    write(&rebuilt_path, &rebuilt)?;
    let differences = differences(&recorded, here).context(format!("`{RECORD}`: {REMEDY}"))?;
    if differences.is_empty() {
        bail!(
            "`{path}` ({} bytes) differs from the object rebuilt from this source ({} bytes, written to `{}`) with the same \
             toolchain that `{RECORD}` names: {REMEDY}",
            committed.len(),
            rebuilt.len(),
            rebuilt_path.display()
        );
    }
    println!("not compared: `{path}` was built with another toolchain:\n{}", differences.join("\n"));
    if architecture.is_host() {
        println!(
            "test the object that was rebuilt here: HEAPBPF_BPF_OBJECT={} cargo xtask test",
            rebuilt_path.display()
        );
    }
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

/// Instruction set of the object. v3 (Linux 5.12) has the atomic operations that return the old value and 32-bit jumps;
/// v4 would take Linux 6.6. An atomic operation whose result is used must not be `Relaxed`: LLVM 22 then emits the
/// instruction without a result, and silently uses the operand as the result. `AcqRel` works.
const CPU: &str = "v3";
/// Longer loops stay loops. The verifier follows each call of a function, and copies of calls multiply along a chain of functions
/// (`check_max_stack_depth` in kernel/bpf/verifier.c).
const UNROLL: &str = "-unroll-full-max-count=16";
const PACKAGE: &str = "heapbpf-ebpf";

/// Flags that affect the object, and are therefore equal on every machine. Paths are not among them: see above.
fn rustflags(architecture: Architecture) -> String {
    [
        // Selects the registers of the probed function, also in aya-ebpf.
        &format!("--cfg=bpf_target_arch={:?}", architecture.name()),
        "-Clinker=bpf-linker",
        "-Clink-arg=--btf",
        "-Cdebuginfo=2",
        &format!("-Ctarget-cpu={CPU}"),
        &format!("-Cllvm-args={UNROLL}"),
        &format!("-Clink-arg=--llvm-args={UNROLL}"),
    ]
    .join("\u{1f}")
}

fn compile(architecture: Architecture, repository: &Repository, toolchain: &Toolchain, log: bool) -> Result<Vec<u8>> {
    let source = repository.root.join("profiler-ebpf");
    // The flags contain only the linker's name.
    let folder = toolchain.linker.program.parent().context("bpf-linker is in no folder")?;
    let inherited = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(std::iter::once(folder.to_owned()).chain(env::split_paths(&inherited)))?;
    let target = target(architecture, repository);
    let mut command = Command::new(&toolchain.rust.cargo);
    without_parent_cargo(&mut command)
        .current_dir(&source)
        .args(["build", "--release", "--target", TARGET, "-Zbuild-std=core", "--package", PACKAGE])
        .env("RUSTC", &toolchain.rust.rustc)
        // Makes a stable compiler accept -Z.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags(architecture))
        .env("PATH", path);
    install(&mut command, &remaps(architecture, repository, toolchain)?)?;
    if source.join("Cargo.lock").exists() {
        command.arg("--locked");
    }
    if log {
        command.args(["--features", "log"]);
    }
    command::run(&mut command)?;
    let object = target.join(TARGET).join("release").join(PACKAGE);
    fs::read(&object).with_context(|| format!("cargo succeeded without writing `{}`", object.display()))
}

/// A separate target directory: builds of user space do not wait for its lock, and the flags of one processor do not make
/// cargo build everything again for the other.
fn target(architecture: Architecture, repository: &Repository) -> PathBuf {
    repository.target.join("ebpf").join(architecture.name())
}

fn remaps(architecture: Architecture, repository: &Repository, toolchain: &Toolchain) -> Result<Vec<Remap>> {
    // A distribution's sysroot has symbolic links, and both names occur.
    let source = &toolchain.rust.source;
    let canonical = source.canonicalize().with_context(|| format!("no `{}`", source.display()))?;
    Ok(vec![
        // Relative to profiler-ebpf, where the linker runs: LLVM reads the source there and stores its lines in the BTF,
        // for the verifier's log.
        Remap::new(&repository.root, ".."),
        Remap::new(source, "rust"),
        Remap::new(&canonical, "rust"),
        Remap::new(&cargo_home()?, "cargo"),
        // Last, because it is usually below the repository.
        Remap::new(&target(architecture, repository), "target"),
    ])
}

/// Folders of this machine, which must not occur in the object; long enough not to occur by chance (unlike `/src`).
fn private_paths(architecture: Architecture, repository: &Repository, toolchain: &Toolchain) -> Result<Vec<String>> {
    let source = &toolchain.rust.source;
    let folders = [
        repository.root.join("profiler-ebpf"),
        repository.root.join("profiler-common"),
        target(architecture, repository),
        cargo_home()?.join("registry"),
        source.join("library"),
        source.canonicalize()?.join("library"),
    ];
    Ok(folders.iter().map(|folder| folder.to_string_lossy().into_owned()).collect())
}

fn cargo_home() -> Result<PathBuf> {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home).context("neither CARGO_HOME nor HOME is set")
}

/// Contains the [`Remap`]s for the cargo that builds the object.
const VARIABLE: &str = "HEAPBPF_XTASK_REMAP";
const SEPARATOR: char = '\u{1f}';

/// A folder and its name in the object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Remap {
    from: String,
    to: String,
}

impl Remap {
    fn new(from: &Path, to: &str) -> Self {
        Self { from: from.to_string_lossy().into_owned(), to: to.to_owned() }
    }

    fn flag(&self) -> String {
        format!("--remap-path-prefix={}={}", self.from, self.to)
    }
}

/// Makes `cargo` run this program instead of rustc.
fn install(cargo: &mut Command, remaps: &[Remap]) -> Result<()> {
    let text: Vec<_> = remaps.iter().flat_map(|remap| [remap.from.as_str(), &remap.to]).collect();
    cargo.env(VARIABLE, text.join(&SEPARATOR.to_string()));
    cargo.env("RUSTC_WRAPPER", env::current_exe().context("the path of this program is unknown")?);
    Ok(())
}

/// If cargo has started this program as rustc, executes rustc, and returns only on failure.
pub(crate) fn stand_in_for_rustc() -> Option<ExitCode> {
    let remaps = parse(&env::var(VARIABLE).ok()?);
    let mut given = env::args_os().skip(1);
    let rustc = given.next()?;
    let mut command = Command::new(rustc);
    match given.map(std::ffi::OsString::into_string).collect::<Result<Vec<_>, _>>() {
        Ok(given) => command.args(arguments(&given, package(), &remaps)),
        Err(argument) => {
            eprintln!("error: an argument for rustc is not UTF-8: `{}`", argument.display());
            return Some(ExitCode::FAILURE);
        }
    };
    let error = command.exec();
    eprintln!("error: could not start rustc: {error}");
    Some(ExitCode::FAILURE)
}

fn parse(text: &str) -> Vec<Remap> {
    let parts: Vec<_> = text.split(SEPARATOR).collect();
    let pairs = parts.chunks_exact(2);
    pairs.map(|pair| Remap { from: pair[0].to_owned(), to: pair[1].to_owned() }).collect()
}

/// The package that cargo compiles: `NAME-VERSION`, and its folder.
fn package() -> Option<(String, String)> {
    let get = |name| env::var(name).ok();
    Some((format!("{}-{}", get("CARGO_PKG_NAME")?, get("CARGO_PKG_VERSION")?), get("CARGO_MANIFEST_DIR")?))
}

fn arguments(given: &[String], package: Option<(String, String)>, remaps: &[Remap]) -> Vec<String> {
    let for_target = given.windows(2).any(|pair| pair[0] == "--target" && pair[1] == TARGET)
        || given.iter().any(|argument| argument.strip_prefix("--target=") == Some(TARGET));
    let Some((package, folder)) = package.filter(|_| for_target) else { return given.to_vec() };
    let metadata = |argument: &String| {
        if argument.starts_with("metadata=") { format!("metadata={package}") } else { argument.clone() }
    };
    let mut arguments: Vec<_> = given.iter().map(metadata).collect();
    // rustc applies the last match: the package's own folder is for packages of a registry, which are below cargo's home.
    let in_cargo_home = |remap: &&Remap| remap.to == "cargo";
    arguments.extend(remaps.iter().filter(in_cargo_home).map(Remap::flag));
    arguments.push(format!("--remap-path-prefix={folder}=cargo/{package}"));
    arguments.extend(remaps.iter().filter(|remap| !in_cargo_home(remap)).map(Remap::flag));
    arguments
}

#[cfg(test)]
mod tests;
