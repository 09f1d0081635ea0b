//! `cargo xtask build`: a static heapbpf, also for another processor.

use std::fs;

use anyhow::Result;

use crate::architecture::Architecture;
use crate::command::Repository;
use crate::cross::{Compiler, Profile, Toolchain};

/// Builds heapbpf as a static program, also for another processor.
///
/// Installs what is missing: for another processor, the C compiler and linker (Debian: with apt-get, as root or through sudo)
/// and the standard library of Rust, by `rustup target add` or from Debian's package. Prints the path of the program.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask build                                       a static program for this machine
  cargo xtask build --target aarch64-unknown-linux-gnu    a static program for arm64")]
pub(crate) struct Arguments {
    /// Platform of the program.
    #[arg(long, value_name = "TRIPLE", default_value = Architecture::HOST.triple(), value_parser = Architecture::from_triple)]
    target: Architecture,

    /// Rust compiler: `rustup` is the one that runs this command. Default: the first that has the target, or can get it.
    #[arg(long, value_name = "NAME")]
    compiler: Option<Compiler>,

    /// Build without optimization.
    #[arg(long)]
    debug: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { target, compiler, debug } = *arguments;
    let repository = Repository::find()?;
    let toolchain = match compiler {
        Some(compiler) => Toolchain::install_from(&repository, target, compiler)?,
        None => Toolchain::install(&repository, target)?,
    };
    let program = toolchain.build(&repository, if debug { Profile::Debug } else { Profile::Release })?;
    println!("{} ({} bytes)", program.display(), fs::metadata(&program)?.len());
    Ok(())
}
