//! Reads memory of another process, finds which of its pages hold data, and whether another one uses it.

#![expect(unsafe_code, reason = "rustix has neither process_vm_readv nor kcmp nor PAGEMAP_SCAN")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use heapbpf_base::ids::{Pid, Tid};

use super::proc::process::entry_path;
use super::proc::stat;

/// An address of no process.
const NOWHERE: u64 = 1 << 63;

/// Maximum number of ranges in one call (`UIO_MAXIOV`).
pub const RANGES_MAX: usize = 1024;

/// Copies ranges (address, length) one after the other, and returns the number of bytes. Stops at the first unreadable
/// byte. Errors: `EFAULT` if that is the first one, `ESRCH`, `EPERM`, `EINVAL` with more than [`RANGES_MAX`] ranges.
pub fn read(pid: Pid, ranges: &[(u64, usize)], buffer: &mut [u8]) -> io::Result<usize> {
    match read_by(pid, ranges, buffer) {
        // A first thread that has exited before others has no memory any more.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => match stat::living_thread(pid) {
            Some(other) if other != pid => read_by(other, ranges, buffer),
            _ => Err(error),
        },
        read => read,
    }
}

/// Whether a process still has memory: one that has exited has none.
pub fn has_memory(pid: Pid) -> bool {
    let read = read(pid, &[(NOWHERE, 1)], &mut [0]);
    read.err().and_then(|error| error.raw_os_error()) != Some(libc::ESRCH)
}

/// Waits until a change of a process's mappings that has begun is complete. Since Linux 6.17, `maps` shows the mappings of before in the
/// meantime; reading memory takes their lock (`process_vm_rw_single_vec` in mm/process_vm_access.c), also where none can be.
pub fn wait_for_mappings(pid: Pid) {
    let _ = read(pid, &[(NOWHERE, 1)], &mut [0]);
}

fn read_by(pid: Pid, ranges: &[(u64, usize)], buffer: &mut [u8]) -> io::Result<usize> {
    let pagemap = File::open(entry_path(pid, "pagemap")).ok();
    let shared: Vec<Vec<bool>> =
        pagemap.iter().flat_map(|pagemap| ranges.iter().map(|range| shared_pages(pagemap, *range))).collect();
    if shared.iter().flatten().any(|is_shared| *is_shared) {
        return read_by_parts(pid, ranges, &shared, buffer);
    }
    read_at_once(pid, ranges, buffer)
}

/// Which pages of a range are anonymous memory that another process has, too, since a fork.
///
/// `process_vm_readv` pins the pages that it reads, and since Linux 5.19 a process gets copies of such pages for that
/// (`gup_must_unshare` in mm/internal.h): reading the heap of a server's worker would double its memory. `/proc/PID/mem` does not pin.
fn shared_pages(pagemap: &File, (address, length): (u64, usize)) -> Vec<bool> {
    let range = address.checked_add(length as u64).map_or(0..0, |end| address..end);
    entries(pagemap, range).map(|entries| entries.into_iter().map(is_shared_anonymous).collect()).unwrap_or_default()
}

/// See Documentation/admin-guide/mm/pagemap.rst: in memory, not of a file, and not mapped exclusively.
fn is_shared_anonymous(entry: u64) -> bool {
    const MASK: u64 = 1 << 63 | 1 << 61 | 1 << 56;
    entry & MASK == 1 << 63
}

/// Reads ranges of which some pages are shared since a fork: these by `/proc/PID/mem`.
fn read_by_parts(pid: Pid, ranges: &[(u64, usize)], shared: &[Vec<bool>], buffer: &mut [u8]) -> io::Result<usize> {
    let page_bytes = rustix::param::page_size() as u64;
    let memory = File::open(entry_path(pid, "mem"))?;
    let mut done = 0;
    for (&(address, length), shared) in ranges.iter().zip(shared) {
        let mut at = address;
        let end = address.saturating_add(length as u64);
        let runs = shared.chunk_by(PartialEq::eq).map(|run| (run[0], run.len() as u64)).chain([(false, u64::MAX)]);
        for (is_shared, pages) in runs {
            let behind = (at / page_bytes).saturating_add(pages).saturating_mul(page_bytes).min(end);
            let part_bytes = usize::try_from(behind.saturating_sub(at)).map_err(io::Error::other)?;
            let room = buffer.len() - done;
            let part = &mut buffer[done..done + part_bytes.min(room)];
            let read = match is_shared {
                _ if part.is_empty() => Ok(0),
                true => memory.read_at(part, at),
                false => read_at_once(pid, &[(at, part.len())], part),
            };
            match read {
                Ok(bytes) if bytes == part.len() => done += bytes,
                Ok(bytes) if done + bytes > 0 => return Ok(done + bytes),
                Err(_) if done > 0 => return Ok(done),
                Ok(_) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
                Err(error) => return Err(error),
            }
            at = behind;
        }
    }
    Ok(done)
}

