//! The file system of a virtual machine: heapbpf, targets, and the programs that `init.sh` uses. Those for another processor
//! than this machine's are cross-compiled, or come from Debian's packages.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use object::elf;
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use object::{Endianness, elf::FileHeader64};

use super::languages;
use crate::architecture::Architecture;
use crate::archive::{self, Archive};
use crate::command::{self, Repository};
use crate::cross::{self, Profile, Toolchain};

const INIT: &str = include_str!("init.sh");

/// Targets: name, C library, source in tests/targets, flags beside [`C_FLAGS`].
const TARGETS: [(&str, Library, &str, &str); 12] = [
    ("exact", Library::Glibc, "exact.c", "-fomit-frame-pointer"),
    ("framed", Library::Glibc, "exact.c", "-fno-omit-frame-pointer"),
    ("static", Library::Glibc, "exact.c", "-static -fomit-frame-pointer"),
    ("threads", Library::Glibc, "threads.c", "-fomit-frame-pointer"),
    ("interrupted_calls", Library::Glibc, "interrupted_calls.c", "-fomit-frame-pointer"),
    ("forks", Library::Glibc, "forks.c", "-fomit-frame-pointer"),
    ("cases", Library::Glibc, "leaks/cases.c", "-fomit-frame-pointer"),
    ("forged_python", Library::Glibc, "forged_python.c", "-rdynamic"),
    ("touching", Library::Glibc, "touching.c", "-fomit-frame-pointer"),
    ("tagged", Library::Glibc, "tagged.c", "-fomit-frame-pointer"),
    ("matrix", Library::Glibc, "matrix.c", "-fomit-frame-pointer"),
    ("musl", Library::Musl, "matrix.c", "-fomit-frame-pointer"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    Glibc,
    Musl,
}

/// Calls stay calls: without `-fno-builtin` the compiler drops a malloc whose block is only freed.
const C_FLAGS: &str = "-O1 -g -fno-optimize-sibling-calls -fno-builtin -pthread";

/// Allocators that `init.sh` preloads, with the version of their interface, and their packages.
const PRELOADED: [(&str, &str); 3] = [
    ("libjemalloc.so.2", "libjemalloc2"),
    ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    ("libmimalloc.so.2.0", "libmimalloc2.0"),
];

/// Further packages of a system for another processor: programs, and libraries of the programs and of allocators.
const PACKAGES: [&str; 7] = ["busybox-static", "coreutils", "libc6", "libgcc-s1", "libstdc++6", "musl", "musl-dev"];

/// Releases of Debian in whose user spaces heapbpf is tested: the name, the version of CPython, and a library's package that has another
/// name in each.
const RELEASES: [(&str, &str, &str); 3] =
    [("bullseye", "3.9", "libffi7"), ("bookworm", "3.11", "libffi8"), ("trixie", "3.13", "libffi8")];
/// Packages of each: the C library, what programs are built with, and libraries of CPython.
const RELEASE_PACKAGES: [&str; 6] = ["libc6", "libc6-dev", "libexpat1", "libgcc-s1", "linux-libc-dev", "zlib1g"];
/// What CPython executes there, the module of it that needs a further library, and the library that ends threads.
const SCRIPT: &str = "frames.py";
const FOREIGN_FUNCTIONS: &str = "_ctypes.";
const THREAD_END: &str = "libgcc_s.so.1";

/// What the comparison with framehop runs: programs, folders of their modules, and packages.
const COMPARED: [&str; 3] = ["python3.11", "perl", "sqlite3"];
const COMPARED_FOLDERS: [&str; 2] = ["usr/lib/python3.11", "usr/lib/aarch64-linux-gnu/perl-base"];
const COMPARED_PACKAGES: [&str; 14] = [
    "libbz2-1.0",
    "libcrypt1",
    "libexpat1",
    "liblzma5",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libreadline8",
    "libsqlite3-0",
    "libtinfo6",
    "perl-base",
    "python3.11-minimal",
    "sqlite3",
    "zlib1g",
    "libffi8",
];

/// What a machine of the architecture boots with. `compares`: also the test that compares stacks with framehop's; `languages`: also
/// Java and JavaScript, and their tests. This machine's integration tests run both here.
pub(super) fn initramfs(
    repository: &Repository,
    architecture: Architecture,
    compares: bool,
    has_languages: bool,
    folder: &Path,
) -> Result<PathBuf> {
    let heapbpf = heapbpf(repository, architecture)?;
    let system = System::find(architecture, compares, folder)?;
    let root = folder.join(format!("root-{}", architecture.name()));
    command::empty_folder(&root)?;
    let bin = root.join("bin");
    copy(&heapbpf, &bin.join("heapbpf"))?;
    // Debian's busybox does not contain `nice`.
    for program in ["busybox", "nice"] {
        copy(&system.program(program)?, &bin.join(program))?;
    }
    for (name, library, source, flags) in TARGETS {
        let source = repository.root.join("tests/targets").join(source);
        let (compiler, specs) = system.compiler(library)?;
        command::compile(&compiler, &format!("{C_FLAGS} {flags}{specs}"), &source, &bin.join(name))?;
    }
    for (name, _) in PRELOADED {
        copy(&system.root.join(system.library(name)?), &root.join("preload").join(name))?;
    }
    for folder in ["bin", "preload"] {
        for entry in fs::read_dir(root.join(folder))? {
            for library in system.libraries(&entry?.path())? {
                copy(&system.root.join(&library), &root.join(&library))?;
            }
        }
    }
    for (release, python, library) in RELEASES {
        let system = System::of(release, python, library, architecture, folder)?;
        let root = root.join("releases").join(release);
        system.add_user_space(repository, &root)?;
        system.add_python(repository, python, &root)?;
    }
    if compares {
        add_comparison(repository, &system, &root)?;
    }
    if has_languages {
        languages::add(repository, architecture, folder, &root)?;
    }
    if let Some(object) = std::env::var_os("HEAPBPF_BPF_OBJECT").filter(|path| !path.is_empty()) {
        copy(Path::new(&object), &root.join("heapbpf.bpf.o"))?;
    }
    let init = root.join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    let archive = folder.join(format!("initramfs-{}.gz", architecture.name()));
    let pack = r#"find . | cpio --quiet --create --format=newc --owner=0:0 | gzip -1 >"$1""#;
    command::run(Command::new("sh").args(["-euc", pack, "sh"]).arg(&archive).current_dir(&root))?;
    Ok(archive)
}

fn add_comparison(repository: &Repository, system: &System, root: &Path) -> Result<()> {
    let test = Toolchain::install(repository, system.architecture)?.build_test(repository, "heapbpf", "unwind")?;
    copy(&test, &root.join("bin/unwind"))?;
    for program in COMPARED {
        let from = system.program(program)?;
        copy(&from, &root.join("bin").join(program))?;
        for library in system.libraries(&from)? {
            copy(&system.root.join(&library), &root.join(&library))?;
        }
    }
    for folder in COMPARED_FOLDERS {
        copy_folder(&system.root.join(folder), &root.join(folder))?;
    }
    symlink("python3.11", root.join("bin/python3")).context("cannot make the link `python3`")
}

fn heapbpf(repository: &Repository, architecture: Architecture) -> Result<PathBuf> {
    match std::env::var_os("HEAPBPF_BIN") {
        Some(given) => Ok(given.into()),
        None => cross::build(repository, architecture, Profile::Release),
    }
}

/// Where programs and libraries for an architecture are.
struct System {
    architecture: Architecture,
    root: PathBuf,
}

impl System {
    /// This machine, or Debian's packages of the same release, unpacked.
    fn find(architecture: Architecture, compares: bool, folder: &Path) -> Result<Self> {
        if architecture.is_host() {
            return Ok(Self { architecture, root: "/".into() });
        }
        let (root, state) = (format!("system-{}", architecture.debian()), format!("apt-{}", architecture.debian()));
        let system = Self { architecture, root: folder.join(root) };
        let compared = COMPARED_PACKAGES.into_iter().filter(|_| compares);
        let packages: Vec<_> =
            PACKAGES.into_iter().chain(PRELOADED.map(|(_, package)| package)).chain(compared).collect();
        Archive::open(&folder.join(state), architecture, &[("Debian", &[&archive::release()?])])?
            .unpack(&packages, &system.root)?;
        Ok(system)
    }

    /// A release of Debian, unpacked.
    fn of(release: &str, python: &str, library: &str, architecture: Architecture, folder: &Path) -> Result<Self> {
        let [root, state] =
            ["system", "apt"].map(|kind| folder.join(format!("{kind}-{release}-{}", architecture.debian())));
        let pythons = ["python{}-minimal", "libpython{}-minimal", "libpython{}-stdlib"];
        let pythons = pythons.map(|name| name.replace("{}", python));
        let packages: Vec<_> =
            RELEASE_PACKAGES.into_iter().chain([library]).chain(pythons.iter().map(String::as_str)).collect();
        Archive::open(&state, architecture, &[("Debian", &[release])])?.unpack(&packages, &root)?;
        let multiarch = architecture.multiarch();
        for link in [format!("usr/lib/{multiarch}/libpthread.so"), "usr/lib64/ld-linux-x86-64.so.2".to_owned()] {
            lead_inside(&root, Path::new(&link))?;
        }
        Ok(Self { architecture, root })
    }

    /// Adds a program that calls every function of this system's C library, and its libraries.
    fn add_user_space(&self, repository: &Repository, root: &Path) -> Result<()> {
        let (name, _, source, flags) = TARGETS[0];
        let program = root.join("bin").join(name);
        fs::create_dir_all(root.join("bin"))?;
        let source = repository.root.join("tests/targets").join(source);
        let flags = format!("{C_FLAGS} {flags} {}", self.flags());
        command::compile(&self.architecture.compiler(), &flags, &source, &program)?;
        for library in self.libraries(&program)? {
            copy(&self.root.join(&library), &root.join(&library))?;
        }
        Ok(())
    }

    /// Adds this system's CPython with its modules, and a script for it.
    fn add_python(&self, repository: &Repository, version: &str, root: &Path) -> Result<()> {
        let program = self.root.join("usr/bin").join(format!("python{version}"));
        copy(&program, &root.join("bin").join(format!("python{version}")))?;
        copy(&repository.root.join("tests/targets").join(SCRIPT), &root.join("bin").join(SCRIPT))?;
        let modules = format!("usr/lib/python{version}");
        copy_folder(&self.root.join(&modules), &root.join(&modules))?;
        let compiled = self.root.join(&modules).join("lib-dynload");
        let entries = fs::read_dir(&compiled).with_context(|| format!("cannot read `{}`", compiled.display()))?;
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        let is_needed = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(FOREIGN_FUNCTIONS);
        let library = self.library(THREAD_END)?;
        copy(&self.root.join(&library), &root.join(&library))?;
        let users = entries.iter().filter(|entry| is_needed(entry)).map(fs::DirEntry::path).chain([program]);
        for user in users {
            for library in self.libraries(&user)? {
                copy(&self.root.join(&library), &root.join(&library))?;
            }
        }
        Ok(())
    }

    /// For a compiler of another system to use the headers and libraries of this one, before those that it has for its own.
    fn flags(&self) -> String {
        let (root, multiarch) = (self.root.display(), self.architecture.multiarch());
        format!(
            "--sysroot={root} -isystem {root}/usr/include/{multiarch} -isystem {root}/usr/include \
             -B{root}/usr/lib/{multiarch} -L{root}/usr/lib/{multiarch}"
        )
    }

    /// The compiler's name, and flags for it.
    fn compiler(&self, library: Library) -> Result<(String, String)> {
        match library {
            Library::Glibc => Ok((self.architecture.compiler(), String::new())),
            Library::Musl if self.architecture.is_host() => Ok(("musl-gcc".to_owned(), String::new())),
            Library::Musl => {
                let folder = format!("usr/lib/{}-linux-musl", self.architecture.name());
                let given = self.root.join(&folder).join("musl-gcc.specs");
                let text = fs::read_to_string(&given).with_context(|| format!("cannot read `{}`", given.display()))?;
                let specs = self.root.join("musl-gcc.specs");
                fs::write(&specs, relocated(&text, self.architecture, &self.root))
                    .with_context(|| format!("cannot write `{}`", specs.display()))?;
                // libgcc chooses atomic instructions by a function that only glibc has.
                let flags = if self.architecture == Architecture::Aarch64 { " -mno-outline-atomics" } else { "" };
                Ok((self.architecture.compiler(), format!("{flags} -specs={}", specs.display())))
            }
        }
    }

    fn program(&self, name: &str) -> Result<PathBuf> {
        if self.architecture.is_host() {
            return command::find(name).with_context(|| format!("`{name}` is not in PATH"));
        }
        let folders = ["bin", "usr/bin"].map(|folder| self.root.join(folder).join(name));
        let found = folders.into_iter().find(|path| path.is_file());
        found.with_context(|| format!("`{}` has no `{name}`", self.root.display()))
    }

    /// The loader and the libraries that a program needs, relative to the root. None for a static program.
    fn libraries(&self, program: &Path) -> Result<BTreeSet<PathBuf>> {
        let mut found = BTreeSet::new();
        let mut unread = vec![program.to_owned()];
        while let Some(path) = unread.pop() {
            let content = fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
            let needs = Needs::of(&content, self.architecture);
            let needs = needs.with_context(|| format!("cannot read what `{}` needs", path.display()))?;
            let loader = needs.loader.iter().map(|path| self.loader(path));
            for library in loader.chain(needs.libraries.iter().map(|name| self.library(name))) {
                let library = library.with_context(|| format!("`{}` cannot be started", program.display()))?;
                unread.push(self.root.join(&library));
                if !found.insert(library) {
                    unread.pop();
                }
            }
        }
        Ok(found)
    }

    fn loader(&self, path: &str) -> Result<PathBuf> {
        let path = Path::new(path.trim_start_matches('/'));
        ensure!(self.root.join(path).is_file(), "`{}` has no `{}`", self.root.display(), path.display());
        Ok(path.to_owned())
    }

    /// In the folders that the loader searches.
    fn library(&self, name: &str) -> Result<PathBuf> {
        let multiarch = self.architecture.multiarch();
        let folders = [format!("lib/{multiarch}"), format!("usr/lib/{multiarch}")].into_iter();
        let folders = folders.chain(["lib64", "usr/lib64", "lib", "usr/lib"].map(String::from));
        let mut paths = folders.map(|folder| Path::new(&folder).join(name));
        let found = paths.find(|path| self.root.join(path).is_file());
        found.with_context(|| format!("`{}` has no `{name}`", self.root.display()))
    }
}

/// Before Debian 12, some links have absolute paths. Lets one lead into the root.
fn lead_inside(root: &Path, link: &Path) -> Result<()> {
    let link = root.join(link);
    let Ok(target) = fs::read_link(&link) else { return Ok(()) };
    let Ok(relative) = target.strip_prefix("/") else { return Ok(()) };
    if target.starts_with(root) {
        return Ok(());
    }
    fs::remove_file(&link)?;
    symlink(root.join(relative), &link).with_context(|| format!("cannot make the link `{}`", link.display()))
}

/// Specifications for gcc with the folders of musl below another root.
fn relocated(specs: &str, architecture: Architecture, root: &Path) -> String {
    let moved = |text: String, folder: &str| {
        let folder = format!("{folder}/{}-linux-musl", architecture.name());
        text.replace(&folder, &format!("{}{folder}", root.display()))
    };
    ["/usr/lib", "/usr/include"].into_iter().fold(specs.to_owned(), moved)
}

/// What the kernel and the loader add to a program.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    loader: Option<String>,
    libraries: Vec<String>,
}

