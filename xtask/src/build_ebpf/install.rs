//! Gets the toolchain where it is missing: Debian's packages by apt-get, bpf-linker by cargo. Asks for everything
//! first and installs only what did not answer.

use std::process::Command;

use anyhow::Result;

use super::toolchain::{LINKER_VERSION, Linker, Rust, Toolchain};
use crate::{command, packages, repository};

/// The toolchain, after installing what is missing of it.
pub(super) fn find_or_install() -> Result<Toolchain> {
    if let Ok(toolchain) = Toolchain::find() {
        return Ok(toolchain);
    }
    let rust: &[_] = if Rust::find().is_ok() { &[] } else { packages::RUST };
    let linker_missing = Linker::find().is_err();
    let llvm: &[_] = if linker_missing { packages::LLVM } else { &[] };
    packages::install(&[rust, llvm])?;
    if linker_missing {
        // With the environment as it is: without the RUSTUP_TOOLCHAIN of the cargo that started this xtask, rustup
        // would follow the rust-toolchain.toml of whatever crate is being compiled.
        let mut cargo = Command::new(repository::cargo());
        cargo
            .env("LLVM_PREFIX", "/usr/lib/llvm-22")
            .args(["install", "bpf-linker", "--version", LINKER_VERSION, "--locked", "--force"])
            .args(["--no-default-features", "--features", "llvm-22"]);
        command::run(&mut cargo)?;
    }
    Toolchain::find()
}
