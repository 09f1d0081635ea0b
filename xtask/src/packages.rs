//! Debian packages that building the BPF object and the tests need, as data, with how to see that each is there.
//! Installs nothing: see `apt`.

use std::path::Path;

use crate::command;

/// One package.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Package {
    /// Its name in Debian 12.
    pub(crate) name: &'static str,
    /// What shows that it, or something as good from elsewhere, is there.
    pub(crate) proof: Proof,
    /// What it is for.
    pub(crate) purpose: &'static str,
}

/// What shows that a package's content is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// A program in `PATH`.
    Program(&'static str),
    /// A file.
    File(&'static str),
}

impl Proof {
    /// Looks on this machine.
    pub(crate) fn present(self) -> bool {
        match self {
            Self::Program(name) => command::find(name).is_some(),
            Self::File(path) => Path::new(path).exists(),
        }
    }

    /// What to name to somebody who has no apt.
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

/// What bpf-linker is built against.
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

/// Programs whose stacks `cargo xtask bench unwind` looks at, and what puts load on them.
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

/// What virtual machines take.
pub(crate) const VM: &[Package] = &[
    package("qemu-system-x86", Proof::Program("qemu-system-x86_64"), "emulates a machine"),
    package("busybox-static", Proof::Program("busybox"), "the virtual machine's programs"),
    package("cpio", Proof::Program("cpio"), "packs the virtual machine's files"),
    package("gcc", Proof::Program("gcc"), "compiles targets in C"),
    package("libc6-dev", Proof::File("/usr/include/stdlib.h"), "headers of the targets in C"),
];

/// What libFuzzer is compiled with.
pub(crate) const FUZZ: &[Package] = &[package("g++", Proof::Program("c++"), "compiles libFuzzer")];

/// What the soak runs.
pub(crate) const BENCH_SOAK: &[Package] = &[
    package("gcc", Proof::Program("gcc"), "compiles a target in C"),
    package("libc6-dev", Proof::File("/usr/include/stdlib.h"), "headers of the target in C"),
];

/// What `cargo xtask bench leaks` looks at.
pub(crate) const BENCH_LEAKS: &[Package] = &[
    package("gcc", Proof::Program("gcc"), "compiles a target in C"),
    package("libc6-dev", Proof::File("/usr/include/stdlib.h"), "headers of the target in C"),
];

/// What `cargo xtask bench overhead` measures with.
pub(crate) const BENCH_OVERHEAD: &[Package] = &[
    package("gcc", Proof::Program("gcc"), "compiles targets in C"),
    package("libc6-dev", Proof::File("/usr/include/stdlib.h"), "headers of the targets in C"),
    package("g++", Proof::Program("g++"), "compiles targets in C++"),
    package("python3", Proof::File("/usr/bin/python3"), "a target"),
    package("redis-server", Proof::Program("redis-server"), "a target, with jemalloc"),
    package("redis-tools", Proof::Program("redis-benchmark"), "puts load on redis"),
];

/// Those of `packages` that are not `present`, in order.
pub(crate) fn missing<'a>(packages: &[&'a [Package]], present: impl Fn(Proof) -> bool) -> Vec<&'a Package> {
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
    fn only_what_is_missing_is_planned_in_order() {
        check(&[], &["rustc-web", "cargo-web", "rust-web-src", "llvm-22-dev"]);
        check(&["/usr/bin/rustc", "/usr/bin/cargo"], &["rust-web-src", "llvm-22-dev"]);
        let all: Vec<_> = RUST.iter().chain(LLVM).map(|package| package.proof.subject()).collect();
        check(&all, &[]);
    }

    #[test]
    fn proofs_look_at_the_machine() {
        assert!(Proof::Program("sh").present());
        assert!(!Proof::Program("no-such-program-anywhere").present());
        assert!(Proof::File("/proc/self/status").present());
        assert!(!Proof::File("/proc/self/no-such-file").present());
    }
}
