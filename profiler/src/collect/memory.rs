//! Memory of a process: copied into one buffer by several threads, or read on demand from a fork.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::Pid;
use heapbpf_base::memory::{Memory, Span, joined, without};
use heapbpf_linux::memory::OomPreference;
use heapbpf_linux::proc::ProcError;
use heapbpf_linux::proc::maps::{Region, region_of, regions};
use heapbpf_linux::proc::process::entry_path;
use heapbpf_linux::{memory, process_memory};
use memmap2::MmapMut;
use profiler_common::limits::PAGE_BYTES;

use super::process::{CollectError, ForkError, ProcessCopy, StopLimit};

/// Maximum number of copying threads: they wait for memory more than for the CPU.
const THREADS_MAX: usize = 4;

const JOB_BYTES: usize = 4 << 20;

const PIECE_BYTES: u64 = 16 << 10;

const PIECES: usize = 512;

const REGIONS_MAX: usize = 1 << 20;

/// Spans that overlap a range; `spans` are in rising order of addresses, without overlaps.
fn between(spans: &[Span], start: TargetAddr, end: TargetAddr) -> impl Iterator<Item = &Span> {
    let first = spans.partition_point(|span| span.end <= start);
    spans[first..].iter().take_while(move |span| span.start < end)
}

fn present(spans: &[Span], range: &Span) -> Vec<Span> {
    let parts = between(spans, range.start, range.end);
    parts.map(|part| part.start.max(range.start)..part.end.min(range.end)).collect()
}

fn around(spans: &[Span], address: TargetAddr) -> Option<&Span> {
    between(spans, address, TargetAddr(address.0.saturating_add(1))).next()
}

/// For copies of at most this size, free memory that was inquired lately counts: that takes reads of several files.
const SMALL_BYTES: u64 = 16 << 20;
const LATELY: Duration = Duration::from_millis(250);

/// Maximum size of a copy by the memory that is free now, or was lately if the copy is small.
fn allowed_bytes(needed_bytes: u64) -> u64 {
    static LATEST: Mutex<Option<(Instant, u64)>> = Mutex::new(None);
    let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((inquired, allowed)) = *latest
        && needed_bytes <= SMALL_BYTES
        && inquired.elapsed() < LATELY
    {
        return allowed;
    }
    let free = [memory::available_bytes(), memory::available_in_cgroup_bytes()].into_iter().flatten().min();
    let allowed = free.map_or(u64::MAX, |bytes| bytes / 4 * 3);
    *latest = Some((Instant::now(), allowed));
    allowed
}

#[derive(Debug)]
pub(crate) struct Reserved {
    buffer: MmapMut,
    /// Makes the OOM killer choose this process, and not the target, if the kernel's estimate of free memory is too high.
    preference: OomPreference,
    allowed_bytes: u64,
}

impl Reserved {
    /// Reserves memory for a copy. `bytes` is the present size; adds space for growth. Takes half a second per GiB, so call it
    /// before the stop. Fails above three quarters of the available memory, of which the analysis needs a part as well.
    pub(crate) fn of(pid: Pid, bytes: u64) -> Result<Self, CollectError> {
        let mut reserved = Self::empty(pid, bytes, allowed_bytes(bytes))?;
        memory::prepare(&mut reserved.buffer, usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(reserved)
    }

    fn empty(pid: Pid, bytes: u64, allowed_bytes: u64) -> Result<Self, CollectError> {
        let too_large = CollectError::TooLarge { pid, needed_bytes: bytes, allowed_bytes };
        if bytes > allowed_bytes {
            return Err(too_large);
        }
        // Address space costs nothing, and allows the process to grow until it is stopped.
        let length = bytes.saturating_add(bytes / 2).saturating_add(64 << 20);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let buffer = memory::buffer(length).map_err(|_| too_large)?;
        Ok(Self { buffer, preference: OomPreference::raise(), allowed_bytes })
    }
}

#[derive(Debug)]
pub(crate) struct Copy {
    buffer: MmapMut,
    /// Preference of the OOM killer, which is lowered only after the buffer has been freed.
    _preference: OomPreference,
    pieces: Vec<Piece>,
    /// Readable parts of the pieces, by rising address; adjacent spans are joined.
    spans: Vec<Span>,
    pub unread_bytes: u64,
}

/// A requested range. Pieces are in rising order of addresses, also in the buffer; adjacent ones are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    start: u64,
    end: u64,
    offset: usize,
}

