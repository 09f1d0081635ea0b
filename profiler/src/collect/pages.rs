//! Which pages of a process have to be read: those that it has written to, of mappings that can hold pointers. Nothing is made
//! present by asking, and memory that was reserved and never touched costs nothing, terabytes of it neither.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::SeekFrom;

use super::{CollectError, Span};
use crate::address::TargetAddr;
use crate::ids::Pid;
use crate::linux::page_scan::{self, Pages};
use crate::linux::proc::regions::{Region, RegionKind};

/// Bytes of a page.
pub(super) const PAGE_BYTES: u64 = 4096;

/// A mapping of more bytes is not looked through page by page where the kernel has no faster way (before Linux 6.7): only
/// sanitizers' shadows are as large.
const SLOW_BYTES_MAX: u64 = 1 << 40;

/// Pages of a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    /// By rising address; neighbours are joined.
    pub spans: Vec<Span>,
    /// Bytes of mappings that could not be looked through.
    pub unread_bytes: u64,
}

impl Touched {
    /// What these regions of a process hold.
    ///
    /// # Errors
    ///
    /// When the process has ended, or the kernel does not tell.
    pub(crate) fn of(pid: Pid, regions: &[Region]) -> Result<Self, CollectError> {
        Self::with(pid, regions, Way::Scan)
    }

    fn with(pid: Pid, regions: &[Region], mut way: Way) -> Result<Self, CollectError> {
        let failed = CollectError::refused(pid, "list the pages of");
        let pagemap = File::open(format!("/proc/{pid}/pagemap")).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CollectError::Ended(pid),
            // Not by ptrace's rules, but by the file's mode.
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
            touched.add(&pagemap, region, pages, &mut way).map_err(&failed)?;
        }
        Ok(touched)
    }

    /// How many bytes they hold.
    pub(crate) fn bytes(&self) -> u64 {
        self.spans.iter().map(|span| span.end.0 - span.start.0).sum()
    }

    fn add(&mut self, pagemap: &File, region: &Region, pages: Pages, way: &mut Way) -> io::Result<()> {
        let range = region.start.0..region.end.0;
        if *way == Way::Scan {
            match page_scan::scan(pagemap, range.clone(), pages, &mut |found| self.push(found)) {
                // The first answer of a kernel that does not know the question.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => *way = Way::Entries,
                result => return result,
            }
        }
        if region.size_bytes() > SLOW_BYTES_MAX {
            self.unread_bytes = self.unread_bytes.saturating_add(region.size_bytes());
            return Ok(());
        }
        entries(pagemap, range, pages, &mut |found| self.push(found))
    }

    fn push(&mut self, found: Range<u64>) {
        match self.spans.last_mut() {
            // What was told before a way failed is not told twice.
            Some(last) if found.end <= last.end.0 => {}
            Some(last) if found.start <= last.end.0 => last.end = TargetAddr(found.end),
            _ => self.spans.push(TargetAddr(found.start)..TargetAddr(found.end)),
        }
    }
}

/// How the kernel is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// For ranges (Linux 6.7).
    Scan,
    /// For each page.
    Entries,
}

/// Which pages of a mapping can hold pointers to heap blocks that the process has put there; `None` for none.
fn wanted(region: &Region) -> Option<Pages> {
    // Code of files was not written by the process. Made code has pointers among its constants; memory that is closed for now (guarded heaps,
    // keys of cryptography) is opened again.
    let is_file = matches!(region.kind, RegionKind::File { .. });
    let is_closed = !region.readable || region.executable && !region.writable;
    if is_closed && (is_file || region.shared) {
        return None;
    }
    match &region.kind {
        RegionKind::Kernel => None,
        RegionKind::File { path } if region.shared => (region.writable && is_memory(path)).then_some(Pages::All),
        // Devices' memory looks as if it were the process's own.
        RegionKind::File { path } if path.starts_with("/dev") && !is_memory(path) => None,
        RegionKind::File { .. } => Some(Pages::Anonymous),
        RegionKind::Anonymous { .. } | RegionKind::Brk | RegionKind::Stack if region.shared => {
            region.writable.then_some(Pages::All)
        }
        RegionKind::Anonymous { .. } | RegionKind::Brk | RegionKind::Stack => Some(Pages::Anonymous),
    }
}