fn read_at_once(pid: Pid, ranges: &[(u64, usize)], buffer: &mut [u8]) -> io::Result<usize> {
    let raw_pid = libc::pid_t::try_from(pid.0).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let remote: Vec<libc::iovec> = ranges.iter().map(|&(address, length)| remote_range(address, length)).collect();
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let count = libc::c_ulong::try_from(remote.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes only to `local`, which is a buffer that is borrowed mutably; `remote` are addresses of
    // another process, which are only read, and checked by the kernel.
    let copied = unsafe { libc::process_vm_readv(raw_pid, &raw const local, 1, remote.as_ptr(), count, 0) };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// Reads words at many addresses with few system calls; `None` for addresses that are not mapped.
pub fn read_words(pid: Pid, addresses: &[u64]) -> Vec<Option<u64>> {
    let mut words = Vec::with_capacity(addresses.len());
    while words.len() < addresses.len() {
        let rest = &addresses[words.len()..];
        let ranges: Vec<(u64, usize)> = rest.iter().take(RANGES_MAX).map(|&address| (address, 8)).collect();
        let mut bytes = vec![0; ranges.len() * 8];
        let read = read(pid, &ranges, &mut bytes).unwrap_or(0);
        let (complete, _) = bytes[..read].as_chunks::<8>();
        words.extend(complete.iter().map(|word| Some(u64::from_ne_bytes(*word))));
        if complete.len() < ranges.len() {
            words.push(None);
        }
    }
    words
}

/// Whether two processes use the same memory, as a child of `vfork` uses that of its parent. False where `kcmp(2)` is missing or not
/// permitted.
pub fn share_memory(first: Pid, second: Pid) -> bool {
    /// Kind of resource `KCMP_VM` in include/uapi/linux/kcmp.h.
    const MEMORY: libc::c_int = 1;
    let [first, second] = [first, second].map(|pid| stat::living_thread(pid).unwrap_or(pid));
    // SAFETY: it takes numbers, and changes nothing.
    unsafe { libc::syscall(libc::SYS_kcmp, first.0, second.0, MEMORY, 0_u64, 0_u64) == 0 }
}

/// Copies memory, also `PROT_NONE` memory. Fails where nothing is mapped, or with `proc_mem.force_override=never`.
pub fn read_protected(pid: Pid, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    File::open(entry_path(pid, "mem"))?.read_at(buffer, address)
}

/// Whether a process has mapped the page of an address from a file, so that the kernel has it in memory.
pub fn has_file_page(pid: Pid, address: u64) -> io::Result<bool> {
    const PRESENT_OF_FILE: u64 = 1 << 63 | 1 << 61;
    Ok(pagemap_entry(pid, address)? & PRESENT_OF_FILE == PRESENT_OF_FILE)
}

/// Whether reading an address waits for no other file system than that of the swap.
pub fn is_in_memory(pid: Pid, address: u64) -> io::Result<bool> {
    const PRESENT_OR_SWAPPED: u64 = 1 << 63 | 1 << 62;
    Ok(pagemap_entry(pid, address)? & PRESENT_OR_SWAPPED != 0)
}

/// Where the content of a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// In memory: reading it waits for nothing, and changes nothing of the process.
    Present,
    Swapped,
    /// Nowhere, or in a file. Anonymous memory is zero there.
    Absent,
}

/// The states of the pages of a range, by address. `pagemap` is that file of the process. See
/// Documentation/admin-guide/mm/pagemap.rst.
pub fn page_states(pagemap: &File, range: Range<u64>) -> io::Result<Vec<PageState>> {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    let state = |entry: u64| match entry {
        entry if entry & PRESENT != 0 => PageState::Present,
        entry if entry & SWAPPED != 0 => PageState::Swapped,
        _ => PageState::Absent,
    };
    Ok(entries(pagemap, range)?.into_iter().map(state).collect())
}

/// Entries of the pages of a range.
fn entries(pagemap: &File, range: Range<u64>) -> io::Result<Vec<u64>> {
    let page_bytes = rustix::param::page_size() as u64;
    let (first, behind) = (range.start / page_bytes, range.end.div_ceil(page_bytes));
    let count = usize::try_from(behind.saturating_sub(first)).map_err(io::Error::other)?;
    let mut bytes = vec![0; count * 8];
    pagemap.read_exact_at(&mut bytes, first * 8)?;
    Ok(bytes.as_chunks().0.iter().map(|entry| u64::from_ne_bytes(*entry)).collect())
}

/// Entry of a page. See Documentation/admin-guide/mm/pagemap.rst.
fn pagemap_entry(pid: Pid, address: u64) -> io::Result<u64> {
    let mut entry = [0; 8];
    let at = address / rustix::param::page_size() as u64 * 8;
    File::open(entry_path(pid, "pagemap"))?.read_exact_at(&mut entry, at)?;
    Ok(u64::from_ne_bytes(entry))
}

/// The list of robust mutexes that a thread has registered, which is a part of its control block in glibc. `None` where it has
/// none, or where the kernel does not permit reading it.
pub fn robust_list(tid: Tid) -> Option<u64> {
    let (mut head, mut size) = (0_u64, 0_usize);
    // SAFETY: the kernel writes a pointer and a size to the two variables, which outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, tid.0, &raw mut head, &raw mut size) };
    (result == 0 && head != 0).then_some(head)
}

fn remote_range(address: u64, length: usize) -> libc::iovec {
    // Addresses have 64 bits in both processes.
    let base = std::ptr::without_provenance_mut(usize::try_from(address).unwrap_or(usize::MAX));
    libc::iovec { iov_base: base, iov_len: length }
}

/// Pages to find. Pages that map the kernel's zero page are never included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// All pages in memory or swapped out.
    All,
    /// All pages without those that are unmodified file contents.
    Anonymous,
    /// All pages in memory, without pages that are swapped out.
    Resident,
    /// Anonymous pages that one entry of the page table maps together: huge pages. Only [`scan_pages`] finds them.
    Huge,
}

