//! Pages that have to be read. No page is faulted in, and untouched memory costs nothing, even terabytes.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::Pid;
use heapbpf_base::memory::Span;
use heapbpf_linux::known;
use heapbpf_linux::memory::page_bytes;
use heapbpf_linux::proc::maps::{Device, Region, RegionKind};
use heapbpf_linux::proc::mounts;
use heapbpf_linux::proc::process::entry_path;
use heapbpf_linux::process_memory::{self, Pages};
use rustix::fs::SeekFrom;

use super::process::CollectError;

/// Maximum size that is inspected page by page (before Linux 6.7): only shadow memory of sanitizers is as large.
const SLOW_BYTES_MAX: u64 = 1 << 40;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    /// Spans by rising address; adjacent spans are joined.
    pub spans: Vec<Span>,
    pub unread_bytes: u64,
}

impl Touched {
    pub(crate) fn of(pid: Pid, regions: &[Region]) -> Result<Self, CollectError> {
        Self::with(pid, regions, Source::Scan)
    }

    fn with(pid: Pid, regions: &[Region], mut source: Source) -> Result<Self, CollectError> {
        let failed = CollectError::refused(pid, "list the pages of");
        let pagemap = File::open(entry_path(pid, "pagemap")).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CollectError::Ended(pid),
            // Access is restricted by the mode of the file, not by the rules of ptrace.
            io::ErrorKind::PermissionDenied => CollectError::PagemapNotPermitted(pid),
            _ => failed(source),
        })?;
        let mut touched = Self::default();
        for region in regions {
            let Some(pages) = wanted(region) else { continue };
            if pages == Pages::All
                && let Some(found) = shared_data(pid, region)
            {
                found.into_iter().for_each(|found| touched.push(found));
                continue;
            }
            touched.add(&pagemap, region, pages, &mut source).map_err(&failed)?;
        }
        Ok(touched)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.spans.iter().map(|span| span.end.0 - span.start.0).sum()
    }

    fn add(&mut self, pagemap: &File, region: &Region, pages: Pages, source: &mut Source) -> io::Result<()> {
        let range = region.start.0..region.end.0;
        if *source == Source::Scan {
            match process_memory::scan_pages(pagemap, range.clone(), pages, &mut |found| self.push(found)) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
                    *source = Source::Pagemap;
                }
                result => return result,
            }
        }
        if region.size_bytes() > SLOW_BYTES_MAX {
            self.unread_bytes = self.unread_bytes.saturating_add(region.size_bytes());
            return Ok(());
        }
        process_memory::scan_entries(pagemap, range, pages, &mut |found| self.push(found))
    }

    fn push(&mut self, found: Range<u64>) {
        match self.spans.last_mut() {
            // A failed scan has reported these ranges before.
            Some(last) if found.end <= last.end.0 => {}
            Some(last) if found.start <= last.end.0 => last.end = TargetAddr(found.end),
            _ => self.spans.push(TargetAddr(found.start)..TargetAddr(found.end)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Pages are found by `PAGEMAP_SCAN` (Linux 6.7).
    Scan,
    Pagemap,
}

/// Selects the pages of a mapping that can contain pointers stored by the process; `None` for none.
fn wanted(region: &Region) -> Option<Pages> {
    // Code of files was not written by the process. Protected memory (guarded heaps, keys) may become accessible again.
    let is_file = matches!(region.kind, RegionKind::File { .. });
    let is_closed = !region.readable || region.executable && !region.writable;
    if is_closed && (is_file || region.shared) {
        return None;
    }
    match &region.kind {
        RegionKind::Kernel => None,
        RegionKind::File { path } if region.shared => (region.writable && is_memory(path)).then_some(Pages::All),
        // Device memory resembles private memory.
        RegionKind::File { path } if path.starts_with("/dev") && !is_memory(path) => None,
        RegionKind::File { .. } => Some(Pages::Anonymous),
        RegionKind::Anonymous { .. } | RegionKind::Brk | RegionKind::Stack if region.shared => {
            region.writable.then_some(Pages::All)
        }
        RegionKind::Anonymous { .. } | RegionKind::Brk | RegionKind::Stack => Some(Pages::Anonymous),
    }
}

fn is_memory(path: &Path) -> bool {
    const NAMES: [&str; 8] = [
        "/dev/shm/",
        "/dev/hugepages/",
        "/dev/zero",
        "/memfd:",
        "/SYSV",
        "/anon_hugepage",
        // These are kernel requests with user data that is returned on completion.
        "anon_inode:[io_uring]",
        "/[aio]",
    ];
    NAMES.iter().any(|name| path.as_os_str().as_encoded_bytes().starts_with(name.as_bytes()))
}

/// Maximum size of shared mappings that are inspected completely; of larger ones, as of databases, only pages that the process
/// has touched are.
const SHARED_BYTES_MAX: u64 = 64 << 20;

/// Ranges of a shared mapping that any process has written. A forked child has no page table entries for them until it accesses
/// them, but may have pointers stored in them. `None` where unknown or too large.
fn shared_data(pid: Pid, region: &Region) -> Option<Vec<Range<u64>>> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    let (start, end) = (region.start.0, region.end.0);
    if region.size_bytes() > SHARED_BYTES_MAX {
        return None;
    }
    let path = entry_path(pid, &format!("map_files/{start:x}-{end:x}"));
    if !mounts::is_local(pid, Device::of(&known::at(&path).ok()?)) {
        return None;
    }
    let file = File::open(path).ok()?;
    // Other file systems report data for a whole file, and reading holes would allocate pages.
    if rustix::fs::fstatfs(&file).ok()?.f_type.cast_unsigned() != TMPFS_MAGIC {
        return None;
    }
    let (mut at, last) = (region.offset.0, region.offset.0.checked_add(end - start)?);
    let mut found = Vec::new();
    while at < last {
        let data = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(_) => return None,
        };
        let hole = rustix::fs::seek(&file, SeekFrom::Hole(data)).ok()?;
        if data >= last || hole <= at {
            break;
        }
        let address = |offset: u64| start + (offset - region.offset.0);
        found.push(address(data)..address(hole.next_multiple_of(page_bytes()).min(last)));
        at = hole;
    }
    Some(found)
}

#[cfg(test)]
mod tests;
