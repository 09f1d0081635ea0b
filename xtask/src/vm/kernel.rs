//! Kernels: the newest of a series, from Debian's packages, or an image. Needs no root: apt runs with a state of its own.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow};

use crate::architecture::Architecture;
use crate::archive::{Archive, Suites};
use crate::command;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The newest of a series (`6.1`, or `7` for any 7.x) in any Debian suite. With `-16k`, one with pages of that size, which only
    /// arm64 has.
    Series(String),
    Image(PathBuf),
}

#[derive(Debug)]
pub(super) struct Kernel {
    /// Also the name of the folder of its results.
    pub(super) name: String,
    pub(super) image: PathBuf,
    /// The package, or the name of the image.
    pub(super) source: String,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_series = text.starts_with(|first: char| first.is_ascii_digit())
            && with_pages(text).0.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
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
    pub(super) fn get(&self, architecture: Architecture, folder: &Path) -> Result<Kernel> {
        match self {
            Self::Image(path) => {
                let name = path.file_name().context("a file has a name")?.to_string_lossy().into_owned();
                Ok(Kernel { source: name.clone(), name, image: path.clone() })
            }
            Self::Series(series) => {
                let state = folder.join(format!("apt-{}", architecture.debian()));
                let archive = Archive::open(&state, architecture, &SUITES);
                let archive = archive.map_err(|error| {
                    anyhow!("cannot download a kernel: {error:#}; specify an image, `--kernel PATH`")
                })?;
                let (package, image) = newest_of(series, architecture, &archive, folder)?;
                let name = version_of(&package, architecture)
                    .map_or(package.clone(), |(version, pages)| format!("{version}{pages}"));
                Ok(Kernel { name, image, source: package })
            }
        }
    }
}

/// Debian's kernels for virtual machines: the smallest that have BTF, and drivers enough for qemu built in. Since 6.19 the
/// image is in the second package, and the first one only depends on it.
const PREFIXES: [&str; 2] = ["linux-image-", "linux-binary-"];

/// The newest kernel of a series that can be downloaded: its package and its image. Downloads new lists when the existing
/// ones have none. The lists of archived suites have packages that the mirrors no longer have.
fn newest_of(series: &str, architecture: Architecture, archive: &Archive, folder: &Path) -> Result<(String, PathBuf)> {
    let (series, pages) = with_pages(series);
    let pattern = format!("^linux-(image|binary)-{}\\.", series.replace('.', "\\."));
    let find = || command::output(archive.apt("apt-cache").args(["search", "--names-only", &pattern]));
    let mut listing = find()?;
    if newest_first(&listing, series, pages, architecture).is_empty() {
        command::run(archive.apt("apt-get").args(["update", "--quiet"]))?;
        listing = find()?;
    }
    let mut refused = None;
    for package in newest_first(&listing, series, pages, architecture) {
        match fetch(package, archive, folder) {
            Ok(image) => return Ok((package.to_owned(), image)),
            Err(error) => {
                eprintln!("{error:#}; trying the next older kernel of the series");
                refused.get_or_insert(error);
            }
        }
    }
    Err(refused.unwrap_or_else(|| {
        anyhow!(
            "no Debian suite has a Linux {series}{pages} for cloud machines on {}: specify an image, `--kernel PATH`",
            architecture.debian()
        )
    }))
}

/// Suffix of kernels with pages of 16 KiB. Debian has none of them for cloud machines.
pub(super) const PAGES_16K: &str = "-16k";

/// A series or package, and what follows it if its pages are not the smallest.
pub(super) fn with_pages(name: &str) -> (&str, &str) {
    let length = name.strip_suffix(PAGES_16K).map_or(name.len(), str::len);
    name.split_at(length)
}

/// Its version, and its pages.
fn version_of(package: &str, architecture: Architecture) -> Option<(&str, &str)> {
    let (rest, pages) = with_pages(package);
    let flavour = if pages.is_empty() { "-cloud-" } else { "-" };
    let rest = rest.strip_suffix(architecture.debian())?.strip_suffix(flavour)?;
    Some((PREFIXES.iter().find_map(|prefix| rest.strip_prefix(prefix))?, pages))
}

/// Of what `apt-cache search` lists (`NAME - DESCRIPTION` in a line), the kernels of the series. Meta packages, debug symbols and
/// unsigned builds are excluded.
fn newest_first<'a>(listing: &'a str, series: &str, wanted: &str, architecture: Architecture) -> Vec<&'a str> {
    let names = listing.lines().filter_map(|line| line.split_whitespace().next());
    let of_architecture = names.filter_map(|name| Some((version_of(name, architecture)?, name)));
    let of_series =
        of_architecture.filter(|((_, pages), _)| *pages == wanted).map(|((version, _), name)| (version, name));
    let is_of_series = |version: &str| version.strip_prefix(series).is_some_and(|rest| rest.starts_with('.'));
    let mut of_series: Vec<_> = of_series.filter(|(version, _)| is_of_series(version)).collect();
    // 6.1.0-9 is older than 6.1.0-10.
    let numbers = |version: &str| -> Vec<u64> {
        version.split(|letter: char| !letter.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
    };
    of_series.sort_by_cached_key(|(version, name)| Reverse((numbers(version), name.starts_with(PREFIXES[1]))));
    of_series.into_iter().map(|(_, name)| name).collect()
}

