//! Compares the writable memory of a process that does nothing before heapbpf attaches and after it has detached.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

/// Distance of two copies that must be equal, and maximum number of copies.
const STILL_FOR: Duration = Duration::from_millis(100);
const STILL_WITHIN: usize = 50;

/// Contents of the private, writable mappings of a process, without heapbpf's own.
pub(super) struct Memory(Vec<(Mapping, Vec<u8>)>);

#[derive(PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    name: String,
    is_writable: bool,
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let permissions = fields.next()?;
        let name = fields.skip(3).collect::<Vec<_>>().join(" ");
        let is_writable = permissions.starts_with("rw") && permissions.ends_with('p');
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        Some(Self { start: number(start)?, end: number(end)?, name, is_writable })
    }

    /// Whether it is heapbpf's: the code of stubs has a name, and their data follows it.
    fn is_own(&self, before: Option<&Self>) -> bool {
        self.name.contains(OWN)
            || self.name.is_empty() && before.is_some_and(|code| code.end == self.start && code.name.contains(OWN))
    }
}

const OWN: &str = "heapbpf";

/// The mappings to compare, in the text of `/proc/PID/maps`.
fn compared(maps: &str) -> Vec<Mapping> {
    let mappings: Vec<Mapping> = maps.lines().filter_map(Mapping::parse).collect();
    let is_own: Vec<bool> =
        (0..mappings.len()).map(|at| mappings[at].is_own(at.checked_sub(1).map(|before| &mappings[before]))).collect();
    let compared = mappings.into_iter().zip(is_own).filter(|(mapping, is_own)| mapping.is_writable && !is_own);
    compared.map(|(mapping, _)| mapping).collect()
}

impl Memory {
    /// Reads the memory of a process once two copies are equal, taken at some distance: threads may still be on their way to the
    /// system calls in which they wait.
    pub(super) fn read_when_still(pid: u32) -> Result<Self> {
        let mut last = Self::read(pid)?;
        for _ in 0..STILL_WITHIN {
            thread::sleep(STILL_FOR);
            let now = Self::read(pid)?;
            if last.changed(&now).0 == 0 {
                return Ok(now);
            }
            last = now;
        }
        bail!("its memory changes without heapbpf");
    }

    pub(super) fn read(pid: u32) -> Result<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let mut contents = Vec::new();
        for mapping in compared(&maps) {
            let mut bytes = vec![0; usize::try_from(mapping.end - mapping.start)?];
            memory.read_exact_at(&mut bytes, mapping.start)?;
            contents.push((mapping, bytes));
        }
        Ok(Self(contents))
    }

    /// Number of bytes that have changed since, and the first places. Mappings of only one of both count as no change: their
    /// bytes are nobody's.
    pub(super) fn changed(&self, later: &Self) -> (usize, Vec<String>) {
        let (mut count, mut places) = (0, Vec::new());
        for (mapping, before) in &self.0 {
            // A mapping may have grown, or merged with one that is new.
            let covers = |other: &&(Mapping, Vec<u8>)| other.0.start <= mapping.start && other.0.end >= mapping.end;
            let Some((other, bytes)) = later.0.iter().find(covers) else { continue };
            let skipped = usize::try_from(mapping.start - other.start).unwrap_or(usize::MAX);
            let after = &bytes[skipped..][..before.len()];
            let mut changed = before.iter().zip(after).enumerate().filter(|(_, (before, after))| before != after);
            if let Some((first, _)) = changed.next() {
                let name = if mapping.name.is_empty() { "anonymous" } else { &mapping.name };
                let more = changed.count() + 1;
                places.push(format!("{more} bytes from {:#x} ({name}+{first:#x})", mapping.start + first as u64));
                count += more;
            }
        }
        (count, places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(start: u64, bytes: &[u8]) -> Memory {
        Memory(vec![(
            Mapping { is_writable: true, start, end: start + bytes.len() as u64, name: String::new() },
            bytes.to_vec(),
        )])
    }

    #[test]
    fn changed_bytes_are_counted_in_larger_mappings() {
        let before = memory(0x1000, &[1, 2, 3]);
        assert_eq!(before.changed(&memory(0x1000, &[1, 2, 3])).0, 0);
        assert_eq!(before.changed(&memory(0xfff, &[9, 1, 7, 8, 9])).0, 2);
        assert_eq!(before.changed(&memory(0x2000, &[9, 9, 9])).0, 0);
    }

    #[test]
    fn private_writable_mappings_are_compared() {
        let maps = "1000-2000 r-xp 0 00:01 7 /memfd:heapbpf-stubs (deleted)\n2000-3000 rw-p 00000000 00:00 0 \n\
            3000-4000 rw-p 00000000 00:00 0 \n7000-8000 r--p 0 00:00 0 /lib\n8000-9000 rw-s 0 00:00 0 /dev/zero\n\
            9000-a000 rw-p 0 00:00 0 [stack]\n";
        let compared: Vec<_> = compared(maps).iter().map(|mapping| mapping.start).collect();
        assert_eq!(compared, [0x3000, 0x9000], "neither the stubs' data nor what is read-only or shared");
    }
}
