//! Aligned words of memory, as byte slices where memory provides them. Skips missing memory.

#[cfg(test)]
mod tests;

use std::ops::Range;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::{Memory, WORD_BYTES};
use profiler_common::limits::PAGE_BYTES;

const WORD: usize = size_of::<u64>();
const COPY_BYTES_MAX: u64 = 1 << 16;

pub(super) struct Words<'a> {
    memory: &'a dyn Memory,
    /// Windows by ascending address, without overlaps.
    windows: Vec<Window<'a>>,
}

#[derive(Clone, Copy)]
struct Window<'a> {
    start: u64,
    end: u64,
    bytes: &'a [u8],
}

impl<'a> Words<'a> {
    pub(super) fn new(memory: &'a dyn Memory) -> Self {
        let mut windows = Vec::new();
        for part in memory.present(TargetAddr(0)..TargetAddr(u64::MAX)) {
            let (mut start, end) = (part.start.0, part.end.0);
            while start < end {
                let bytes = longest_slice(memory, start, end - start);
                let window = Window { start, end: start + bytes.len() as u64, bytes };
                start = if bytes.is_empty() { (start | (PAGE_BYTES - 1)).saturating_add(1) } else { window.end };
                if !bytes.is_empty() {
                    windows.push(window);
                }
            }
        }
        Self { memory, windows }
    }

    /// Words of a range as a slice; `None` if they are not in one slice. `near` is the window found last, as a hint.
    #[inline]
    pub(super) fn slice(&self, range: &Range<u64>, near: &mut usize) -> Option<&'a [u8]> {
        let (start, end) = aligned(range)?;
        let mut window = self.windows.get(*near)?;
        if start < window.start || window.end <= start {
            *near = self.windows.partition_point(|window| window.end <= start);
            let Some(found) = self.windows.get(*near) else {
                *near = 0;
                return None;
            };
            window = found;
        }
        let from = usize::try_from(start.checked_sub(window.start)?).ok()?;
        window.bytes.get(from..from + usize::try_from(end - start).ok()?)
    }

    pub(super) fn each(&self, range: &Range<u64>, near: &mut usize, mut take: impl FnMut(&[u8])) {
        if let Some(bytes) = self.slice(range, near) {
            take(bytes);
            return;
        }
        for part in self.present(range) {
            self.each_present(&part, &mut take);
        }
    }

    pub(super) fn present(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let Some((start, end)) = aligned(range) else { return Vec::new() };
        let parts = self.memory.present(TargetAddr(start)..TargetAddr(end));
        parts
            .into_iter()
            .filter_map(|part| aligned(&(part.start.0..part.end.0)))
            .map(|(start, end)| start..end)
            .collect()
    }

    fn each_present(&self, part: &Range<u64>, take: &mut impl FnMut(&[u8])) {
        let mut buffer = Vec::new();
        let mut at = part.start;
        let mut window_at = self.windows.partition_point(|window| window.end <= at);
        while at < part.end {
            let window = self.windows.get(window_at);
            let whole = window.and_then(|window| whole_words(window, at, part.end));
            if let Some(bytes) = whole {
                take(bytes);
                at += bytes.len() as u64;
                continue;
            }
            // The word is outside of all windows, or in two of them.
            let next = if window.is_some_and(|window| window.start <= at) { window_at + 1 } else { window_at };
            let until = self.windows.get(next).map_or(part.end, |next| next.start.next_multiple_of(WORD_BYTES));
            let length = until.clamp(at + WORD_BYTES, part.end).min(at + COPY_BYTES_MAX) - at;
            buffer.resize(usize::try_from(length).unwrap_or(WORD), 0);
            let read = self.memory.read(TargetAddr(at), &mut buffer) / WORD * WORD;
            take(&buffer[..read]);
            at = if read == 0 { (at | (PAGE_BYTES - 1)).saturating_add(1) } else { at + read as u64 };
            window_at = self.windows.partition_point(|window| window.end <= at);
        }
    }
}

fn whole_words<'a>(window: &Window<'a>, start: u64, end: u64) -> Option<&'a [u8]> {
    let from = usize::try_from(start.checked_sub(window.start)?).ok()?;
    let length = usize::try_from(end.min(window.end).checked_sub(start)?).ok()? / WORD * WORD;
    window.bytes.get(from..from + length).filter(|bytes| !bytes.is_empty())
}

#[inline]
pub(super) fn aligned(range: &Range<u64>) -> Option<(u64, u64)> {
    let start = range.start.checked_next_multiple_of(WORD_BYTES)?;
    let end = range.end / WORD_BYTES * WORD_BYTES;
    (start < end).then_some((start, end))
}

fn longest_slice(memory: &dyn Memory, start: u64, bytes_max: u64) -> &[u8] {
    let mut best: &[u8] = &[];
    let (mut least, mut most) = (0, usize::try_from(bytes_max).unwrap_or(usize::MAX));
    let mut length = most;
    while least < most {
        match memory.slice(TargetAddr(start), length) {
            Some(bytes) => {
                best = bytes;
                least = length;
            }
            None => most = length - 1,
        }
        length = least + (most - least).div_ceil(2);
    }
    best
}
