//! Which pages of a process hold something of its own, told by the kernel without touching one of them.

#![expect(unsafe_code, reason = "no crate knows this request")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Which pages are asked for. Of those that hold nothing but the kernel's page of zeros, none is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// All that are in memory or swapped out.
    All,
    /// Without what is still as it stands in a file.
    Anonymous,
}

/// Tells of all such pages in a range of a process's memory (`PAGEMAP_SCAN`, Linux 6.7), by rising address. `pagemap` is its
/// `/proc/PID/pagemap`. Costs no more for memory that was never touched, of any size.
///
/// # Errors
///
/// `ENOTTY` or `EINVAL` where the kernel does not know the request, `ESRCH` when the process has ended.
pub(crate) fn scan(
    pagemap: &File,
    range: Range<u64>,
    pages: Pages,
    found: &mut dyn FnMut(Range<u64>),
) -> io::Result<()> {
    // What the kernel does not know yet makes it refuse: Linux 6.15 tells guards, which look like swapped pages before.
    match scan_without(pagemap, range.clone(), pages, ZEROS | GUARD, found) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => scan_without(pagemap, range, pages, ZEROS, found),
        result => result,
    }
}

fn scan_without(
    pagemap: &File,
    range: Range<u64>,
    pages: Pages,
    unwanted: u64,
    found: &mut dyn FnMut(Range<u64>),
) -> io::Result<()> {
    let unwanted = unwanted | if pages == Pages::Anonymous { FILE } else { 0 };
    let mut regions = [PageRegion::default(); 512];
    let mut start = range.start;
    while start < range.end {
        let mut question = Question {
            size: size_of::<Question>() as u64,
            start,
            end: range.end,
            answers: (&raw mut regions).expose_provenance() as u64,
            answer_count: regions.len() as u64,
            inverted: unwanted,
            all_of: unwanted,
            any_of: PRESENT | SWAPPED,
            told: unwanted,
            ..Question::default()
        };
        // SAFETY: the kernel reads and writes a `Question`, and writes at most as many answers as there is room for; both
        // live longer than the call.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut question) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        regions.iter().take(count).for_each(|region| found(region.start..region.end));
        if question.walk_end <= start {
            return Err(io::Error::other("PAGEMAP_SCAN makes no progress"));
        }
        start = question.walk_end;
    }
    Ok(())
}

/// `struct pm_scan_arg` (<https://github.com/torvalds/linux/blob/v6.7/include/uapi/linux/fs.h#L350-L393>).
#[derive(Default)]
#[repr(C)]
struct Question {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    answers: u64,
    answer_count: u64,
    pages_max: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    told: u64,
}

const _: () = assert!(size_of::<Question>() == 96);

/// `struct page_region`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610;
/// `PAGE_IS_*`.
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZEROS: u64 = 1 << 5;
const GUARD: u64 = 1 << 8;
