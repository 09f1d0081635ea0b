//! Debian packages that building the BPF object, tests and benches need, and their installation: as root or through sudo.

use std::path::Path;

use anyhow::{Result, bail};

use crate::command::{self, Privilege};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Package {
    /// Its name in Debian 12.
    pub(crate) name: &'static str,
    pub(crate) proof: Proof,
    pub(crate) purpose: &'static str,
}

/// Evidence that a package, or a substitute from elsewhere, is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// A program in `PATH`.
    Program(&'static str),
    /// A file.
    File(&'static str),
}

impl Proof {
    pub(crate) fn present(self) -> bool {
        match self {
            Self::Program(name) => command::find(name).is_some(),
            Self::File(path) => Path::new(path).exists(),
        }
    }

    pub(crate) const fn subject(self) -> &'static str {
        match self {
            Self::Program(subject) | Self::File(subject) => subject,
        }
    }
}

const fn package(name: &'static str, proof: Proof, purpose: &'static str) -> Package {
    Package { name, proof, purpose }
}

/// A compiler for the BPF target.
pub(crate) const RUST: &[Package] = &[
    package("rustc-web", Proof::File("/usr/bin/rustc"), "compiles the kernel side"),
    package("cargo-web", Proof::File("/usr/bin/cargo"), "builds the kernel side"),
    package(
        "rust-web-src",
        Proof::File("/usr/lib/rustlib/src/rust/library/Cargo.lock"),
        "the source of `core`, which no distribution has compiled for BPF",
    ),
];

/// For building bpf-linker.
pub(crate) const LLVM: &[Package] =
    &[package("llvm-22-dev", Proof::File("/usr/lib/llvm-22/include/llvm-c/Core.h"), "LLVM, for bpf-linker")];

