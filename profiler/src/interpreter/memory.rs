//! Memory of a target.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use heapbpf_base::ids::Pid;
use heapbpf_linux::proc::maps::{Region, RegionKind, regions};
use heapbpf_linux::proc::process::entry_path;
use heapbpf_linux::proc::stat::living_thread;
use heapbpf_linux::process_memory::{self, PageState};

/// Memory of a target.
pub(crate) trait Memory {
    /// Fills the buffer, or returns `None`.
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()>;

    fn bytes<const N: usize>(&self, address: u64) -> Option<[u8; N]>
    where
        Self: Sized,
    {
        let mut bytes = [0; N];
        self.fill(address, &mut bytes)?;
        Some(bytes)
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.fill(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    fn integer(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.fill(address, &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }

    /// `None` above the limit, too.
    fn range(&self, start: u64, end: u64, bytes_max: usize) -> Option<Vec<u8>> {
        let length = usize::try_from(end.checked_sub(start)?).ok().filter(|&length| length <= bytes_max)?;
        let mut bytes = vec![0; length];
        self.fill(start, &mut bytes)?;
        Some(bytes)
    }
}

/// Memory of a target of which only what is in memory is read: it is neither swapped in nor touched for the first time.
pub(crate) trait HeapMemory: Memory {
    /// The pages of a range, by address. `None` where that is not known.
    fn pages(&self, address: u64, length: u64) -> Option<Vec<PageState>>;

    /// Fills the buffer from pages that are known to be in memory.
    fn fill_pages(&self, address: u64, buffer: &mut [u8]) -> Option<()>;

    /// Whether anything is mapped at an address.
    fn is_mapped(&self, address: u64) -> bool;

    /// Fills the buffer with what is in memory, and with zeros where nothing was ever. `None` if something is swapped out.
    fn fill_present(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        let page_bytes = rustix::param::page_size() as u64;
        let end = address.checked_add(buffer.len() as u64)?;
        let mut at = address;
        for pages in self.pages(address, buffer.len() as u64)?.chunk_by(PartialEq::eq) {
            let behind = (at / page_bytes + pages.len() as u64).saturating_mul(page_bytes).min(end);
            let [from, to] = [at, behind].map(|it| usize::try_from(it - address).unwrap_or(usize::MAX));
            let part = buffer.get_mut(from..to)?;
            match pages[0] {
                PageState::Present => self.fill_pages(at, part)?,
                PageState::Absent => part.fill(0),
                PageState::Swapped => return None,
            }
            at = behind;
        }
        (at == end).then_some(())
    }

    /// Also reads constants of files that are not in memory yet, which names of types are.
    fn fill_from_files(&self, address: u64, buffer: &mut [u8]) -> Option<()>;
}

/// Memory of a process, as it was when this was opened: of a program that is executed later, nothing is read.
#[derive(Debug)]
pub(crate) struct PresentMemory {
    pagemap: File,
    /// Ranges with mappings, by address; adjacent ones are joined.
    mapped: Vec<Range<u64>>,
    /// Those of files that the process cannot write to, and has for itself: reading what it has not read yet changes nothing of its own.
    files: Vec<Range<u64>>,
    /// Reading this file copies no page that the process shares with others since a fork.
    memory: File,
}

impl PresentMemory {
    pub(crate) fn open(pid: Pid) -> io::Result<Self> {
        // A first thread that has exited before others has no memory any more.
        let pid = living_thread(pid).unwrap_or(pid);
        let open = |entry: &str| File::open(entry_path(pid, entry));
        Self::of(pid, open("pagemap")?, open("mem")?)
    }

    /// The memory of the same program, with its mappings of now.
    pub(crate) fn again(&self, pid: Pid) -> io::Result<Self> {
        Self::of(living_thread(pid).unwrap_or(pid), self.pagemap.try_clone()?, self.memory.try_clone()?)
    }

    fn of(pid: Pid, pagemap: File, memory: File) -> io::Result<Self> {
        let regions = regions(pid).map_err(io::Error::other)?;
        let is_constant = |region: &&Region| {
            matches!(region.kind, RegionKind::File { .. }) && region.readable && !region.writable && !region.shared
        };
        Ok(Self { pagemap, mapped: joined(regions.iter()), files: joined(regions.iter().filter(is_constant)), memory })
    }
}

impl Memory for PresentMemory {
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        let pages = self.pages(address, buffer.len() as u64)?;
        let is_present = pages.iter().all(|page| *page == PageState::Present);
        is_present.then(|| self.fill_pages(address, buffer))?
    }
}

impl HeapMemory for PresentMemory {
    fn fill_pages(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        self.memory.read_exact_at(buffer, address).ok()
    }

    fn is_mapped(&self, address: u64) -> bool {
        around(&self.mapped, address).is_some()
    }

    fn pages(&self, address: u64, length: u64) -> Option<Vec<PageState>> {
        process_memory::page_states(&self.pagemap, address..address.checked_add(length)?).ok()
    }

    fn fill_from_files(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        let end = address.checked_add(buffer.len() as u64)?;
        match around(&self.files, address).filter(|file| end <= file.end) {
            Some(_) => self.fill_pages(address, buffer),
            None => self.fill(address, buffer),
        }
    }
}

fn joined<'a>(regions: impl Iterator<Item = &'a Region>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for range in regions.map(|region| region.start.0..region.end.0) {
        match ranges.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => ranges.push(range),
        }
    }
    ranges
}

fn around(ranges: &[Range<u64>], address: u64) -> Option<&Range<u64>> {
    let behind = ranges.partition_point(|range| range.end <= address);
    ranges.get(behind).filter(|range| range.contains(&address))
}

impl Memory for &dyn HeapMemory {
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        (**self).fill(address, buffer)
    }
}

impl Memory for &dyn Memory {
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        (**self).fill(address, buffer)
    }
}

impl Memory for Pid {
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        let length = buffer.len();
        let read = process_memory::read(*self, &[(address, length)], buffer).ok()?;
        (read == length).then_some(())
    }
}
