//! A cell of the matrix: a program with an allocator. Builds and starts it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::{Target, build_directory, run};

/// A program with an allocator.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// Heap that its blocks are reported in.
    pub(crate) heap: &'static str,
    program: Program,
    preload: Option<&'static str>,
    pub(crate) engine: Engine,
}

/// How calls are observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Trap,
    Inline,
}

#[derive(Clone, Debug)]
enum Program {
    Built(Recipe),
    /// A binary of `rust-targets`.
    Rust(&'static str),
}

impl fmt::Display for Cell {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.program {
            Program::Built(recipe) => write!(formatter, "{recipe}")?,
            Program::Rust(binary) => write!(formatter, "rust-targets {binary}")?,
        }
        self.preload.map_or(Ok(()), |library| write!(formatter, " with {library}"))?;
        if self.engine == Engine::Inline { write!(formatter, " by the inline engine") } else { Ok(()) }
    }
}

impl Cell {
    pub(crate) fn c(heap: &'static str) -> Self {
        Self { heap, program: Program::Built(Recipe::of("matrix.c")), preload: None, engine: Engine::Trap }
    }

    pub(crate) fn cxx(heap: &'static str) -> Self {
        Self { heap, program: Program::Built(Recipe::of("matrix.cpp")), preload: None, engine: Engine::Trap }
    }

    pub(crate) fn rust(heap: &'static str, binary: &'static str) -> Self {
        Self { heap, program: Program::Rust(binary), preload: None, engine: Engine::Trap }
    }

    pub(crate) fn compiler(self, compiler: &'static str) -> Self {
        self.with(|recipe| recipe.compiler(compiler))
    }

    pub(crate) fn flags(self, flags: &str) -> Self {
        self.with(|recipe| recipe.flags(flags))
    }

    pub(crate) fn libraries(self, libraries: &str) -> Self {
        self.with(|recipe| recipe.libraries(libraries))
    }

    pub(crate) fn prefixed(self, archive: &str, prefix: &'static str, functions: &'static [&'static str]) -> Self {
        self.with(|recipe| recipe.prefixed(archive, prefix, functions))
    }

    pub(crate) fn preload(self, library: &'static str) -> Self {
        assert!(Path::new(library).exists(), "`{library}` does not exist: `cargo xtask test` installs it");
        Self { preload: Some(library), ..self }
    }

    pub(crate) fn inline(self) -> Self {
        Self { engine: Engine::Inline, ..self }
    }

    /// Whether calls can pass a global offset table: not where program and allocator are one file.
    pub(crate) fn has_slots(&self) -> bool {
        match &self.program {
            Program::Built(recipe) => !recipe.contains_allocator(),
            Program::Rust(binary) => *binary == "system",
        }
    }

    /// Builds the program unless it exists, and starts it.
    #[track_caller]
    pub(crate) fn start(&self) -> Target {
        let mut command = Command::new(match &self.program {
            Program::Built(recipe) => recipe.build(),
            Program::Rust(binary) => rust_targets().join(binary),
        });
        // Some calls are supposed to fail: tcmalloc would print a line for each.
        command.env("TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD", i64::MAX.to_string());
        command.envs(self.preload.map(|library| ("LD_PRELOAD", library)));
        Target::spawn(&mut command)
    }

    fn with(mut self, change: impl FnOnce(Recipe) -> Recipe) -> Self {
        self.program = match self.program {
            Program::Built(recipe) => Program::Built(change(recipe)),
            Program::Rust(binary) => panic!("`{binary}` is built by cargo"),
        };
        self
    }
}

/// Builds the package `rust-targets` unless it is up to date, once, and returns the directory of its programs.
fn rust_targets() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let (mut command, folder) = heapbpf_tests::target::rust_targets(&build_directory());
        run(&mut command);
        folder
    })
}
