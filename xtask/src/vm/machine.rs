//! A virtual machine: its kernel, from a Debian package or an image, and its file system. Runs it to its end or a time
//! limit, and finds errors of its kernel. Needs no root: apt runs with a state of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use regex::Regex;

use crate::archive::{Archive, Suites};
use crate::command::{self, Repository};
use crate::process::{Output, Program, bound};

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
                let archive = Archive::open(&folder.join("apt"), &SUITES);
                let archive = archive.map_err(|error| {
                    anyhow!("cannot download a kernel: {error:#}; specify an image, `--kernel PATH`")
                })?;
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

/// Suites that have kernels, by the label of their archive.
const SUITES: [Suites<'_>; 2] = [
    ("Debian", &["bullseye", "bookworm", "trixie", "trixie-backports", "sid"]),
    ("Debian-Security", &["bullseye-security", "bookworm-security", "trixie-security"]),
];

const INIT: &str = include_str!("init.sh");
/// The static binary's target: specifying one excludes build scripts and macros, which must be dynamic, from the flags.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Targets: name, source in tests/targets, flags beside [`C_FLAGS`].
const TARGETS: [(&str, &str, &str); 6] = [
    ("exact", "exact.c", "-fomit-frame-pointer"),
    ("framed", "exact.c", "-fno-omit-frame-pointer"),
    ("threads", "threads.c", "-fomit-frame-pointer"),
    ("forks", "forks.c", "-fomit-frame-pointer"),
    ("cases", "leaks/cases.c", "-fomit-frame-pointer"),
    ("forged_python", "forged_python.c", "-rdynamic"),
];

/// Calls stay calls: without `-fno-builtin` the compiler drops a malloc whose block is only freed.
const C_FLAGS: &str = "-O1 -g -fno-optimize-sibling-calls -fno-builtin -pthread";

pub(super) fn initramfs(repository: &Repository, folder: &Path) -> Result<PathBuf> {
    let heapbpf = static_heapbpf(repository)?;
    let root = folder.join("root");
    command::empty_folder(&root)?;
    let bin = root.join("bin");
    copy(&heapbpf, &bin.join("heapbpf"))?;
    copy(&command::find("busybox").context("`busybox` is not in PATH")?, &bin.join("busybox"))?;
    // Debian's busybox does not contain it.
    copy(&command::find("nice").context("`nice` is not in PATH")?, &bin.join("nice"))?;
    for (name, source, flag) in TARGETS {
        let source = repository.root.join("tests/targets").join(source);
        command::compile("gcc", &format!("{C_FLAGS} {flag}"), &source, &bin.join(name))?;
    }
    for entry in fs::read_dir(&bin)? {
        // Fails for static programs.
        let printed = Command::new("ldd").arg(entry?.path()).output().context("could not start `ldd`")?.stdout;
        for library in library_paths(&String::from_utf8_lossy(&printed)) {
            copy(&library, &root.join(library.strip_prefix("/").context("ldd prints absolute paths")?))?;
        }
    }
    if let Some(object) = std::env::var_os("HEAPBPF_BPF_OBJECT").filter(|path| !path.is_empty()) {
        copy(Path::new(&object), &root.join("heapbpf.bpf.o"))?;
    }
    let init = root.join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    let archive = folder.join("initramfs.gz");
    let pack = r#"find . | cpio --quiet --create --format=newc --owner=0:0 | gzip -1 >"$1""#;
    command::run(Command::new("sh").args(["-euc", pack, "sh"]).arg(&archive).current_dir(&root))?;
    Ok(archive)
}

fn static_heapbpf(repository: &Repository) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("HEAPBPF_BIN") {
        return Ok(given.into());
    }
    let mut cargo = repository.cargo();
    cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", "-C target-feature=+crt-static");
    command::run(cargo.args(["build", "--release", "--target", TARGET, "--package", "heapbpf"]))?;
    Ok(repository.target.join(TARGET).join("release/heapbpf"))
}

/// The paths in what `ldd` prints: `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader; none for a static program.
fn library_paths(printed: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let line = line.trim();
        let found = line.split_once(" => ").map_or(line, |(_, found)| found);
        Some(PathBuf::from(found.split_once(" (")?.0)).filter(|path| path.is_absolute())
    };
    printed.lines().filter_map(path).collect()
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("could not make the folder `{}`", folder.display()))?;
    }
    fs::copy(from, to).with_context(|| format!("could not copy `{}` to `{}`", from.display(), to.display()))?;
    Ok(())
}

pub(super) struct Boot {
    pub(super) console: String,
    /// Received from the second serial line.
    pub(super) data: Vec<u8>,
    pub(super) seconds: u64,
    pub(super) end: String,
}