fn fetch(package: &str, archive: &Archive, folder: &Path) -> Result<PathBuf> {
    let unpacked = folder.join(package);
    let image = unpacked.join("vmlinuz");
    if image.exists() {
        return Ok(image);
    }
    fs::create_dir_all(&unpacked).with_context(|| format!("cannot create the folder `{}`", unpacked.display()))?;
    command::run(archive.apt("apt-get").args(["download", "--quiet", package]).current_dir(&unpacked))?;
    let deb = fs::read_dir(&unpacked)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("apt-get left no package in `{}`", unpacked.display()))?;
    // `/boot/vmlinuz-VERSION`, or since 7.1 `/usr/lib/modules/VERSION/vmlinuz`. The modules stay packed.
    let unpack = r#"dpkg-deb --fsys-tarfile "$1" | tar --extract --wildcards --to-stdout '*/vmlinuz*' >"$2.part" && mv "$2.part" "$2""#;
    command::run(Command::new("sh").args(["-euc", unpack, "sh"]).arg(&deb).arg(&image))?;
    fs::remove_file(&deb)?;
    Ok(image)
}

/// Suites that have kernels, by the label of their archive.
const SUITES: [Suites<'_>; 2] = [
    ("Debian", &["bullseye", "bookworm", "trixie", "trixie-backports", "sid"]),
    ("Debian-Security", &["bullseye-security", "bookworm-security", "trixie-security"]),
];

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
linux-image-7.2.9+deb13-cloud-amd64 - Linux 7.2.9 for x86-64 cloud
linux-binary-7.2.9+deb13-cloud-amd64 - Linux 7.2.9 for x86-64 cloud (kernel image)
linux-binary-7.2.13+deb14-cloud-amd64 - Linux 7.2.13 for x86-64 cloud (kernel image)
linux-image-7.2.13+deb14-cloud-amd64 - Linux 7.2.13 for x86-64 cloud
";

    fn check_newest(series: &str, expected: &[&str]) {
        assert_eq!(newest_first(LISTING, series, "", Architecture::X86_64), expected, "{series}");
        let (listing, expected) = (of_arm(LISTING), expected.iter().map(|name| of_arm(name)).collect::<Vec<_>>());
        assert_eq!(newest_first(&listing, series, "", Architecture::Aarch64), expected, "{series}");
    }

    fn of_arm(text: &str) -> String {
        text.replace("amd64", "arm64")
    }

    #[test]
    fn signed_kernels_of_a_series_from_the_newest_on() {
        check_newest("6.1", &["linux-image-6.1.0-56-cloud-amd64", "linux-image-6.1.0-9-cloud-amd64"]);
        let versions = ["117", "100", "9"].map(|patch| format!("linux-image-6.12.{patch}+deb12-cloud-amd64"));
        check_newest("6.12", &versions.each_ref().map(String::as_str));
        check_newest("6.12.100", &[]);
        let versions = ["13+deb14", "9+deb13"];
        let packages = versions.map(|version| PREFIXES.map(|prefix| format!("{prefix}7.2.{version}-cloud-amd64")));
        check_newest("7.2", &[&*packages[0][1], &packages[0][0], &packages[1][1], &packages[1][0]]);
        check_newest("5.10", &[]);
        assert!(newest_first("", "6.1", "", Architecture::X86_64).is_empty());
        assert!(newest_first(LISTING, "6.1", "", Architecture::Aarch64).is_empty(), "they are for another processor");
    }

    #[test]
    fn kernels_with_large_pages_are_chosen_by_their_suffix() {
        let listing = "linux-image-6.12.9+deb13-arm64-16k - Linux\nlinux-image-6.12.10+deb13-arm64 - Linux\n\
                       linux-image-6.12.11+deb13-cloud-arm64 - Linux\nlinux-image-6.12.8+deb13-arm64-16k-dbg - symbols\n";
        assert_eq!(with_pages("6.12-16k"), ("6.12", "-16k"));
        assert_eq!(
            newest_first(listing, "6.12", "-16k", Architecture::Aarch64),
            ["linux-image-6.12.9+deb13-arm64-16k"]
        );
        assert_eq!(newest_first(listing, "6.12", "", Architecture::Aarch64), ["linux-image-6.12.11+deb13-cloud-arm64"]);
        assert_eq!("6.12-16k".parse(), Ok(Wanted::Series("6.12-16k".to_owned())));
    }

    #[test]
    fn a_series_or_a_file() {
        assert_eq!("6.12".parse(), Ok(Wanted::Series("6.12".to_owned())));
        assert_eq!("/bin/sh".parse(), Ok(Wanted::Image("/bin/sh".into())));
        assert!("no-such-image".parse::<Wanted>().is_err());
        assert!("6.12-rc1".parse::<Wanted>().is_err());
    }
}