/// Passes all pages of a kind to `found`, by rising address (`PAGEMAP_SCAN`, Linux 6.7). Memory never touched costs nothing.
/// Errors: `ENOTTY` or `EINVAL` where the kernel lacks the request, `ESRCH` when the process has exited.
pub fn scan_pages(
    pagemap: &File,
    range: Range<u64>,
    pages: Pages,
    found: &mut dyn FnMut(Range<u64>),
) -> io::Result<()> {
    // The kernel refuses unknown categories. Linux 6.15 reports guard pages, which look like swapped pages before.
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
    let unwanted = unwanted | if matches!(pages, Pages::Anonymous | Pages::Huge) { FILE } else { 0 };
    let mut regions = [PageRegion::default(); 512];
    let mut start = range.start;
    while start < range.end {
        let mut request = ScanRequest {
            size: size_of::<ScanRequest>() as u64,
            start,
            end: range.end,
            regions: (&raw mut regions).expose_provenance() as u64,
            region_count: regions.len() as u64,
            inverted: unwanted,
            all_of: unwanted,
            any_of: match pages {
                Pages::Resident => PRESENT,
                Pages::Huge => HUGE,
                Pages::All | Pages::Anonymous => PRESENT | SWAPPED,
            },
            reported: unwanted,
            ..ScanRequest::default()
        };
        // SAFETY: the kernel reads and writes a `ScanRequest`, and writes at most `region_count` regions; both outlive
        // the call.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut request) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        regions.iter().take(count).for_each(|region| found(region.start..region.end));
        if request.walk_end <= start {
            return Err(io::Error::other("PAGEMAP_SCAN makes no progress"));
        }
        start = request.walk_end;
    }
    Ok(())
}

/// Passes all pages of a kind to `found`, by rising address, on kernels without `PAGEMAP_SCAN`: reads eight bytes for each mapped
/// page. Pages that map the kernel's zero page are included. See Documentation/admin-guide/mm/pagemap.rst.
pub fn scan_entries(
    pagemap: &File,
    range: Range<u64>,
    pages: Pages,
    found: &mut dyn FnMut(Range<u64>),
) -> io::Result<()> {
    let page_bytes = rustix::param::page_size() as u64;
    let mut words = vec![0_u8; 1 << 19];
    let mut page = range.start / page_bytes;
    let end = range.end.div_ceil(page_bytes);
    while page < end {
        let count = usize::try_from(end - page).unwrap_or(usize::MAX).min(words.len() / 8);
        let read = pagemap.read_at(&mut words[..count * 8], page.saturating_mul(8))?;
        if read < 8 {
            // The range ends after the last address of user processes.
            return Ok(());
        }
        let mut start = None;
        for (index, word) in (page..).zip(words[..read].as_chunks().0) {
            match (start, is_wanted(u64::from_le_bytes(*word), pages)) {
                (None, true) => start = Some(index),
                (Some(first), false) => {
                    found(first * page_bytes..index * page_bytes);
                    start = None;
                }
                _ => {}
            }
        }
        page += (read / 8) as u64;
        if let Some(first) = start {
            found(first * page_bytes..page * page_bytes);
        }
    }
    Ok(())
}

