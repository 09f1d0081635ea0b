//! Copies memory of a process into one buffer, allocated before the process is stopped, with several threads where that
//! pays.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use memmap2::MmapMut;
use profiler_common::limits::PAGE_BYTES;

use super::process::CollectError;
use super::spans::Span;
use crate::address::TargetAddr;
use crate::ids::Pid;
use crate::linux::{memory, process_memory};
use crate::memory::Memory;

/// Maximum number of copying threads: they wait for memory more than for the CPU.
const THREADS_MAX: usize = 4;

/// Bytes copied by a thread in one call.
const JOB_BYTES: usize = 4 << 20;

/// Memory allocated for a copy.
#[derive(Debug)]
pub(crate) struct Reserved {
    buffer: MmapMut,
    allowed_bytes: u64,
}

impl Reserved {
    /// Allocates memory for a process that has this many bytes now, with room for growth until it is stopped. Takes
    /// half a second per GiB, which must not be spent while the process is stopped. Fails for more than three quarters
    /// of the memory that is available on the machine and in this process's control groups: the analysis of the copy
    /// needs memory as well.
    pub(crate) fn of(pid: Pid, bytes: u64) -> Result<Self, CollectError> {
        let free = [memory::available_bytes(), memory::available_in_cgroup_bytes()].into_iter().flatten().min();
        let mut reserved = Self::empty(pid, bytes, free.map_or(u64::MAX, |bytes| bytes / 4 * 3))?;
        // If the kernel's estimate is too high, this process is killed, and not the target.
        memory::prefer_for_oom_kill();
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
        Ok(Self { buffer: memory::buffer(length).map_err(|_| too_large)?, allowed_bytes })
    }
}

/// Copied memory.
#[derive(Debug)]
pub(crate) struct Copy {
    buffer: MmapMut,
    /// By rising address, and in this order in the buffer. Adjacent pieces are joined.
    pieces: Vec<Piece>,
    /// Bytes that could not be read.
    pub unread_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    start: u64,
    end: u64,
    /// In the buffer.
    offset: usize,
}

impl Copy {
    /// Copies spans of a process (by rising address, without overlaps). Fails when the process has exited, cannot be
    /// read, or has grown too much.
    pub(crate) fn take(pid: Pid, spans: &[Span], reserved: Reserved) -> Result<Self, CollectError> {
        let pieces = laid_out(spans);
        let bytes = pieces.last().map_or(0, |last| last.offset + length(last));
        let Reserved { mut buffer, allowed_bytes } = if bytes > reserved.buffer.len() {
            Reserved::empty(pid, bytes as u64, reserved.allowed_bytes)?
        } else {
            reserved
        };
        if bytes as u64 > allowed_bytes {
            return Err(CollectError::TooLarge { pid, needed_bytes: bytes as u64, allowed_bytes });
        }
        let unread = copy_all(pid, jobs(&pieces, &mut buffer[..bytes]))?;
        let unread_bytes = unread.iter().map(|range| range.end - range.start).sum();
        Ok(Self { buffer, pieces: without(&pieces, &unread), unread_bytes })
    }

    fn between(&self, start: u64, end: u64) -> impl Iterator<Item = &Piece> {
        let first = self.pieces.partition_point(|piece| piece.end <= start);
        self.pieces[first..].iter().take_while(move |piece| piece.start < end)
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

/// Removes the parts that could not be read.
fn without(pieces: &[Piece], unread: &[Range<u64>]) -> Vec<Piece> {
    let mut rest = Vec::with_capacity(pieces.len() + unread.len());
    let mut holes = unread.iter().peekable();
    for piece in pieces {
        let mut start = piece.start;
        while let Some(hole) = holes.next_if(|hole| hole.start < piece.end) {
            rest.push((start, hole.start, piece));
            start = hole.end;
        }
        rest.push((start, piece.end, piece));
    }
    let parts = rest.into_iter().filter(|(start, end, _)| start < end);
    parts
        .map(|(start, end, piece)| Piece { start, end, offset: piece.offset + length(&Piece { end: start, ..*piece }) })
        .collect()
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

/// Runs all jobs; returns the unreadable ranges by rising address.
fn copy_all(pid: Pid, jobs: VecDeque<Job<'_>>) -> Result<Vec<Range<u64>>, CollectError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(THREADS_MAX).min(jobs.len());
    let (jobs, unread) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    let work = || -> Result<(), CollectError> {
        loop {
            // No thread panics while it holds a lock.
            let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(job) = next else { return Ok(()) };
            let holes = copy(pid, job)?;
            unread.lock().unwrap_or_else(PoisonError::into_inner).extend(holes);
        }
    };
    std::thread::scope(|scope| {
        // The calling thread takes part; if no other can be started, it does everything.
        let others: Vec<_> =
            (1..threads).filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        let own = work();
        others.into_iter().fold(own, |result, other| match other.join() {
            Ok(theirs) => result.and(theirs),
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let mut unread = unread.into_inner().unwrap_or_else(PoisonError::into_inner);
    unread.sort_by_key(|range: &Range<u64>| range.start);
    Ok(unread)
}

/// Runs a job; returns the unreadable ranges.
fn copy(pid: Pid, job: Job<'_>) -> Result<Vec<Range<u64>>, CollectError> {
    let Job { mut ranges, buffer } = job;
    let (mut done, mut first, mut holes) = (0, 0, Vec::new());
    while done < buffer.len() {
        let copied = match process_memory::read(pid, &ranges[first..], &mut buffer[done..]) {
            // `EFAULT` also if all threads have exited and the memory is gone.
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
                holes.push(address..address + count as u64);
            }
            done += count;
            skip(&mut ranges, &mut first, count);
        }
    }
    Ok(holes)
}

/// Advances the ranges by `bytes`; those before `first` are complete.
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

impl Memory for Copy {
    fn present(&self, range: Range<TargetAddr>) -> Vec<Range<TargetAddr>> {
        let parts = self.between(range.start.0, range.end.0);
        parts.map(|part| TargetAddr(part.start.max(range.start.0))..TargetAddr(part.end.min(range.end.0))).collect()
    }

    fn read(&self, address: TargetAddr, buffer: &mut [u8]) -> usize {
        // Pieces are not adjacent, so a read ends with the piece.
        let Some(piece) = self.between(address.0, address.0.saturating_add(1)).next() else { return 0 };
        let rest = usize::try_from(piece.end - address.0).unwrap_or(usize::MAX);
        let count = rest.min(buffer.len());
        let bytes = self.slice(address, count).unwrap_or_default();
        buffer[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    }

    fn slice(&self, address: TargetAddr, length: usize) -> Option<&[u8]> {
        let piece = self.between(address.0, address.0.saturating_add(1)).next()?;
        let end = address.0.checked_add(length as u64).filter(|&end| end <= piece.end)?;
        let skip = usize::try_from(address.0 - piece.start).ok()?;
        let start = piece.offset + skip;
        self.buffer.get(start..start + usize::try_from(end - address.0).ok()?)
    }
}

#[cfg(test)]
mod tests;