/// Compilers for test targets, and real programs to profile.
pub(crate) const TESTS: &[Package] = &[
    package("gcc", Proof::Program("gcc"), "compiles targets in C"),
    package("libc6-dev", Proof::File("/usr/include/stdlib.h"), "headers of the targets in C"),
    package("g++", Proof::Program("g++"), "compiles targets in C++"),
    package("binutils", Proof::Program("objdump"), "a second opinion on instructions"),
    package("libjemalloc2", Proof::File("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"), "an allocator to profile"),
    package(
        "libtcmalloc-minimal4",
        Proof::File("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
        "an allocator to profile",
    ),
    package("libmimalloc2.0", Proof::File("/usr/lib/x86_64-linux-gnu/libmimalloc.so.2.0"), "an allocator to profile"),
    package("libjemalloc-dev", Proof::File("/usr/lib/x86_64-linux-gnu/libjemalloc.a"), "links targets with jemalloc"),
    package(
        "libgoogle-perftools-dev",
        Proof::File("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.a"),
        "links targets with tcmalloc",
    ),
    package("libmimalloc-dev", Proof::File("/usr/include/mimalloc.h"), "links targets with mimalloc"),
    package("musl-tools", Proof::Program("musl-gcc"), "a C library to profile"),
    package("musl-dev", Proof::File("/usr/lib/x86_64-linux-musl/libc.a"), "links targets with musl"),
    package("redis-server", Proof::Program("redis-server"), "a real target, with jemalloc"),
    package("redis-tools", Proof::Program("redis-benchmark"), "puts load on redis"),
    package("python3", Proof::Program("python3"), "a real target: an interpreter"),
    package("perl", Proof::Program("perl"), "a real target: an interpreter"),
    package("sqlite3", Proof::Program("sqlite3"), "a real target: a database"),
    package("git", Proof::Program("git"), "a real target: a repository's history"),
    package("postgresql", Proof::File("/usr/lib/postgresql"), "a real target: a server that forks, and pgbench"),
    package("nginx-light", Proof::File("/usr/sbin/nginx"), "a real target: a server with pools"),
    package("valgrind", Proof::Program("valgrind"), "a second opinion on leaks"),
    package("strace", Proof::Program("strace"), "shows which files are opened"),
];

/// Programs that read what heapbpf writes.
pub(crate) const VIEWERS: &[Package] = &[
    package("chromium", Proof::Program("chromium"), "opens what is drawn by scripts"),
    package("golang-go", Proof::Program("go"), "reads profiles with `go tool pprof`"),
    package(
        "golang-1.19-src",
        Proof::File("/usr/share/go-1.19/src/cmd/trace/static/trace_viewer_full.html"),
        "brings catapult, which reads Chrome's traces",
    ),
    package("google-perftools", Proof::Program("google-pprof"), "reads gperftools' heap profiles"),
    package("graphviz", Proof::Program("dot"), "draws the graphs of `go tool pprof`"),
    package("heaptrack", Proof::Program("heaptrack_print"), "reads heaptrack's data"),
    package("python3-venv", Proof::File("/usr/lib/python3.11/ensurepip"), "makes room for readers from PyPI"),
    package("valgrind", Proof::File("/usr/libexec/valgrind/dh_view.html"), "reads DHAT's and massif's files"),
];

/// Programs that `cargo xtask bench unwind` records, and load generators.
pub(crate) const BENCH_UNWIND: &[Package] = &[
    package("gcc", Proof::Program("gcc"), "compiles a target, and is one"),
    package("libc6-dev", Proof::File("/usr/include/stdlib.h"), "headers of the target in C"),
    package("redis-server", Proof::Program("redis-server"), "a server, with jemalloc"),
    package("redis-tools", Proof::Program("redis-benchmark"), "puts load on redis"),
    package("nginx-light", Proof::File("/usr/sbin/nginx"), "a server"),
    package("wrk", Proof::Program("wrk"), "puts load on nginx"),
    package("postgresql", Proof::File("/usr/lib/postgresql"), "a server that forks, and pgbench"),
    package("python3", Proof::Program("python3"), "an interpreter"),
    package("git", Proof::Program("git"), "reads a history"),
    package("sqlite3", Proof::Program("sqlite3"), "a database in one process"),
    package("ffmpeg", Proof::Program("ffmpeg"), "a program of two hundred modules"),
];

/// For virtual machines.
pub(crate) const VM: &[Package] = &[
    package("qemu-system-x86", Proof::Program("qemu-system-x86_64"), "emulates a machine"),
    package("busybox-static", Proof::Program("busybox"), "the virtual machine's programs"),
    package("cpio", Proof::Program("cpio"), "packs the virtual machine's files"),
    package("gcc", Proof::Program("gcc"), "compiles targets in C"),
    package("libc6-dev", Proof::File("/usr/include/stdlib.h"), "headers of the targets in C"),
];

/// For compiling libFuzzer.
pub(crate) const FUZZ: &[Package] = &[package("g++", Proof::Program("c++"), "compiles libFuzzer")];

/// For benches with test targets in C alone.
pub(crate) const BENCH_C: &[Package] = &[
    package("gcc", Proof::Program("gcc"), "compiles a target in C"),
    package("libc6-dev", Proof::File("/usr/include/stdlib.h"), "headers of the target in C"),
];

/// For `cargo xtask bench overhead`.
pub(crate) const BENCH_OVERHEAD: &[Package] = &[
    package("gcc", Proof::Program("gcc"), "compiles targets in C"),
    package("libc6-dev", Proof::File("/usr/include/stdlib.h"), "headers of the targets in C"),
    package("g++", Proof::Program("g++"), "compiles targets in C++"),
    package("python3", Proof::File("/usr/bin/python3"), "a target"),
    package("redis-server", Proof::Program("redis-server"), "a target, with jemalloc"),
    package("redis-tools", Proof::Program("redis-benchmark"), "puts load on redis"),
];

/// Script for `sh` as root, with the packages as arguments.
///
/// Packages of servers start the server when they are installed, unless `policy-rc.d` forbids it; one of the machine's own is
/// respected.
const INSTALL: &str = r#"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet
apt-get install --quiet --yes --no-install-recommends "$@"
"#;

/// Installs those of `packages` that are missing.
pub(crate) fn install(packages: &[&[Package]]) -> Result<()> {
    let packages = &missing(packages, Proof::present);
    if packages.is_empty() {
        return Ok(());
    }
    if command::find("apt-get").is_none() {
        bail!("this machine has no apt-get; install by other means:\n{}", list(packages));
    }
    let Some(mut shell) = Privilege::find().command("sh") else {
        bail!(
            "installing requires root, or sudo without a password or at a terminal; missing are:\n{}\nrun as root: \
             apt-get install --no-install-recommends {}",
            list(packages),
            names(packages)
        );
    };
    eprintln!("installing Debian packages:\n{}", list(packages));
    let status = shell.args(["-euc", INSTALL, "sh"]).args(packages.iter().map(|package| package.name)).status()?;
    if !status.success() {
        bail!("apt-get could not install these packages: {status}");
    }
    let still: Vec<_> = packages.iter().copied().filter(|package| !package.proof.present()).collect();
    if !still.is_empty() {
        bail!("apt-get succeeded, but these are still missing:\n{}", list(&still));
    }
    Ok(())
}

fn list(packages: &[&Package]) -> String {
    let lines = packages
        .iter()
        .map(|package| format!("  {:<14} {} (`{}`)", package.name, package.purpose, package.proof.subject()));
    lines.collect::<Vec<_>>().join("\n")
}

fn names(packages: &[&Package]) -> String {
    packages.iter().map(|package| package.name).collect::<Vec<_>>().join(" ")
}

fn missing<'a>(packages: &[&'a [Package]], present: impl Fn(Proof) -> bool) -> Vec<&'a Package> {
    packages.iter().copied().flatten().filter(|package| !present(package.proof)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(present: &[&str], expected: &[&str]) {
        let missing = missing(&[RUST, LLVM], |proof| present.contains(&proof.subject()));
        assert_eq!(missing.iter().map(|package| package.name).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn missing_packages_are_listed_in_order() {
        check(&[], &["rustc-web", "cargo-web", "rust-web-src", "llvm-22-dev"]);
        check(&["/usr/bin/rustc", "/usr/bin/cargo"], &["rust-web-src", "llvm-22-dev"]);
        let all: Vec<_> = RUST.iter().chain(LLVM).map(|package| package.proof.subject()).collect();
        check(&all, &[]);
    }

    #[test]
    fn proofs_inspect_the_machine() {
        assert!(Proof::Program("sh").present());
        assert!(!Proof::Program("no-such-program-anywhere").present());
        assert!(Proof::File("/proc/self/status").present());
        assert!(!Proof::File("/proc/self/no-such-file").present());
    }
}