/// Two processors, so that probes hit on both at once.
const MACHINE: [&str; 10] = ["-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "1G", "-nodefaults", "-no-reboot"];

/// A panic ends the machine, and an oops panics.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 panic=-1 oops=panic";

/// Boots the image, and stops the machine after `time_limit`. Stores the content of the serial lines in `results`.
pub(super) fn boot(image: &Path, initramfs: &Path, append: &str, time_limit: Duration, results: &Path) -> Result<Boot> {
    let (console, data) = (results.join("console.txt"), results.join("serial.bin"));
    let mut qemu = bound("qemu-system-x86_64");
    qemu.args(MACHINE).args(["-display", "none"]).stderr(Stdio::inherit());
    qemu.arg("-kernel").arg(image).arg("-initrd").arg(initramfs);
    qemu.args(["-append", format!("{KERNEL_ARGUMENTS} {append}").trim_end()]);
    for line in [&console, &data] {
        qemu.arg("-serial").arg(format!("file:{}", line.display()));
    }
    eprintln!("+ {}", command::line(&qemu));
    let began = Instant::now();
    let mut machine = Program::start(&mut qemu, Output::None)?;
    let end = match machine.wait_for(time_limit)? {
        Some(status) => format!("qemu ended with {status}"),
        None => format!("stopped after {} s", time_limit.as_secs()),
    };
    drop(machine);
    let read = |path: &Path| fs::read(path).with_context(|| format!("qemu left no `{}`", path.display()));
    Ok(Boot {
        console: String::from_utf8_lossy(&read(&console)?).into_owned(),
        data: read(&data)?,
        seconds: began.elapsed().as_secs(),
        end,
    })
}

/// Starts of error messages, after the time: panics, oopses, warnings with a trace, hung tasks, and out of memory.
static ERROR: LazyLock<Regex> = LazyLock::new(|| {
    let starts = "Kernel panic|BUG:|kernel BUG at|Oops:|WARNING:|general protection fault|[Uu]nable to handle|divide error|\
                  invalid opcode|stack segment|INFO: task |Out of memory|UBSAN:";
    Regex::new(&format!("^({starts})")).expect("is valid")
});

pub(super) fn kernel_error(console: &str) -> Option<&str> {
    console.lines().map(message).find(|message| ERROR.is_match(message))
}

/// The line that shows an error of the emulation, not of the kernel: with several threads, qemu 7.2 at times executes
/// a removed breakpoint of the kernel's own code patching. A kernel without any probe has it too, while
/// `/proc/sys/kernel/sched_schedstats` is toggled under load: 7.3 within 500 times. heapbpf's are in user memory.
pub(super) fn emulation_fault(console: &str) -> Option<&str> {
    let oops = kernel_error(console).filter(|line| line.starts_with("Oops: int3"))?;
    // A wild jump lands in padding, which consists of breakpoints. `Code:` has the next byte in brackets.
    let code = console.lines().map(message).find_map(|line| line.strip_prefix("Code: "))?;
    let before = code.split_once(" <")?.0;
    (!before.ends_with("cc")).then_some(oops)
}

pub(super) fn last_line(console: &str) -> &str {
    console.lines().map(message).rfind(|message| !message.is_empty()).unwrap_or("no output")
}

/// A line without the time at its start, `[    1.234567] `, and without the `[    T1] ` that some kernels add.
fn message(line: &str) -> &str {
    static TIMES: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\s*(\[[\d .TC]*\]\s*)*").expect("is valid"));
    line[TIMES.find(line).map_or(0, |times| times.end())..].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(console: &str, expected: Option<&str>) {
        assert_eq!(kernel_error(console), expected);
    }

    #[test]
    fn kernel_errors_are_found() {
        check("fine\n[    1.5] Kernel panic - not syncing: No init\n", Some("Kernel panic - not syncing: No init"));
        check("[   10.25][   T95] BUG: scheduling while atomic\r\n", Some("BUG: scheduling while atomic"));
        check(
            "[    2.0] WARNING: CPU: 1 PID: 9 at kernel/bpf/hashtab.c:1\n",
            Some("WARNING: CPU: 1 PID: 9 at kernel/bpf/hashtab.c:1"),
        );
        check("general protection fault, probably\n", Some("general protection fault, probably"));
    }

    #[test]
    fn stale_breakpoints_are_attributed_to_the_emulation() {
        let oops = "[   10.4] Oops: int3: 0000 [#1] SMP NOPTI\n[   10.4] Code: 44 00 00 0f <1f> 44 00 00\n";
        assert_eq!(emulation_fault(oops), Some("Oops: int3: 0000 [#1] SMP NOPTI"));
        let wild_jump = oops.replace("0f <1f>", "cc <cc>");
        assert_eq!(emulation_fault(&wild_jump), None);
        // The first error is the cause.
        assert_eq!(emulation_fault(&format!("BUG: unable to handle page fault\n{oops}")), None);
        assert_eq!(emulation_fault("fine\n"), None);
    }

    #[test]
    fn similar_lines_are_accepted() {
        check("", None);
        check("[    0.1] RETBleed: WARNING: Spectre v2 mitigation leaves CPU vulnerable\n", None);
        check("[    0.1] Mitigation: no BUG: here\n[no time] Oops: is inside\nsession tables\n", None);
    }

    #[test]
    fn the_last_line_is_not_empty() {
        assert_eq!(last_line("[    1.0] one\n[    2.0] two\r\n\n"), "two");
        assert_eq!(last_line("\n"), "no output");
    }

    fn check_libraries(printed: &str, expected: &[&str]) {
        assert_eq!(library_paths(printed), expected.iter().map(PathBuf::from).collect::<Vec<_>>());
    }

    #[test]
    fn libraries_and_their_loader() {
        check_libraries(
            "\tlinux-vdso.so.1 (0x00007ffc8d5f6000)\n\
             \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1f6f400000)\n\
             \t/lib64/ld-linux-x86-64.so.2 (0x00007f1f6f6f1000)\n",
            &["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"],
        );
        check_libraries("\tnot a dynamic executable\n", &[]);
        check_libraries("\tlibgone.so.1 => not found\n", &[]);
        check_libraries("\tstatically linked\n", &[]);
    }

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

    fn check_newest(series: &str, expected: Option<&str>) {
        assert_eq!(newest(LISTING, series), expected, "{series}");
    }

    #[test]
    fn the_newest_signed_kernel_of_a_series() {
        check_newest("6.1", Some("linux-image-6.1.0-56-cloud-amd64"));
        check_newest("6.12", Some("linux-image-6.12.117+deb12-cloud-amd64"));
        check_newest("6.12.100", None);
        check_newest("7.2", Some("linux-binary-7.2.13+deb14-cloud-amd64"));
        check_newest("5.10", None);
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
