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

use crate::command::{self, Repository};
use build::Checkout;

const X86_64: &str = "x86_64-unknown-linux-gnu";
const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// Makes the files of a release in target/packages.
///
/// Builds a static binary, and packs it with manual pages, shell completions, a systemd unit, licences and a software bill
/// of materials (CycloneDX): as .deb, .rpm and .tar.gz, with SHA-256 sums. cargo-deb and cargo-generate-rpm are installed if
/// they are missing. Timestamps are SOURCE_DATE_EPOCH, or the time of the last commit.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask dist                the files of a release
  cargo xtask dist --verify       the same, built twice in different folders; all bytes must be equal
  cargo xtask dist --test         installs them: the .deb in a new Debian system (debootstrap), the .rpm in an empty folder,
                                  and the crate with `cargo install` from a local registry. Requires root or sudo")]
pub(crate) struct Arguments {
    /// Platform of the binary.
    #[arg(long, value_name = "TRIPLE", default_value = X86_64)]
    target: String,

    /// Build again in another folder, and compare.
    #[arg(long)]
    verify: bool,

    /// Install the packages and test them.
    #[arg(long)]
    test: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    check_target(&arguments.target)?;
    let repository = Repository::find()?;
    pack::install_tools()?;
    let checkout = Checkout::of(&repository)?;
    let folder = repository.target.join("packages");
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

fn check_target(target: &str) -> Result<()> {
    match target {
        X86_64 => Ok(()),
        AARCH64 => bail!(
            "heapbpf does not run on aarch64 yet: registers, instructions and system calls of x86-64 only are known to \
             `linux/arch`, `probe/arch` and `unwind/arch`; packages are built for {X86_64}"
        ),
        other => bail!("unsupported target `{other}`; packages are built for {X86_64}"),
    }
}

/// Returns the paths of the files, which replace those of earlier runs. `folder/root` has the contents of the packages.
fn make(checkout: &Checkout, folder: &Path) -> Result<Vec<PathBuf>> {
    command::empty_folder(folder)?;
    let binary = checkout.build()?;
    let root = stage::stage(checkout, &binary, folder)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_targets_are_refused_by_name() {
        assert!(check_target(X86_64).is_ok());
        let message = |target| check_target(target).expect_err("is unsupported").to_string();
        assert!(message(AARCH64).contains("aarch64"), "{}", message(AARCH64));
        assert!(message("riscv64gc-unknown-linux-gnu").contains("`riscv64gc-unknown-linux-gnu`"));
    }
}