impl Needs {
    fn of(content: &[u8], architecture: Architecture) -> Result<Self> {
        let header = FileHeader64::<Endianness>::parse(content)?;
        let endian = header.endian()?;
        ensure!(header.e_machine(endian) == architecture.machine(), "not a program for {}", architecture.name());
        let mut needs = Self::default();
        for segment in header.program_headers(endian, content)? {
            if let Some(path) = segment.interpreter(endian, content)? {
                needs.loader = Some(String::from_utf8(path.to_vec())?);
            }
        }
        let sections = header.sections(endian, content)?;
        if let Some((entries, names)) = sections.dynamic(endian, content)? {
            let names = sections.strings(endian, content, names)?;
            for entry in entries.iter().filter(|entry| entry.tag(endian) == elf::DT_NEEDED) {
                needs.libraries.push(String::from_utf8(entry.string(endian, names)?.to_vec())?);
            }
        }
        // musl is its own loader.
        if needs.loader.as_deref().is_some_and(|path| path.contains("/ld-musl-")) {
            needs.libraries.retain(|name| name != "libc.so");
        }
        Ok(needs)
    }
}

pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("could not make the folder `{}`", folder.display()))?;
    }
    fs::copy(from, to).with_context(|| format!("could not copy `{}` to `{}`", from.display(), to.display()))?;
    Ok(())
}