/// Whether the kernel calls memory without a file on a disk so.
fn is_memory(path: &Path) -> bool {
    const NAMES: [&str; 8] = [
        "/dev/shm/",
        "/dev/hugepages/",
        "/dev/zero",
        "/memfd:",
        "/SYSV",
        "/anon_hugepage",
        // Requests to the kernel, with words that it hands back when they are done.
        "anon_inode:[io_uring]",
        "/[aio]",
    ];
    NAMES.iter().any(|name| path.as_os_str().as_encoded_bytes().starts_with(name.as_bytes()))
}

/// Shared memory of fewer bytes is looked through as a whole. Of larger mappings, as databases have, only what the process has touched.
const SHARED_BYTES_MAX: u64 = 64 << 20;

/// All that was ever written to shared memory, by whomever: after a fork, a child has none of its pages until it asks for them, and pointers that
/// were put there before are its own as well. `None` where that is not to be told, or is too much.
fn shared_data(pid: Pid, region: &Region) -> Option<Vec<Range<u64>>> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    let (start, end) = (region.start.0, region.end.0);
    if region.size_bytes() > SHARED_BYTES_MAX {
        return None;
    }
    let file = File::open(format!("/proc/{pid}/map_files/{start:x}-{end:x}")).ok()?;
    // Others say of all of a file that it has data, and would make pages of what has none.
    if rustix::fs::fstatfs(&file).ok()?.f_type.cast_unsigned() != TMPFS_MAGIC {
        return None;
    }
    let (mut at, last) = (region.offset.0, region.offset.0.checked_add(end - start)?);
    let mut found = Vec::new();
    while at < last {
        let data = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing more.
            Err(rustix::io::Errno::NXIO) => break,
            Err(_) => return None,
        };
        let hole = rustix::fs::seek(&file, SeekFrom::Hole(data)).ok()?;
        if data >= last || hole <= at {
            break;
        }
        let address = |offset: u64| start + (offset - region.offset.0);
        found.push(address(data)..address(hole.next_multiple_of(PAGE_BYTES).min(last)));
        at = hole;
    }
    Some(found)
}

/// Asks for every page, a word each (<https://github.com/torvalds/linux/blob/v6.12/Documentation/admin-guide/mm/pagemap.rst>).
fn entries(pagemap: &File, range: Range<u64>, pages: Pages, found: &mut dyn FnMut(Range<u64>)) -> io::Result<()> {
    let mut words = vec![0_u8; 1 << 19];
    let mut page = range.start / PAGE_BYTES;
    let end = range.end.div_ceil(PAGE_BYTES);
    while page < end {
        let count = usize::try_from(end - page).unwrap_or(usize::MAX).min(words.len() / 8);
        let read = pagemap.read_at(&mut words[..count * 8], page.saturating_mul(8))?;
        if read < 8 {
            // Behind the last address that a process can have.
            return Ok(());
        }
        let mut start = None;
        for (index, word) in (page..).zip(words[..read].as_chunks().0) {
            match (start, holds(u64::from_le_bytes(*word), pages)) {
                (None, true) => start = Some(index),
                (Some(first), false) => {
                    found(first * PAGE_BYTES..index * PAGE_BYTES);
                    start = None;
                }
                _ => {}
            }
        }
        page += (read / 8) as u64;
        if let Some(first) = start {
            found(first * PAGE_BYTES..page * PAGE_BYTES);
        }
    }
    Ok(())
}

fn holds(entry: u64, pages: Pages) -> bool {
    const PRESENT_OR_SWAPPED: u64 = 1 << 63 | 1 << 62;
    const FILE_OR_SHARED: u64 = 1 << 61;
    const GUARD: u64 = 1 << 58;
    let own = pages == Pages::All || entry & FILE_OR_SHARED == 0;
    entry & PRESENT_OR_SWAPPED != 0 && entry & GUARD == 0 && own
}

#[cfg(test)]
mod tests;
