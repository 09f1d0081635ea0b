//! Debian packages that building heapbpf, tests and benches need, and their installation: as root or through sudo.

use std::path::Path;

use anyhow::{Result, bail};

use crate::command::{self, Privilege};

/// Name in Debian 12; the program in `PATH` or the file which shows that it, or a substitute, is installed; purpose.
type Package = (&'static str, &'static str, &'static str);

const PACKAGES: &[Package] = &[
    ("rustc-web", "/usr/bin/rustc", "compiles the kernel side"),
    ("cargo-web", "/usr/bin/cargo", "builds the kernel side"),
    ("rust-web-src", "/usr/lib/rustlib/src/rust/library/Cargo.lock", "the source of `core`, to compile for BPF"),
    ("llvm-22-dev", "/usr/lib/llvm-22/include/llvm-c/Core.h", "LLVM, for bpf-linker"),
    ("gcc", "gcc", "compiles targets in C"),
    ("libc6-dev", "/usr/include/stdlib.h", "headers of targets in C"),
    ("g++", "g++", "compiles targets in C++"),
    ("g++", "c++", "compiles libFuzzer"),
    ("binutils", "objdump", "a second opinion on instructions"),
    ("libjemalloc2", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "an allocator to profile"),
    ("libtcmalloc-minimal4", "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4", "an allocator to profile"),
    ("libmimalloc2.0", "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2.0", "an allocator to profile"),
    ("libjemalloc-dev", "/usr/lib/x86_64-linux-gnu/libjemalloc.a", "links targets with jemalloc"),
    ("libgoogle-perftools-dev", "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.a", "links targets with tcmalloc"),
    ("libmimalloc-dev", "/usr/include/mimalloc.h", "links targets with mimalloc"),
    ("musl-tools", "musl-gcc", "a C library to profile"),
    ("musl-dev", "/usr/lib/x86_64-linux-musl/libc.a", "links targets with musl"),
    ("redis-server", "redis-server", "a target: a server with jemalloc"),
    ("redis-tools", "redis-benchmark", "puts load on redis"),
    ("python3", "/usr/bin/python3", "a target: an interpreter"),
    ("perl", "perl", "a target: an interpreter"),
    ("nodejs", "node", "a target: an interpreter that generates code"),
    ("php-cli", "php", "a target: an interpreter with an allocator of its own"),
    ("php-fpm", "/usr/sbin/php-fpm8.2", "a target: a server that interprets"),
    ("ruby", "ruby", "a target: an interpreter with a stack of its own"),
    ("default-jdk-headless", "javac", "a target: a virtual machine that generates code"),
    ("sqlite3", "sqlite3", "a target: a database in one process"),
    ("memcached", "memcached", "a target: a stripped server"),
    ("debuginfod", "debuginfod", "serves debug files"),
    ("dwz", "dwz", "makes debug files share a third one"),
    ("xz-utils", "xz", "compresses MiniDebugInfo"),
    ("git", "git", "a target: reads a repository's history"),
    ("postgresql", "/usr/lib/postgresql", "a target: a server that forks, and pgbench"),
    ("nginx-light", "/usr/sbin/nginx", "a target: a server with pools"),
    ("wrk", "wrk", "puts load on nginx"),
    ("ffmpeg", "ffmpeg", "a target: a program of two hundred modules"),
    ("valgrind", "valgrind", "a second opinion on leaks"),
    ("valgrind", "/usr/libexec/valgrind/dh_view.html", "reads DHAT's and massif's files"),
    ("curl", "curl", "a client of `--serve`"),
    ("openssl", "openssl", "makes certificates for `--serve`"),
    ("prometheus", "promtool", "checks and scrapes the metrics of `--serve`"),
    ("strace", "strace", "shows which files are opened, and traces programs beside heapbpf"),
    ("gdb", "gdb", "a debugger of programs that heapbpf has started"),
    ("chromium", "chromium", "opens what is drawn by scripts"),
    ("golang-go", "go", "reads profiles with `go tool pprof`, and builds a target"),
    (
        "golang-1.19-src",
        "/usr/share/go-1.19/src/cmd/trace/static/trace_viewer_full.html",
        "brings catapult, which reads Chrome's traces",
    ),
    ("google-perftools", "google-pprof", "reads gperftools' heap profiles"),
    ("graphviz", "dot", "draws the graphs of `go tool pprof`"),
    ("heaptrack", "heaptrack_print", "reads heaptrack's data"),
    ("heaptrack-gui", "heaptrack_gui", "shows heaptrack's data in windows"),
    ("massif-visualizer", "massif-visualizer", "shows massif's files in windows"),
    ("xvfb", "Xvfb", "a screen for programs with windows"),
    ("xdotool", "xdotool", "presses keys there"),
    ("tmux", "tmux", "a terminal whose screen can be read"),
    ("systemd", "systemd-analyze", "verifies the units of the packages"),
    ("python3-venv", "/usr/lib/python3.11/ensurepip", "makes room for readers from PyPI"),
    ("qemu-system-x86", "qemu-system-x86_64", "emulates a machine"),
    ("qemu-system-arm", "qemu-system-aarch64", "emulates a machine"),
    ("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc", "compiles C for arm64, and links programs for it"),
    ("libc6-dev-arm64-cross", "/usr/aarch64-linux-gnu/include/stdlib.h", "headers of targets in C for arm64"),
    ("busybox-static", "busybox", "the virtual machine's programs"),
    ("cpio", "cpio", "packs the virtual machine's files"),
    ("debootstrap", "/usr/sbin/debootstrap", "makes a Debian system to install the package in"),
    ("rpm", "rpm", "installs the other package"),
    ("python3-torch", "/usr/lib/python3/dist-packages/torch/__init__.py", "a target: torch for processors alone"),
    ("puma", "puma", "a target: a server in Ruby"),
    (
        "ruby-sinatra",
        "/usr/share/rubygems-integration/all/gems/sinatra-3.0.5/lib/sinatra.rb",
        "a target: a framework in Ruby",
    ),
];

pub(crate) const RUST: &str = "rustc-web cargo-web rust-web-src";
pub(crate) const LLVM: &str = "llvm-22-dev";
pub(crate) const TESTS: &str = "gcc libc6-dev g++ binutils libjemalloc2 libtcmalloc-minimal4 libmimalloc2.0 libjemalloc-dev \
    libgoogle-perftools-dev libmimalloc-dev musl-tools musl-dev redis-server redis-tools python3 php-cli perl ruby nodejs sqlite3 git \
    postgresql nginx-light valgrind strace gdb tmux golang-go default-jdk-headless curl openssl prometheus systemd memcached \
    debuginfod dwz xz-utils";
pub(crate) const FAULTS: &str = "gcc libc6-dev g++ libjemalloc2 libtcmalloc-minimal4 libmimalloc2.0 libjemalloc-dev redis-server \
    redis-tools python3 php-fpm ruby nodejs postgresql nginx-light golang-go default-jdk-headless";
pub(crate) const VIEWERS: &str =
    "chromium golang-go golang-1.19-src google-perftools graphviz heaptrack python3-venv valgrind";
pub(crate) const DESKTOP: &str = "heaptrack-gui massif-visualizer xvfb xdotool";
pub(crate) const BENCH_UNWIND: &str =
    "gcc libc6-dev redis-server redis-tools nginx-light wrk postgresql python3 git sqlite3 ffmpeg";
pub(crate) const BENCH_FUNCTIONS: &str = "gcc libc6-dev default-jdk-headless php-cli ruby";
pub(crate) const BENCH_OVERHEAD: &str = "gcc libc6-dev g++ python3 redis-server redis-tools sqlite3 git libjemalloc2 \
    libgoogle-perftools-dev heaptrack";
pub(crate) const BENCH_AGENT: &str = "gcc libc6-dev redis-server redis-tools python3 perl";
pub(crate) const BENCH_PUSH: &str = "redis-server redis-tools nginx-light wrk postgresql";
pub(crate) const BENCH_FRAMEWORKS: &str =
    "gcc libc6-dev python3 python3-torch default-jdk-headless ruby puma ruby-sinatra php-fpm nginx-light";
pub(crate) const BENCH_GO: &str = "golang-go python3 python3-pip";
pub(crate) const BENCH_PAGES: &str = "gcc libc6-dev default-jdk-headless golang-go nodejs php-cli python3 ruby";
pub(crate) const BENCH_C: &str = "gcc libc6-dev";
pub(crate) const VM_X86_64: &str = "qemu-system-x86 busybox-static cpio gcc libc6-dev libjemalloc2 libtcmalloc-minimal4 \
    libmimalloc2.0 musl-tools musl-dev";
/// Programs and libraries for arm64 are unpacked, not installed.
pub(crate) const VM_AARCH64: &str = "qemu-system-arm cpio gcc-aarch64-linux-gnu libc6-dev-arm64-cross";
pub(crate) const AARCH64: &str = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross";
pub(crate) const FUZZ: &str = "g++";
pub(crate) const SCREENSHOTS: &str = "redis-server redis-tools";
pub(crate) const DIST: &str = "debootstrap rpm";

/// Script for `sh` as root, with the packages as arguments. Packages of servers start the server when installed,
/// unless `policy-rc.d` forbids it; one of the machine's own is respected.
const INSTALL: &str = r#"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
# One at a time: a second apt-get would fail.
exec 9>/run/lock/heapbpf-packages
flock 9
apt-get update --quiet
apt-get install --quiet --yes --no-install-recommends "$@"
"#;

/// Installs those of the packages that are missing. Names are separated by spaces.
pub(crate) fn install(names: &str) -> Result<()> {
    let packages = missing(names, is_present);
    if packages.is_empty() {
        return Ok(());
    }
    if command::find("apt-get").is_none() {
        bail!("this machine has no apt-get; install by other means:\n{}", list(&packages));
    }
    let names: Vec<_> = packages.iter().map(|(name, ..)| *name).collect();
    let Some(mut shell) = Privilege::find().command("sh") else {
        bail!(
            "installing requires root, or sudo without a password or at a terminal; missing are:\n{}\nrun as root: \
             apt-get install --no-install-recommends {}",
            list(&packages),
            names.join(" ")
        );
    };
    eprintln!("installing Debian packages:\n{}", list(&packages));
    let status = shell.args(["-euc", INSTALL, "sh"]).args(&names).status()?;
    if !status.success() {
        bail!("apt-get could not install these packages: {status}");
    }
    let still = missing(&names.join(" "), is_present);
    if !still.is_empty() {
        bail!("apt-get succeeded, but these are still missing:\n{}", list(&still));
    }
    Ok(())
}

fn list(packages: &[Package]) -> String {
    let lines = packages.iter().map(|(name, proof, purpose)| format!("  {name:<14} {purpose} (`{proof}`)"));
    lines.collect::<Vec<_>>().join("\n")
}

fn missing(names: &str, is_present: impl Fn(&str) -> bool) -> Vec<Package> {
    let of_name = |name| PACKAGES.iter().copied().filter(move |package| package.0 == name);
    names.split_whitespace().flat_map(of_name).filter(|(_, proof, _)| !is_present(proof)).collect()
}

fn is_present(proof: &str) -> bool {
    if proof.starts_with('/') { Path::new(proof).exists() } else { command::find(proof).is_some() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn check(present: &[&str], expected: &[&str]) {
        let missing = missing(&[RUST, LLVM].join(" "), |proof| present.contains(&proof));
        assert_eq!(missing.iter().map(|(name, ..)| *name).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn missing_packages_are_listed_in_order() {
        check(&[], &["rustc-web", "cargo-web", "rust-web-src", "llvm-22-dev"]);
        check(&["/usr/bin/rustc", "/usr/bin/cargo"], &["rust-web-src", "llvm-22-dev"]);
        check(&PACKAGES.iter().map(|(_, proof, _)| *proof).collect::<Vec<_>>(), &[]);
    }

    #[test]
    fn packages_are_those_of_the_sets() {
        let sets = [
            RUST,
            LLVM,
            TESTS,
            FAULTS,
            VIEWERS,
            DESKTOP,
            BENCH_UNWIND,
            BENCH_OVERHEAD,
            BENCH_C,
            BENCH_PAGES,
            BENCH_FRAMEWORKS,
            VM_X86_64,
            VM_AARCH64,
            AARCH64,
            FUZZ,
            DIST,
            SCREENSHOTS,
        ];
        let needed: BTreeSet<&str> = sets.iter().flat_map(|set| set.split_whitespace()).collect();
        assert_eq!(PACKAGES.iter().map(|package| package.0).collect::<BTreeSet<_>>(), needed);
    }

    #[test]
    fn proofs_inspect_the_machine() {
        assert!(is_present("sh") && !is_present("no-such-program-anywhere"));
        assert!(is_present("/proc/self/status") && !is_present("/proc/self/no-such-file"));
    }
}