impl Copy {
    /// Copies `spans`, which are in rising order of addresses, without overlaps. Fails if the process has exited, is unreadable,
    /// or grew too much, and when the time is up.
    pub(crate) fn take(
        pid: Pid,
        spans: &[Span],
        reserved: Reserved,
        limit: Option<StopLimit>,
    ) -> Result<Self, CollectError> {
        let pieces = laid_out(spans);
        let bytes = pieces.last().map_or(0, |last| last.offset + length(last));
        let Reserved { mut buffer, preference, allowed_bytes } = if bytes > reserved.buffer.len() {
            Reserved::empty(pid, bytes as u64, reserved.allowed_bytes)?
        } else {
            reserved
        };
        if bytes as u64 > allowed_bytes {
            return Err(CollectError::TooLarge { pid, needed_bytes: bytes as u64, allowed_bytes });
        }
        let unread = copy_all(pid, jobs(&pieces, &mut buffer[..bytes]), limit)?;
        let unread_bytes = unread.iter().map(|span| span.end.0 - span.start.0).sum();
        Ok(Self {
            buffer,
            _preference: preference,
            pieces,
            spans: without(joined(spans.to_vec()), &joined(unread)),
            unread_bytes,
        })
    }
}

/// Length of a piece, which fits because the buffer is in this process's memory.
fn length(piece: &Piece) -> usize {
    usize::try_from(piece.end - piece.start).unwrap_or(usize::MAX)
}

fn laid_out(spans: &[Span]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::with_capacity(spans.len());
    let mut offset = 0_usize;
    for span in spans {
        let piece = Piece { start: span.start.0, end: span.end.0.max(span.start.0), offset };
        offset = offset.saturating_add(length(&piece));
        match pieces.last_mut() {
            Some(last) if last.end == piece.start => last.end = piece.end,
            _ => pieces.push(piece),
        }
    }
    pieces
}

/// Ranges to copy into a part of the buffer, one after the other.
struct Job<'a> {
    ranges: Vec<(u64, usize)>,
    buffer: &'a mut [u8],
}

fn jobs<'a>(pieces: &[Piece], mut buffer: &'a mut [u8]) -> VecDeque<Job<'a>> {
    let mut jobs = VecDeque::new();
    let (mut ranges, mut bytes) = (Vec::new(), 0);
    for piece in pieces {
        let mut start = piece.start;
        while start < piece.end {
            let count = length(&Piece { start, ..*piece }).min(JOB_BYTES - bytes);
            ranges.push((start, count));
            bytes += count;
            start += count as u64;
            if bytes == JOB_BYTES || ranges.len() == process_memory::RANGES_MAX {
                let (part, rest) = buffer.split_at_mut(bytes);
                jobs.push_back(Job { ranges: std::mem::take(&mut ranges), buffer: part });
                (buffer, bytes) = (rest, 0);
            }
        }
    }
    if !ranges.is_empty() {
        jobs.push_back(Job { ranges, buffer: &mut buffer[..bytes] });
    }
    jobs
}

