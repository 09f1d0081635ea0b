//! The processors that heapbpf is built for, by the names that kernels, compilers and Debian have for them.

use clap::ValueEnum;
use object::elf;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Architecture {
    #[value(name = "x86_64", alias = "amd64")]
    X86_64,
    #[value(name = "aarch64", alias = "arm64")]
    Aarch64,
}

impl Architecture {
    pub(crate) const HOST: Self = if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Rust's target.
    pub(crate) const fn triple(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    pub(crate) fn from_triple(triple: &str) -> Result<Self, String> {
        let found = Self::value_variants().iter().find(|architecture| architecture.triple() == triple);
        found.copied().ok_or_else(|| {
            let triples: Vec<_> = Self::value_variants().iter().map(|architecture| architecture.triple()).collect();
            format!("heapbpf is built for {}", triples.join(" and "))
        })
    }

    /// The architecture of Debian packages.
    pub(crate) const fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// The folder of Debian's libraries.
    pub(crate) const fn multiarch(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-linux-gnu",
            Self::Aarch64 => "aarch64-linux-gnu",
        }
    }

    /// `e_machine` of its programs.
    pub(crate) const fn machine(self) -> u16 {
        match self {
            Self::X86_64 => elf::EM_X86_64,
            Self::Aarch64 => elf::EM_AARCH64,
        }
    }

    pub(crate) const fn is_host(self) -> bool {
        matches!((self, Self::HOST), (Self::X86_64, Self::X86_64) | (Self::Aarch64, Self::Aarch64))
    }

    /// The C compiler, also the linker of Rust programs.
    pub(crate) fn compiler(self) -> String {
        if self.is_host() { "gcc".to_owned() } else { format!("{}-gcc", self.multiarch()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triples_name_architectures() {
        for architecture in Architecture::value_variants() {
            assert_eq!(Architecture::from_triple(architecture.triple()), Ok(*architecture));
        }
        let error = Architecture::from_triple("riscv64gc-unknown-linux-gnu").expect_err("is unsupported");
        assert!(error.contains("aarch64-unknown-linux-gnu"), "{error}");
    }
}
