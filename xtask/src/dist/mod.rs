//! `cargo xtask dist`: the files of a release: a static binary in a Debian package, an RPM package and an archive, each
//! with documentation, licences and an SBOM. Builds are reproducible; packages are tested where they are installed.

mod build;
mod dependencies;
mod licences;
mod pack;
mod stage;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::architecture::Architecture;
use crate::command::{self, Repository};
use crate::cross;
use build::Checkout;

/// Makes the files of a release in target/packages/PROCESSOR.
///
/// Builds a static binary, and packs it with manual pages, shell completions, a systemd unit, licences and a software bill
/// of materials (CycloneDX): as .deb, .rpm and .tar.gz, with SHA-256 sums. cargo-deb and cargo-generate-rpm are installed if
/// they are missing. Timestamps are SOURCE_DATE_EPOCH, or the time of the last commit.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask dist                the files of a release
  cargo xtask dist --target aarch64-unknown-linux-gnu      the same for arm64
  cargo xtask dist --verify       the same, built twice in different folders; all bytes must be equal
  cargo xtask dist --test         installs them: the .deb in a new Debian system (debootstrap), the .rpm in an empty folder,
                                  and the crate with `cargo install` from a local registry. Requires root or sudo")]
pub(crate) struct Arguments {
    /// Platform of the binary.
    #[arg(long, value_name = "TRIPLE", default_value = Architecture::HOST.triple(), value_parser = Architecture::from_triple)]
    target: Architecture,

    /// Build again in another folder, and compare.
    #[arg(long)]
    verify: bool,

    /// Install the packages and test them; for this machine's processor only.
    #[arg(long)]
    test: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let architecture = arguments.target;
    ensure!(
        !arguments.test || architecture.is_host(),
        "`--test` installs the packages: it requires a machine with the processor {}",
        architecture.name()
    );
    let repository = Repository::find()?;
    pack::install_tools()?;
    cross::add_compiler(&repository, architecture)?;
    let checkout = Checkout::of(&repository, architecture)?;
    let folder = repository.target.join("packages").join(architecture.name());
    let files = make(&checkout, &folder)?;
    if arguments.verify {
        verify(&checkout, &files)?;
    }
    if arguments.test {
        trial::run(&checkout, &folder, &files)?;
    }
    for file in &files {
        println!("{} ({} bytes)", file.display(), fs::metadata(file)?.len());
    }
    Ok(())
}

/// Returns the paths of the files, which replace those of earlier runs. `folder/root` has the contents of the packages.
fn make(checkout: &Checkout, folder: &Path) -> Result<Vec<PathBuf>> {
    command::empty_folder(folder)?;
    let binary = checkout.build()?;
    let runnable = checkout.runnable(&binary)?;
    let root = stage::stage(checkout, &binary, &runnable, folder)?;
    pack::pack(checkout, &root, folder)
}

/// Builds a copy of the checkout in a folder with a longer name and another `CARGO_HOME`, so that an embedded path shows.
fn verify(checkout: &Checkout, files: &[PathBuf]) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("heapbpf-built-for-the-second-time-").tempdir()?;
    let copy = checkout.copy(folder.path())?;
    let again = make(&copy, &folder.path().join("packages"))?;
    ensure!(again.len() == files.len(), "the second build made other files: {again:?}");
    let mut different = Vec::new();
    for (first, second) in files.iter().zip(&again) {
        ensure!(first.file_name() == second.file_name(), "the second build made other files: {again:?}");
        if read(first)? != read(second)? {
            different.push(first.display().to_string());
        }
    }
    if !different.is_empty() {
        let kept = folder.keep();
        bail!("not reproducible: {}; the second build is in `{}`", different.join(", "), kept.display());
    }
    println!("reproducible: two builds in different folders made the same {} files", files.len());
    Ok(())
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("could not read `{}`", file.display()))
}
