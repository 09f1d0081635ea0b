//! Breakpoints in a process's code: how tools of any kind are seen to be attached, and gone. Needs root.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::program::PATIENCE;

/// How often a process's code is looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// `int3`.
const BREAKPOINT: u8 = 0xcc;

/// Code of a process that stands in a file.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    bytes: usize,
    file_offset: u64,
    path: String,
}

/// Parses a line of `/proc/PID/maps`; `None` for what is no code of a file.
fn parse(line: &str) -> Option<Mapping> {
    let path = &line[line.find('/')?..];
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    if !fields.next()?.contains('x') {
        return None;
    }
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (start, end, file_offset) = (hex(start)?, hex(end)?, hex(fields.next()?)?);
    Some(Mapping { start, bytes: usize::try_from(end.checked_sub(start)?).ok()?, file_offset, path: path.to_owned() })
}

fn mappings(pid: u32) -> Result<Vec<Mapping>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).with_context(|| format!("process {pid} has ended"))?;
    Ok(maps.lines().filter_map(parse).collect())
}

/// How many breakpoints a process has that its files have not.
pub(super) fn count(pid: u32) -> Result<usize> {
    let memory = File::open(format!("/proc/{pid}/mem")).context("reading a process's code takes root")?;
    let mut count = 0;
    for mapping in mappings(pid)? {
        let mut held = vec![0; mapping.bytes];
        memory.read_exact_at(&mut held, mapping.start)?;
        let mut original = vec![0; mapping.bytes];
        let file = File::open(&mapping.path)?;
        let available = file.metadata()?.len().saturating_sub(mapping.file_offset);
        let available = usize::try_from(available)?.min(mapping.bytes);
        file.read_exact_at(&mut original[..available], mapping.file_offset)?;
        count += held.iter().zip(&original).filter(|&(&held, &file)| held == BREAKPOINT && file != BREAKPOINT).count();
    }
    Ok(count)
}

/// Waits until breakpoints have come and no more have come for a second.
pub(super) fn wait_until_settled(pid: u32) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let (mut before, mut since) = (0, Instant::now());
    while before == 0 || since.elapsed() < Duration::from_secs(1) {
        if Instant::now() > deadline {
            bail!("no breakpoints in process {pid}, or still more, after {PATIENCE:?}");
        }
        thread::sleep(LOOK_PERIOD);
        let count = count(pid)?;
        if count != before {
            (before, since) = (count, Instant::now());
        }
    }
    Ok(())
}

/// Waits until none is left.
pub(super) fn wait_until_gone(pid: u32) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while count(pid)? > 0 {
        if Instant::now() > deadline {
            bail!("breakpoints are still in process {pid} after {PATIENCE:?}");
        }
        thread::sleep(LOOK_PERIOD);
    }
    Ok(())
}

/// An instruction of a process, to see whether it is a breakpoint at the moment.
pub(super) struct Instruction {
    memory: File,
    address: u64,
}

impl Instruction {
    /// The one at this offset of a file that the process has mapped.
    pub(super) fn find(pid: u32, path: &str, file_offset: u64) -> Result<Self> {
        let holds = |mapping: &Mapping| {
            let inside = file_offset.checked_sub(mapping.file_offset);
            mapping.path == path && inside.is_some_and(|inside| inside < mapping.bytes as u64)
        };
        let mapping = mappings(pid)?.into_iter().find(holds);
        let mapping =
            mapping.with_context(|| format!("process {pid} has not mapped offset {file_offset} of `{path}`"))?;
        let memory = File::open(format!("/proc/{pid}/mem")).context("reading a process's code takes root")?;
        Ok(Self { memory, address: mapping.start + (file_offset - mapping.file_offset) })
    }

    /// Whether it is a breakpoint now.
    pub(super) fn is_breakpoint(&self) -> Result<bool> {
        let mut byte = [0];
        self.memory.read_exact_at(&mut byte, self.address)?;
        Ok(byte == [BREAKPOINT])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_files() {
        let mapping = parse("1000-3000 r-xp 00002000 08:01 42    /usr/lib/my lib.so").expect("is code of a file");
        let expected = Mapping { start: 0x1000, bytes: 0x2000, file_offset: 0x2000, path: "/usr/lib/my lib.so".into() };
        assert_eq!(mapping, expected);
        for other in ["1000-3000 r--p 00002000 08:01 42 /usr/lib/l.so", "1000-3000 r-xp 00000000 00:00 0 [vdso]", ""] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
