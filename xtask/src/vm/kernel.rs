//! Gets kernels: out of Debian's packages, or a given image. Installs nothing, and leaves their modules packed.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};

use crate::command;
use crate::privilege::Privilege;

/// A kernel as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The newest of a series (`6.1`) that Debian's archives offer.
    Series(String),
    /// An image.
    Image(PathBuf),
}

/// A kernel that can be booted.
#[derive(Debug)]
pub(super) struct Kernel {
    /// What to call it, and the folder of its results.
    pub(super) name: String,
    /// The compressed image.
    pub(super) image: PathBuf,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_series = text.starts_with(|first: char| first.is_ascii_digit())
            && text.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
        if is_series {
            return Ok(Self::Series(text.to_owned()));
        }
        let path = PathBuf::from(text);
        if path.is_file() {
            Ok(Self::Image(path))
        } else {
            Err("neither a series such as `6.12` nor a file".to_owned())
        }
    }
}

impl Wanted {
    /// The kernel, fetched into `folder` unless it is there.
    pub(super) fn get(&self, folder: &Path) -> Result<Kernel> {
        match self {
            Self::Image(path) => {
                let name = path.file_name().context("a file has a name")?.to_string_lossy().into_owned();
                Ok(Kernel { name, image: path.clone() })
            }
            Self::Series(series) => {
                let package = package(series)?;
                let image = fetch(&package, folder)?;
                Ok(Kernel { name: package.trim_start_matches(PREFIX).to_owned(), image })
            }
        }
    }
}

/// Debian's kernels for virtual machines: the smallest that have BTF, and drivers enough for qemu built in.
const PREFIX: &str = "linux-image-";
const SUFFIX: &str = "-cloud-amd64";

/// The newest package of a series. Asks for new lists when the present ones have none.
fn package(series: &str) -> Result<String> {
    if command::find("apt-get").is_none() {
        bail!("this machine has no apt-get to fetch Linux {series} with: give the path of an image, `--kernel PATH`");
    }
    let pattern = format!("^{PREFIX}{}\\.", series.replace('.', "\\."));
    let search = || command::output(Command::new("apt-cache").args(["search", "--names-only", &pattern]));
    if let Some(package) = newest(&search()?, series) {
        return Ok(package.to_owned());
    }
    let mut update = Privilege::find().command("apt-get").context("no list of packages, and no root to fetch one")?;
    command::run(update.args(["update", "--quiet"]))?;
    let listing = search()?;
    let package = newest(&listing, series).with_context(|| {
        format!("no package `{PREFIX}{series}.…{SUFFIX}`: give the path of an image, `--kernel PATH`")
    })?;
    Ok(package.to_owned())
}

/// Of what `apt-cache search` lists (`NAME - DESCRIPTION` in a line), the newest kernel of the series. Meta packages,
/// debug symbols and unsigned builds are other things.
fn newest<'a>(listing: &'a str, series: &str) -> Option<&'a str> {
    let names = listing.lines().filter_map(|line| line.split_whitespace().next());
    let of_series = |name: &&str| {
        let version = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
        version.and_then(|version| version.strip_prefix(series)).is_some_and(|rest| rest.starts_with('.'))
    };
    names.filter(of_series).max_by(|one, other| by_version(one, other))
}

/// Orders versions by the numbers in them: 6.1.0-9 before 6.1.0-10.
fn by_version(one: &str, other: &str) -> Ordering {
    let numbers = |version: &str| -> Vec<u64> {
        version.split(|letter: char| !letter.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
    };
    numbers(one).cmp(&numbers(other))
}

/// Downloads the package and takes its image out.
fn fetch(package: &str, folder: &Path) -> Result<PathBuf> {
    let unpacked = folder.join(package);
    let version = package.trim_start_matches(PREFIX);
    let image = unpacked.join("boot").join(format!("vmlinuz-{version}"));
    if image.exists() {
        return Ok(image);
    }
    fs::create_dir_all(&unpacked).with_context(|| format!("could not make the folder `{}`", unpacked.display()))?;
    command::run(Command::new("apt-get").args(["download", "--quiet", package]).current_dir(&unpacked))?;
    let deb = fs::read_dir(&unpacked)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("apt-get left no package in `{}`", unpacked.display()))?;
    // The modules, most of the package, stay in it.
    let unpack = r#"dpkg-deb --fsys-tarfile "$1" | tar --extract --directory "$2" ./boot"#;
    command::run(Command::new("sh").args(["-euc", unpack, "sh"]).arg(&deb).arg(&unpacked))?;
    fs::remove_file(&deb)?;
    if !image.exists() {
        bail!("the package `{package}` has no `boot/vmlinuz-{version}`");
    }
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\
linux-image-6.1.0-9-cloud-amd64 - Linux 6.1 for x86-64 cloud (signed)
linux-image-6.1.0-56-cloud-amd64 - Linux 6.1 for x86-64 cloud (signed)
linux-image-6.1.0-56-cloud-amd64-dbg - Debug symbols for linux-image-6.1.0-56-cloud-amd64
linux-image-6.1.0-57-cloud-amd64-unsigned - Linux 6.1 for x86-64 cloud
linux-image-6.1.0-58-amd64 - Linux 6.1 for 64-bit PCs (signed)
linux-image-6.12-cloud-amd64 - Linux for x86-64 cloud (meta-package)
linux-image-6.12.9+deb12-cloud-amd64 - Linux 6.12 for x86-64 cloud (signed)
linux-image-6.12.117+deb12-cloud-amd64 - Linux 6.12 for x86-64 cloud (signed)
linux-image-6.12.100+deb12-cloud-amd64 - Linux 6.12 for x86-64 cloud (signed)
";

    fn check(series: &str, expected: Option<&str>) {
        assert_eq!(newest(LISTING, series), expected, "{series}");
    }

    #[test]
    fn the_newest_signed_kernel_of_a_series() {
        check("6.1", Some("linux-image-6.1.0-56-cloud-amd64"));
        check("6.12", Some("linux-image-6.12.117+deb12-cloud-amd64"));
        check("6.12.100", None);
        check("5.10", None);
        assert_eq!(newest("", "6.1"), None);
    }

    #[test]
    fn a_series_or_a_file() {
        assert_eq!("6.12".parse(), Ok(Wanted::Series("6.12".to_owned())));
        assert_eq!("/bin/sh".parse(), Ok(Wanted::Image("/bin/sh".into())));
        assert!("no-such-image".parse::<Wanted>().is_err());
        assert!("6.12-rc1".parse::<Wanted>().is_err());
    }
}