fn is_wanted(entry: u64, pages: Pages) -> bool {
    const IN_MEMORY: u64 = 1 << 63;
    const IN_SWAP: u64 = 1 << 62;
    const FILE_OR_SHARED: u64 = 1 << 61;
    const GUARD: u64 = 1 << 58;
    let is_there = entry & if pages == Pages::Resident { IN_MEMORY } else { IN_MEMORY | IN_SWAP } != 0;
    let is_own = pages != Pages::Anonymous || entry & FILE_OR_SHARED == 0;
    is_there && entry & GUARD == 0 && is_own && pages != Pages::Huge
}

/// Request `struct pm_scan_arg` (<https://github.com/torvalds/linux/blob/v6.7/include/uapi/linux/fs.h#L350-L393>).
#[derive(Default)]
#[repr(C)]
struct ScanRequest {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    region_count: u64,
    pages_max: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    reported: u64,
}

const _: () = assert!(size_of::<ScanRequest>() == 96);

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// Number of the request: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610;
/// Categories of pages (`PAGE_IS_*`).
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZEROS: u64 = 1 << 5;
const HUGE: u64 = 1 << 6;
const GUARD: u64 = 1 << 8;

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use heapbpf_base::testing::Workshop;

    use super::*;

    /// A parent fills 64 pages, and forks a child, which changes every fourth one.
    const FORKING: &str = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <unistd.h>
        int main(void) {
            char *pages = aligned_alloc(4096, 64 * 4096);
            for (int page = 0; page < 64; page++) memset(pages + page * 4096, page + 1, 4096);
            if (fork()) return getchar() && 0;
            for (int page = 0; page < 64; page += 4) pages[page * 4096] = 100;
            printf("%d %lu\n", getpid(), (unsigned long) pages);
            fflush(stdout);
            return getchar() && 0;
        }
    "#;

    #[test]
    fn reading_a_forked_child_copies_none_of_its_pages() {
        let workshop = Workshop::new();
        let program = workshop.compile("gcc", "forking.c", FORKING, &["-O1"]);
        let mut parent =
            Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it was compiled");
        let mut line = String::new();
        BufReader::new(parent.stdout.take().expect("a pipe")).read_line(&mut line).expect("it prints a line");
        let (pid, start) = line.trim().split_once(' ').expect("two numbers");
        let (pid, start) = (Pid(pid.parse().expect("a number")), start.parse::<u64>().expect("a number"));
        let pagemap = File::open(entry_path(pid, "pagemap")).expect("it runs");
        let states = || entries(&pagemap, start..start + 64 * 4096).expect("it is mapped");
        let before = states();
        assert_eq!(before.iter().filter(|entry| is_shared_anonymous(**entry)).count(), 48);
        let mut buffer = vec![0; 64 * 4096 - 100];
        let split = [(start + 50, 100_000), (start + 50 + 100_000, buffer.len() - 100_000)];
        assert_eq!(read(pid, &split, &mut buffer).expect("it is mapped"), buffer.len());
        let mut expected: Vec<u8> = (0..64_u8).flat_map(|page| [page + 1; 4096]).collect();
        expected.iter_mut().step_by(4 * 4096).for_each(|byte| *byte = 100);
        assert!(buffer == expected[50..64 * 4096 - 50], "other bytes were read");
        assert_eq!(
            read_words(pid, &[start, start + 4096, 8]),
            [Some(0x0101_0101_0101_0164), Some(u64::MAX / 255 * 2), None]
        );
        assert_eq!(states(), before, "the kernel has copied pages");
        // Both end with their input.
        drop(parent.stdin.take());
        parent.wait().expect("it is ours");
    }

    #[test]
    fn reads_end_at_the_first_unreadable_byte() {
        let own = Pid(std::process::id());
        let bytes = [7_u8; 16];
        let mut buffer = [0; 24];
        let ranges = [(bytes.as_ptr().expose_provenance() as u64, 16), (NOWHERE, 8)];
        assert_eq!(read(own, &ranges, &mut buffer).expect("the first range is ours"), 16);
        assert_eq!(read(own, &[(8, 8)], &mut [0; 8]).map_err(|error| error.raw_os_error()), Err(Some(libc::EFAULT)));
    }
}
