//! How a target is built: compiler, flags, libraries. Each source is built once per recipe.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::target::{build_directory, run};

/// Flags of C and C++ targets: frame pointers, and no removed calls: without `-fno-builtin` the compiler drops a malloc
/// whose block is only freed.
const C_FLAGS: &str = "-O1 -g -fno-omit-frame-pointer -fno-optimize-sibling-calls -fno-builtin -pthread -Wall -Wextra \
                       -Werror";

/// A way to build one of `targets/`.
#[derive(Clone, Debug, Hash)]
pub struct Recipe {
    source: String,
    compiler: &'static str,
    /// Arguments before the source.
    flags: Vec<String>,
    /// Arguments after the source.
    libraries: Vec<String>,
    /// An archive whose public functions are renamed, and their prefix.
    prefixed: Option<(PathBuf, &'static str, &'static [&'static str])>,
}

impl fmt::Display for Recipe {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = |flag: &str| C_FLAGS.split_ascii_whitespace().any(|it| it == flag);
        let words = self.flags.iter().filter(|flag| !usual(flag)).chain(&self.libraries);
        write!(formatter, "{} {}", self.compiler, self.source)?;
        words.into_iter().try_for_each(|word| write!(formatter, " {word}"))
    }
}

impl Recipe {
    /// Returns the default recipe for a file of `targets/`, by its extension.
    pub fn of(source: &str) -> Self {
        let extension = Path::new(source).extension().and_then(OsStr::to_str);
        let (compiler, flags) = match extension {
            Some("rs") => ("rustc", "--edition=2024 -O -g -Cforce-frame-pointers=yes"),
            Some("cpp") => ("g++", C_FLAGS),
            _ if source == "bare32.c" => ("gcc", "-m32 -O1 -g -nostdlib -static -ffreestanding -fno-stack-protector"),
            _ if source == "bare.c" => ("gcc", "-O1 -g -nostdlib -static -ffreestanding"),
            _ => ("gcc", C_FLAGS),
        };
        let recipe =
            Self { source: source.to_owned(), compiler, flags: Vec::new(), libraries: Vec::new(), prefixed: None };
        recipe.flags(flags)
    }

    /// Uses another compiler with the same flags.
    pub fn compiler(self, compiler: &'static str) -> Self {
        Self { compiler, ..self }
    }

    /// Adds flags, separated by blanks.
    pub fn flags(mut self, flags: &str) -> Self {
        self.flags.extend(flags.split_ascii_whitespace().map(str::to_owned));
        self
    }

    /// Adds libraries (`-lm`), separated by blanks.
    pub fn libraries(mut self, libraries: &str) -> Self {
        self.libraries.extend(libraries.split_ascii_whitespace().map(str::to_owned));
        self
    }

    /// Links an archive with a prefix for the names of these functions.
    pub fn prefixed(
        self,
        archive: impl Into<PathBuf>,
        prefix: &'static str,
        functions: &'static [&'static str],
    ) -> Self {
        Self { prefixed: Some((archive.into(), prefix, functions)), ..self }
    }

    /// Whether the program contains its allocator: it is static, links an archive, or defines one.
    pub fn contains_allocator(&self) -> bool {
        let is_archive = |library: &String| library.starts_with("-l:") && library.ends_with(".a");
        let is_own = |flag: &String| ["-static", "-DARENA"].contains(&flag.as_str());
        self.prefixed.is_some() || self.libraries.iter().any(is_archive) || self.flags.iter().any(is_own)
    }

    /// Builds the program unless it exists for this source and recipe, and returns its path. Its name is the source's
    /// without extension.
    #[track_caller]
    pub fn build(&self) -> PathBuf {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets").join(&self.source);
        let name = path.file_stem().expect("sources have names").to_owned();
        let directory = build_directory().join("targets").join(format!("{:016x}", self.fingerprint(&path)));
        let program = directory.join(&name);
        if program.exists() {
            return program;
        }

        // Concurrent tests each build their own copy, and renaming replaces the result atomically.
        fs::create_dir_all(&directory).expect("the build directory is ours");
        let scratch = tempfile::tempdir_in(&directory).expect("the build directory is ours");
        let built = scratch.path().join(&name);
        let mut command = Command::new(self.compiler);
        command.args(&self.flags).arg(&path);
        if let Some((archive, prefix, functions)) = &self.prefixed {
            let renamed = scratch.path().join("renamed.a");
            let names = functions.iter().map(|function| format!("--redefine-sym={function}={prefix}{function}"));
            run(Command::new("objcopy").args(names).arg(archive).arg(&renamed));
            command.arg(renamed);
        }
        run(command.args(&self.libraries).arg("-o").arg(&built));
        fs::rename(&built, &program).expect("both lie in one directory");
        program
    }

    /// Hash of the recipe, the source and all its includes.
    fn fingerprint(&self, path: &Path) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        inputs(path).hash(&mut hasher);
        hasher.finish()
    }
}

/// Returns a source and its includes from the same directory, recursively.
fn inputs(source: &Path) -> BTreeMap<PathBuf, String> {
    let mut inputs = BTreeMap::new();
    let mut unread = vec![source.to_owned()];
    while let Some(path) = unread.pop() {
        if inputs.contains_key(&path) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
        unread.extend(text.lines().filter_map(included).map(|name| path.with_file_name(name)));
        inputs.insert(path, text);
    }
    inputs
}

/// Returns the file that a line includes from the same directory.
fn included(line: &str) -> Option<&str> {
    let directive = line.trim_start().strip_prefix('#')?.trim_start();
    let quoted = directive.strip_prefix("include")?.trim_start().strip_prefix('"')?;
    quoted.split_once('"').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_of_all_files_are_found() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets");
        let names = |source: &str| -> Vec<String> {
            inputs(&folder.join(source))
                .keys()
                .map(|path| path.strip_prefix(&folder).expect("beside it").display().to_string())
                .collect()
        };
        assert_eq!(names("pooled.c"), ["pool.c", "pool.h", "pooled.c", "protocol.h"]);
        assert_eq!(names("matrix.cpp"), ["matrix.cpp", "protocol.h", "workers.h"]);
        assert_eq!(names("silent.c"), ["silent.c"]);
        assert_eq!(included("#include <stdio.h>"), None);
        assert_eq!(included("  # include \"x.h\" // that"), Some("x.h"));
    }
}