fn copy_all(pid: Pid, jobs: VecDeque<Job<'_>>, limit: Option<StopLimit>) -> Result<Vec<Span>, CollectError> {
    // The number of cores is read from several files of the control group.
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if jobs.len() > 1 { cores().min(THREADS_MAX).min(jobs.len()) } else { 1 };
    let (jobs, unread) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    let work = || -> Result<(), CollectError> {
        loop {
            // No thread panics while it holds a lock.
            let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(job) = next else { return Ok(()) };
            limit.map_or(Ok(()), |limit| limit.check(pid))?;
            let holes = copy(pid, job)?;
            unread.lock().unwrap_or_else(PoisonError::into_inner).extend(holes);
        }
    };
    std::thread::scope(|scope| {
        // The calling thread takes part; if no other thread can be started, it does everything.
        let others: Vec<_> =
            (1..threads).filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        let own = work();
        others.into_iter().fold(own, |result, other| match other.join() {
            Ok(theirs) => result.and(theirs),
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(unread.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn copy(pid: Pid, job: Job<'_>) -> Result<Vec<Span>, CollectError> {
    let Job { mut ranges, buffer } = job;
    let (mut done, mut first, mut holes) = (0, 0, Vec::new());
    while done < buffer.len() {
        let copied = match process_memory::read(pid, &ranges[first..], &mut buffer[done..]) {
            // The error `EFAULT` also occurs if all threads have exited and the memory is gone.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => 0,
            result => result.map_err(CollectError::refused(pid, "read the memory of"))?,
        };
        done += copied;
        skip(&mut ranges, &mut first, copied);
        if done < buffer.len() {
            let Some(&(address, rest)) = ranges.get(first) else { break };
            // The process may have revoked its own access (`PROT_NONE`).
            let protected = process_memory::read_protected(pid, address, &mut buffer[done..done + rest]).unwrap_or(0);
            let to_next_page = PAGE_BYTES - address % PAGE_BYTES;
            let count = if protected > 0 { protected } else { rest.min(usize::try_from(to_next_page).unwrap_or(rest)) };
            if protected == 0 {
                holes.push(TargetAddr(address)..TargetAddr(address + count as u64));
            }
            done += count;
            skip(&mut ranges, &mut first, count);
        }
    }
    Ok(holes)
}

fn skip(ranges: &mut [(u64, usize)], first: &mut usize, mut bytes: usize) {
    while let Some((address, length)) = ranges.get_mut(*first) {
        let count = bytes.min(*length);
        *address += count as u64;
        *length -= count;
        bytes -= count;
        if *length > 0 {
            return;
        }
        *first += 1;
    }
}

impl Copy {
    /// Returns bytes that are known to be in one span.
    fn within_span(&self, address: TargetAddr, length: usize) -> Option<&[u8]> {
        let piece = &self.pieces[self.pieces.partition_point(|piece| piece.end <= address.0)];
        let start = piece.offset + usize::try_from(address.0 - piece.start).ok()?;
        self.buffer.get(start..start + length)
    }
}

impl Memory for Copy {
    fn present(&self, range: Span) -> Vec<Span> {
        present(&self.spans, &range)
    }

    fn read(&self, address: TargetAddr, buffer: &mut [u8]) -> usize {
        // Spans are not adjacent, so a read ends with the span.
        let Some(span) = around(&self.spans, address) else { return 0 };
        let rest = usize::try_from(span.end.0 - address.0).unwrap_or(usize::MAX);
        let count = rest.min(buffer.len());
        let bytes = self.within_span(address, count).unwrap_or_default();
        buffer[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    }

    fn slice(&self, address: TargetAddr, length: usize) -> Option<&[u8]> {
        let end = address.0.checked_add(length as u64)?;
        around(&self.spans, address).filter(|span| end <= span.end.0)?;
        self.within_span(address, length)
    }
}

thread_local! {
    static CACHE: RefCell<Vec<Option<CachedPiece>>> = const { RefCell::new(Vec::new()) };
}

struct CachedPiece {
    key: (u64, u64),
    bytes: Vec<u8>,
}

/// Memory that is read on demand from a fork. Threads cache what they read last: adjacent words cost one system call. Dropping it
/// ends the fork.
#[derive(Debug)]
pub(crate) struct ForkMemory {
    copy: Box<dyn ProcessCopy>,
    /// Number that is unique in this process.
    id: u64,
    spans: Vec<Span>,
}

impl ForkMemory {
    /// Reads the memory of `copy`. `spans` is the existing memory. Shared memory is read as it is at the time of the read.
    pub(crate) fn new(copy: Box<dyn ProcessCopy>, spans: Vec<Span>) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Self { copy, id: NEXT_ID.fetch_add(1, Ordering::Relaxed), spans: joined(spans) }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.copy.pid()
    }

    fn read_directly(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            let range = (address.saturating_add(done as u64), rest.len());
            // The kernel copies at most 2 GiB per call.
            match process_memory::read(self.pid(), &[range], rest) {
                Ok(count) if count > 0 => done += count,
                _ => match process_memory::read_protected(self.pid(), range.0, rest) {
                    Ok(count) if count > 0 => done += count,
                    _ => break,
                },
            }
        }
        done
    }

    fn read_cached(&self, address: u64, span: &Span, buffer: &mut [u8]) -> usize {
        let aligned = address - address % PIECE_BYTES;
        let first = aligned.max(span.start.0);
        let end = aligned.saturating_add(PIECE_BYTES).min(span.end.0);
        let key = (self.id, first);
        let slot = usize::try_from(address / PIECE_BYTES).unwrap_or(0) % PIECES;
        CACHE.with_borrow_mut(|pieces| {
            pieces.resize_with(PIECES, || None);
            let piece = pieces[slot].get_or_insert_with(|| CachedPiece { key: (0, 0), bytes: Vec::new() });
            if piece.key != key {
                piece.bytes.resize(usize::try_from(end - first).unwrap_or(0), 0);
                let count = self.read_directly(first, &mut piece.bytes);
                piece.bytes.truncate(count);
                piece.key = key;
            }
            let skip = usize::try_from(address - first).unwrap_or(usize::MAX);
            let rest = piece.bytes.get(skip..).unwrap_or_default();
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            count
        })
    }
}

impl Memory for ForkMemory {
    fn present(&self, range: Span) -> Vec<Span> {
        present(&self.spans, &range)
    }

    fn read(&self, address: TargetAddr, buffer: &mut [u8]) -> usize {
        let Some(span) = around(&self.spans, address) else { return 0 };
        let there = usize::try_from(span.end.0 - address.0).unwrap_or(usize::MAX);
        let count = buffer.len().min(there);
        let buffer = &mut buffer[..count];
        if buffer.len() as u64 >= PIECE_BYTES {
            return self.read_directly(address.0, buffer);
        }
        let mut done = 0;
        while done < buffer.len() {
            let count = self.read_cached(address.0 + done as u64, span, &mut buffer[done..]);
            if count == 0 {
                // A page is unreadable; other pages of the piece may be readable.
                return done + self.read_directly(address.0 + done as u64, &mut buffer[done..]);
            }
            done += count;
        }
        done
    }

    fn is_there(&self) -> bool {
        !self.copy.has_ended()
    }

    fn slice(&self, _address: TargetAddr, _length: usize) -> Option<&[u8]> {
        None
    }
}

/// Private, readable mappings that the copy lacks (`MADV_DONTFORK`, `MADV_WIPEONFORK`), joined. Takes as long as
/// copying, so call it when the process runs again.
pub(super) fn left_out(copy: Pid, mapped: &[Region]) -> Result<Vec<Span>, ForkError> {
    let (copied, wiped) = (regions(copy)?, wiped(copy)?);
    // The first thread's stack may have been extended since.
    let is_copied = |region: &Region| {
        region_of(&copied, region.start)
            .is_some_and(|copied| region.end <= copied.end && !wiped.contains(&copied.start))
    };
    let left_out = mapped.iter().filter(|region| region.readable && !region.shared && !is_copied(region));
    Ok(joined(left_out.map(|region| region.start..region.end).collect()))
}

fn wiped(pid: Pid) -> Result<BTreeSet<TargetAddr>, ProcError> {
    let failed = |source| ProcError::Io { pid, entry: "smaps", source };
    let file = File::open(entry_path(pid, "smaps")).map_err(failed)?;
    let (mut wiped, mut start, mut seen) = (BTreeSet::new(), None, 0);
    // File names may be invalid UTF-8.
    for line in BufReader::with_capacity(1 << 16, file).split(b'\n') {
        let line = line.map_err(failed)?;
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            if flags.split(|&byte| byte == b' ').any(|flag| flag == b"wf") {
                wiped.extend(start);
            }
        } else if let Some(found) = mapping_start(&line) {
            start = Some(TargetAddr(found));
            seen += 1;
            if seen > REGIONS_MAX {
                break;
            }
        }
    }
    Ok(wiped)
}

pub(crate) fn mapping_start(line: &[u8]) -> Option<u64> {
    let dash = line.iter().take(17).position(|&byte| byte == b'-')?;
    u64::from_str_radix(std::str::from_utf8(&line[..dash]).ok()?, 16).ok()
}

#[cfg(test)]
mod tests;
