//! Which pages of a process are resident, and their contents. Nothing is faulted in, and nothing is read back from swap.

use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::Pid;
use heapbpf_base::memory::{Memory, Span, joined};
use heapbpf_linux::proc::maps::{Region, RegionKind};
use heapbpf_linux::proc::process::entry_path;
use heapbpf_linux::proc::smaps::MappedMemory;
use heapbpf_linux::process_memory::{self, Pages};
use rustc_hash::FxHashMap;

const PAGE_LENGTH: usize = 4096;
const PAGE_BYTES: u64 = PAGE_LENGTH as u64;
/// Maximum number of runs of pages in one process: beyond it, the rest of its memory is not known by page.
const RUNS_MAX: usize = 1 << 18;
/// Maximum size of the mappings of one process for which eight bytes per page are read, where the kernel has no `PAGEMAP_SCAN`
/// (Linux 6.7).
const SLOW_BYTES_MAX: u64 = 8 << 30;

/// The resident pages of private memory that a process has written or may write.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResidentPages {
    /// Runs of pages by rising address; adjacent runs are joined.
    runs: Vec<Span>,
    /// Mappings, by rising address, whose pages are unknown.
    unknown: Vec<Span>,
}

impl ResidentPages {
    /// Finds the resident pages of mappings, which are by rising address.
    pub(crate) fn of(pid: Pid, mapped: &[MappedMemory]) -> Self {
        let mut pages = Self::default();
        let file = File::open(entry_path(pid, "pagemap")).ok();
        let mut slow_bytes = None;
        for memory in mapped.iter().filter(|memory| memory.rss_bytes > 0 && is_own(&memory.region)) {
            let span = memory.region.start..memory.region.end;
            // The pages of a file that the process has not written are resident, too, but need not stay so.
            let is_anonymous = memory.region.is_anonymous();
            if is_anonymous && memory.rss_bytes == memory.region.size_bytes() {
                pages.runs.push(span);
                continue;
            }
            let kind = if is_anonymous { Pages::Resident } else { Pages::Anonymous };
            let is_scanned = file.as_ref().is_some_and(|file| pages.scan(file, &span, kind, &mut slow_bytes).is_ok());
            if !is_scanned || pages.runs.len() > RUNS_MAX {
                pages.runs.retain(|run| run.end <= span.start);
                pages.unknown.push(span);
            }
        }
        pages.runs = joined(pages.runs);
        pages
    }

    /// Creates resident pages from known runs, for tests.
    #[cfg(test)]
    pub(crate) fn synthetic(runs: Vec<Span>, unknown: Vec<Span>) -> Self {
        Self { runs: joined(runs), unknown }
    }

    fn scan(&mut self, file: &File, span: &Span, pages: Pages, slow_bytes: &mut Option<u64>) -> io::Result<()> {
        let range = span.start.0..span.end.0;
        let mut found = |run: std::ops::Range<u64>| self.runs.push(TargetAddr(run.start)..TargetAddr(run.end));
        if slow_bytes.is_none() {
            match process_memory::scan_pages(file, range.clone(), pages, &mut found) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
                    *slow_bytes = Some(0);
                }
                result => return result,
            }
        }
        let read_bytes = slow_bytes.get_or_insert(0);
        *read_bytes = read_bytes.saturating_add(range.end - range.start);
        if *read_bytes > SLOW_BYTES_MAX {
            return Err(io::Error::other("too large to be read by page"));
        }
        process_memory::scan_entries(file, range, pages, &mut found)
    }

    /// Number of resident bytes of spans, which have to be sorted and without overlaps. `None` where pages are unknown.
    pub(crate) fn resident_bytes(&self, spans: &[Span]) -> Option<u64> {
        let mut sum = 0_u64;
        for span in spans {
            if overlapping(&self.unknown, span).next().is_some() {
                return None;
            }
            let parts = overlapping(&self.runs, span);
            let bytes = parts.map(|run| run.end.min(span.end).0.saturating_sub(run.start.max(span.start).0));
            sum = bytes.fold(sum, u64::saturating_add);
        }
        Some(sum)
    }

    /// Whether a page is resident. Where that is unknown, it may be.
    pub(crate) fn has(&self, page: TargetAddr) -> bool {
        let span = page..TargetAddr(page.0.saturating_add(1));
        [&self.runs, &self.unknown].into_iter().any(|spans| overlapping(spans, &span).next().is_some())
    }

    /// The pages within these mappings, which are by rising address.
    pub(crate) fn within(&self, mapped: &[MappedMemory]) -> Self {
        let spans: Vec<Span> = mapped.iter().map(|memory| memory.region.start..memory.region.end).collect();
        let inside = |of: &[Span]| -> Vec<Span> {
            let parts = spans.iter().flat_map(|span| {
                overlapping(of, span).map(move |run| run.start.max(span.start)..run.end.min(span.end))
            });
            joined(parts.collect())
        };
        Self { runs: inside(&self.runs), unknown: inside(&self.unknown) }
    }

    pub(crate) fn count(&self) -> usize {
        self.runs.len()
    }
}