pub(super) fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("could not make the folder `{}`", to.display()))?;
    command::run(Command::new("cp").arg("--archive").arg(from.join(".")).arg(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_this_machine_need_its_libraries() {
        let system = System { architecture: Architecture::HOST, root: "/".into() };
        let needed = system.libraries(&std::env::current_exe().expect("a test has a path")).expect("it was started");
        let names: Vec<_> = needed.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        assert!(names.contains(&"libc.so.6"), "{names:?}");
        assert!(names.iter().any(|name| name.starts_with("ld-linux")), "{names:?}");
        assert!(needed.iter().all(|path| path.is_relative()), "{needed:?}");
    }

    #[test]
    fn musl_is_found_below_another_root() {
        let given = "*link_libgcc:\n-L/usr/lib/aarch64-linux-musl -L .%s\n\n*link:\n\
                     -dynamic-linker /lib/ld-musl-aarch64.so.1 -isystem /usr/include/aarch64-linux-musl\n";
        assert_eq!(
            relocated(given, Architecture::Aarch64, Path::new("/r")),
            "*link_libgcc:\n-L/r/usr/lib/aarch64-linux-musl -L .%s\n\n*link:\n\
             -dynamic-linker /lib/ld-musl-aarch64.so.1 -isystem /r/usr/include/aarch64-linux-musl\n"
        );
    }

    #[test]
    fn absolute_links_lead_into_the_root() {
        let folder = tempfile::tempdir().expect("can be made");
        let root = folder.path();
        fs::write(root.join("here"), "inside").expect("can be written");
        symlink("/here", root.join("absolute")).expect("can be made");
        symlink("here", root.join("relative")).expect("can be made");
        for link in ["absolute", "absolute", "relative", "missing"] {
            lead_inside(root, Path::new(link)).expect("can be changed");
        }
        assert_eq!(fs::read_to_string(root.join("absolute")).expect("leads to it"), "inside");
        assert_eq!(fs::read_link(root.join("relative")).expect("is a link"), Path::new("here"));
    }

    #[test]
    fn programs_for_another_processor_are_refused() {
        let content = fs::read("/proc/self/exe").expect("is readable");
        assert!(Needs::of(&content, Architecture::HOST).is_ok());
        let other = if Architecture::X86_64.is_host() { Architecture::Aarch64 } else { Architecture::X86_64 };
        let error = Needs::of(&content, other).expect_err("is for this processor");
        assert_eq!(error.to_string(), format!("not a program for {}", other.name()));
        assert!(Needs::of(b"#!/bin/sh\n", Architecture::HOST).is_err());
    }
}
