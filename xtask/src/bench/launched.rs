//! Tools that a program has to be started with: allocators with their own sampling, and heaptrack. Each one proves that it
//! has recorded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::tool::Setup;
use super::workload::LIBRARIES;
use crate::command;
use crate::process::{Output, Program, bound};

const HEAPTRACK: &str = "/usr/lib/heaptrack/libheaptrack_preload.so";
const HEAPTRACK_INTERPRET: &str = "/usr/lib/heaptrack/libexec/heaptrack_interpret";
/// Mean bytes between samples of the allocators.
pub(super) const SAMPLED_BYTES: u32 = 1 << 19;
/// Minimum part of the allocations that a tool which records all of them must have recorded.
const PART_MIN: f64 = 0.9;
/// Expected number of samples from which on at least one is required.
const SAMPLES_CERTAIN: f64 = 50.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Launcher {
    Tcmalloc { sampling: bool },
    Jemalloc { sampling: bool },
    Heaptrack,
}

/// What a tool writes while the program runs, and as it exits.
pub(super) struct Profile {
    launcher: Launcher,
    path: PathBuf,
    /// Counts heaptrack's allocations.
    reader: Option<Program>,
}

/// What a program allocates, as heapbpf has recorded it exactly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allocated {
    pub(super) count: f64,
    pub(super) bytes: f64,
}

impl Launcher {
    pub(super) fn missing(self) -> Option<String> {
        let needed = match self {
            Self::Tcmalloc { .. } => tcmalloc(),
            Self::Jemalloc { .. } => jemalloc(),
            Self::Heaptrack => HEAPTRACK.into(),
        };
        (!needed.exists()).then(|| format!("`{}` is not installed", needed.display()))
    }

    /// Variables that the program needs, and what the tool will have written.
    pub(super) fn prepare(self, setup: &Setup) -> Result<(Vec<String>, Profile)> {
        let folder = setup.bench.empty_folder("launched")?;
        let path = folder.join("profile");
        let file = path.display();
        let preload = |library: &Path| format!("LD_PRELOAD={}", library.display());
        let (mut environment, mut reader) = (Vec::new(), None);
        match self {
            Self::Tcmalloc { sampling: false } => {
                environment.extend([preload(&tcmalloc()), "TCMALLOC_SAMPLE_PARAMETER=0".to_owned()]);
            }
            Self::Tcmalloc { sampling: true } => {
                let helper = sample_writer(setup)?;
                environment.push(format!("{}:{}", preload(&tcmalloc()), helper.display()));
                environment.push(format!("TCMALLOC_SAMPLE_PARAMETER={SAMPLED_BYTES}"));
                environment.push(format!("HEAP_SAMPLE={file}"));
            }
            Self::Jemalloc { sampling } => {
                environment.push(preload(&jemalloc()));
                if sampling {
                    let options = format!("lg_prof_sample:{},prof_accum:true", SAMPLED_BYTES.ilog2());
                    environment.push(format!("MALLOC_CONF=prof:true,prof_final:true,prof_prefix:{file},{options}"));
                }
            }
            Self::Heaptrack => {
                environment.extend([preload(Path::new(HEAPTRACK)), format!("DUMP_HEAPTRACK_OUTPUT={file}")]);
                // As the script `heaptrack` connects both.
                command::output(Command::new("mkfifo").arg(&path))?;
                let count = format!("{HEAPTRACK_INTERPRET} <{file} | grep -c '^+'");
                reader = Some(Program::start(bound("sh").args(["-c", &count]), Output::Standard)?);
            }
        }
        Ok((environment, Profile { launcher: self, path, reader }))
    }
}

fn tcmalloc() -> PathBuf {
    Path::new(LIBRARIES).join("libtcmalloc.so.4")
}

fn jemalloc() -> PathBuf {
    Path::new(LIBRARIES).join("libjemalloc.so.2")
}

fn sample_writer(setup: &Setup) -> Result<PathBuf> {
    let library = setup.bench.folder.join("heap_sample.so");
    if !library.exists() {
        let source = setup.bench.repository.root.join("xtask/src/bench/heap_sample.cpp");
        command::compile("g++", "-O2 -shared -fPIC", &source, &library)?;
    }
    Ok(library)
}

impl Profile {
    /// Fails unless the tool has recorded, once the program has exited.
    pub(super) fn check(self, expected: Allocated) -> Result<()> {
        let samples = expected.bytes / f64::from(SAMPLED_BYTES);
        match self.launcher {
            Launcher::Tcmalloc { sampling: false } | Launcher::Jemalloc { sampling: false } => {}
            Launcher::Tcmalloc { sampling: true } => {
                let text = fs::read_to_string(&self.path).context("tcmalloc has written no sample")?;
                ensure!(tcmalloc_sampled(&text), "tcmalloc has not sampled: {text:.200}");
            }
            Launcher::Jemalloc { sampling: true } => {
                let folder = self.path.parent().context("the profile is in a folder")?;
                let count = jemalloc_samples(&jemalloc_profile(folder)?)?;
                ensure!(count > 0 || samples < SAMPLES_CERTAIN, "jemalloc has sampled nothing");
            }
            Launcher::Heaptrack => {
                let count = self.reader.context("heaptrack has a reader")?.line()?.trim().parse()?;
                complete("heaptrack", count, expected)?;
            }
        }
        Ok(())
    }
}

fn complete(name: &str, count: u64, expected: Allocated) -> Result<()> {
    let is_complete = count as f64 >= PART_MIN * expected.count;
    ensure!(is_complete, "{name} has recorded {count} of {:.0} allocations", expected.count);
    Ok(())
}

/// Whether sampling was enabled: samples of freed blocks are not in the profile.
fn tcmalloc_sampled(profile: &str) -> bool {
    profile.starts_with("heap profile:") && profile.contains(&format!("@ heap_v2/{SAMPLED_BYTES}"))
}

fn jemalloc_profile(folder: &Path) -> Result<String> {
    let mut names = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let path = names.find(|path| path.extension().is_some_and(|extension| extension == "heap"));
    let Some(path) = path else { bail!("jemalloc has written no profile: it may lack profiling") };
    fs::read_to_string(&path).with_context(|| format!("could not read `{}`", path.display()))
}

/// Number of samples, also of freed blocks: `t*: LIVE: BYTES [ALL: BYTES]`.
fn jemalloc_samples(profile: &str) -> Result<u64> {
    let line = profile.lines().find(|line| line.trim_start().starts_with("t*:"));
    let all = line.and_then(|line| line.split_once('[')?.1.split_once(':'));
    all.and_then(|(count, _)| count.trim().parse().ok()).context("jemalloc's profile has no total")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_of_allocators_show_whether_they_sampled() {
        assert!(tcmalloc_sampled("heap profile:      0:        0 [     0:        0] @ heap_v2/524288\n"));
        assert!(!tcmalloc_sampled(
            "%warn\n%warn heap sampling turned off.\nheap profile: 0: 0 [0: 0] @ heap_v2/524288"
        ));
        let profile = "heap_v2/524288\n  t*: 366: 214368 [3651: 2218378]\n  t0: 1: 2 [3: 4]\n";
        assert_eq!(jemalloc_samples(profile).expect("it has a total"), 3651);
        assert!(jemalloc_samples("heap_v2/524288\n").is_err());
    }

    #[test]
    fn nine_in_ten_allocations_are_required() {
        let expected = Allocated { count: 10.0, bytes: 100.0 };
        assert!(complete("x", 9, expected).is_ok() && complete("x", 8, expected).is_err());
    }
}