fn is_own(region: &Region) -> bool {
    let is_file = matches!(region.kind, RegionKind::File { .. });
    !region.shared && (region.is_anonymous() || (is_file && region.readable && region.writable))
}

/// The sorted spans that overlap `with`.
fn overlapping<'a>(spans: &'a [Span], with: &Span) -> impl Iterator<Item = &'a Span> + use<'a> {
    let (start, end) = (with.start, with.end);
    let first = spans.partition_point(|span| span.end <= start);
    spans[first..].iter().take_while(move |span| span.start < end)
}

/// Maximum number of copied pages that are kept: beyond it, all are read again.
const KEPT_MAX: usize = 1 << 13;

type Page = Box<[u8; PAGE_LENGTH]>;

/// The memory of a running process: its contents change while they are read.
#[derive(Debug)]
pub(crate) struct RunningMemory<'a> {
    pid: Pid,
    pages: &'a ResidentPages,
    kept: Mutex<FxHashMap<u64, Option<Page>>>,
}

impl<'a> RunningMemory<'a> {
    pub(crate) fn new(pid: Pid, pages: &'a ResidentPages) -> Self {
        Self { pid, pages, kept: Mutex::default() }
    }

    fn read_directly(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            let range = (address.saturating_add(done as u64), rest.len());
            match process_memory::read(self.pid, &[range], rest) {
                Ok(count) if count > 0 => done += count,
                _ => break,
            }
        }
        done
    }

    /// Reads the rest of a page from an address on.
    fn read_kept(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        let first = address / PAGE_BYTES * PAGE_BYTES;
        let page = kept.entry(first).or_insert_with(|| {
            let mut page: Page = Box::new([0; PAGE_LENGTH]);
            (self.read_directly(first, page.as_mut_slice()) == page.len()).then_some(page)
        });
        let skip = usize::try_from(address - first).unwrap_or(usize::MAX);
        let rest = page.as_ref().and_then(|page| page.get(skip..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        count
    }
}

impl Memory for RunningMemory<'_> {
    fn present(&self, range: Span) -> Vec<Span> {
        let parts = overlapping(&self.pages.runs, &range);
        parts.map(|run| run.start.max(range.start)..run.end.min(range.end)).collect()
    }

    fn read(&self, address: TargetAddr, buffer: &mut [u8]) -> usize {
        let one = address..TargetAddr(address.0.saturating_add(1));
        let Some(run) = overlapping(&self.pages.runs, &one).next() else { return 0 };
        let there = usize::try_from(run.end.0 - address.0).unwrap_or(usize::MAX);
        let count = buffer.len().min(there);
        let buffer = &mut buffer[..count];
        if buffer.len() as u64 >= PAGE_BYTES {
            return self.read_directly(address.0, buffer);
        }
        let mut done = 0;
        while done < buffer.len() {
            match self.read_kept(address.0.saturating_add(done as u64), &mut buffer[done..]) {
                0 => break,
                count => done += count,
            }
        }
        done
    }

    fn slice(&self, _address: TargetAddr, _length: usize) -> Option<&[u8]> {
        None
    }
}
