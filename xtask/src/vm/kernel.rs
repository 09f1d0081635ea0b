//! Fetches kernels: Debian packages of all suites, or a given image. Needs no root: apt runs with a state of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};

use crate::command;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The newest of a series (`6.1`) in any Debian suite.
    Series(String),
    Image(PathBuf),
}

#[derive(Debug)]
pub(super) struct Kernel {
    /// Also the name of the folder of its results.
    pub(super) name: String,
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
    pub(super) fn get(&self, folder: &Path) -> Result<Kernel> {
        match self {
            Self::Image(path) => {
                let name = path.file_name().context("a file has a name")?.to_string_lossy().into_owned();
                Ok(Kernel { name, image: path.clone() })
            }
            Self::Series(series) => {
                let archive = Archive::open(&folder.join("apt"))?;
                let package = package(series, &archive)?;
                let image = fetch(&package, &archive, folder)?;
                Ok(Kernel { name: version_of(&package).unwrap_or(&package).to_owned(), image })
            }
        }
    }
}

/// Debian's kernels for virtual machines: the smallest that have BTF, and drivers enough for qemu built in. Since 6.19 the
/// image is in the second package, and the first one only depends on it.
const PREFIXES: [&str; 2] = ["linux-image-", "linux-binary-"];
const SUFFIX: &str = "-cloud-amd64";

/// The newest package of a series. Downloads new lists when the existing ones have none.
fn package(series: &str, archive: &Archive) -> Result<String> {
    let pattern = format!("^linux-(image|binary)-{}\\.", series.replace('.', "\\."));
    let find = || -> Result<Option<String>> {
        let listing = command::output(archive.apt("apt-cache").args(["search", "--names-only", &pattern]))?;
        Ok(newest(&listing, series).map(str::to_owned))
    };
    if let Some(package) = find()? {
        return Ok(package);
    }
    command::run(archive.apt("apt-get").args(["update", "--quiet"]))?;
    find()?.with_context(|| {
        format!("no Debian suite has a Linux {series} for cloud machines: specify an image, `--kernel PATH`")
    })
}

fn version_of(package: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| package.strip_prefix(prefix)?.strip_suffix(SUFFIX))
}

/// Of what `apt-cache search` lists (`NAME - DESCRIPTION` in a line), the newest kernel of the series. Meta packages,
/// debug symbols and unsigned builds are excluded.
fn newest<'a>(listing: &'a str, series: &str) -> Option<&'a str> {
    let names = listing.lines().filter_map(|line| line.split_whitespace().next());
    let of_series = names.filter_map(|name| Some((version_of(name)?, name)));
    let of_series =
        of_series.filter(|(version, _)| version.strip_prefix(series).is_some_and(|rest| rest.starts_with('.')));
    // 6.1.0-9 is older than 6.1.0-10.
    let numbers = |version: &str| -> Vec<u64> {
        version.split(|letter: char| !letter.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
    };
    let newest = of_series.max_by_key(|(version, name)| (numbers(version), name.starts_with(PREFIXES[1])));
    newest.map(|(_, name)| name)
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

/// Suites that have kernels, by the label of their archive. The mirrors are those of this machine.
const SUITES: [(&str, &[&str]); 2] = [
    ("Debian", &["bullseye", "bookworm", "trixie", "trixie-backports", "sid"]),
    ("Debian-Security", &["bullseye-security", "bookworm-security", "trixie-security"]),
];

#[derive(Debug)]
struct Archive {
    configuration: PathBuf,
}

impl Archive {
    fn open(folder: &Path) -> Result<Self> {
        if command::find("apt-get").is_none() {
            bail!("this machine has no apt-get to fetch a kernel with: specify an image, `--kernel PATH`");
        }
        let mirrors = command::output(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(LABEL) $(REPO_URI)",
            "Created-By: Packages",
        ]))?;
        let sources = sources(&mirrors);
        if sources.is_empty() {
            bail!("this machine's apt has no Debian mirror to fetch a kernel from: specify an image, `--kernel PATH`");
        }
        for part in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part)).with_context(|| format!("cannot create `{}`", folder.display()))?;
        }
        let write = |name: &str, content: String| -> Result<PathBuf> {
            let path = folder.join(name);
            fs::write(&path, content).with_context(|| format!("cannot write `{}`", path.display()))?;
            Ok(path)
        };
        let list = write("sources.list", sources)?;
        let status = write("status", String::new())?;
        let configuration = write(
            "apt.conf",
            format!(
                "Dir::State {:?};\nDir::State::status {status:?};\nDir::Cache {:?};\nDir::Etc::sourcelist {list:?};\n\
                 Dir::Etc::sourceparts \"/dev/null\";\nAPT::Architectures \"amd64\";\n",
                folder.join("state"),
                folder.join("cache"),
            ),
        )?;
        Ok(Self { configuration })
    }

    fn apt(&self, program: &str) -> Command {
        let mut apt = Command::new(program);
        apt.env("APT_CONFIG", &self.configuration);
        apt
    }
}

/// Lines for `sources.list(5)` of all suites, from `LABEL URI` lines of the machine's sources.
fn sources(mirrors: &str) -> String {
    let mut lines = String::new();
    for (label, suites) in SUITES {
        let uri = mirrors.lines().filter_map(|line| line.split_once(' ')).find(|(its, _)| *its == label);
        let Some((_, uri)) = uri else { continue };
        for suite in suites {
            lines.push_str(&format!("deb {uri} {suite} main\n"));
        }
    }
    lines
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
linux-image-7.2.9+deb13-cloud-amd64 - Linux 7.2.9 for x86-64 cloud
linux-binary-7.2.9+deb13-cloud-amd64 - Linux 7.2.9 for x86-64 cloud (kernel image)
linux-binary-7.2.13+deb14-cloud-amd64 - Linux 7.2.13 for x86-64 cloud (kernel image)
linux-image-7.2.13+deb14-cloud-amd64 - Linux 7.2.13 for x86-64 cloud
";

    fn check(series: &str, expected: Option<&str>) {
        assert_eq!(newest(LISTING, series), expected, "{series}");
    }

    #[test]
    fn the_newest_signed_kernel_of_a_series() {
        check("6.1", Some("linux-image-6.1.0-56-cloud-amd64"));
        check("6.12", Some("linux-image-6.12.117+deb12-cloud-amd64"));
        check("6.12.100", None);
        check("7.2", Some("linux-binary-7.2.13+deb14-cloud-amd64"));
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

    #[test]
    fn every_suite_comes_from_the_machines_mirrors() {
        let lines = sources("Node m://node/\nDebian m://one/debian/\nDebian m://two/\nDebian-Security m://three/\n");
        assert!(lines.starts_with("deb m://one/debian/ bullseye main\n"), "{lines}");
        assert!(lines.contains("deb m://one/debian/ sid main\n"), "{lines}");
        assert!(lines.ends_with("deb m://three/ trixie-security main\n"), "{lines}");
        assert_eq!(sources("Node m://node/\n"), "");
    }
}
