//! Zero-initialised variables of programs and libraries (`.bss`): anonymous memory behind the file's own mappings, which the
//! kernel merges with other mappings of the process. The headers in the file state where the variables end.

use std::collections::BTreeMap;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::Pid;
use heapbpf_base::memory::Span;
use heapbpf_linux::proc::maps::RegionKind;
use heapbpf_linux::proc::smaps::MappedMemory;
use heapbpf_linux::process_memory;

/// Maximum number of mappings of one file.
const PARTS_MAX: usize = 16;
/// Number of bytes that are read of an ELF file: the header and the program headers of usual files.
const HEADER_BYTES: usize = 4096;
const PAGE_BYTES: u64 = 4096;

/// Ends of modules, by the start of their first mapping and the end of their last one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variables {
    ends: BTreeMap<(TargetAddr, TargetAddr), Option<TargetAddr>>,
}

impl Variables {
    /// Spans of the variables by rising address; `mapped` is in rising order, too.
    pub(crate) fn spans(&mut self, pid: Pid, mapped: &[MappedMemory]) -> Vec<Span> {
        let (mut ends, mut found) = (BTreeMap::new(), Vec::new());
        for (at, memory) in mapped.iter().enumerate() {
            let region = &memory.region;
            if memory.rss_bytes == 0 || region.shared || !matches!(region.kind, RegionKind::Anonymous { .. }) {
                continue;
            }
            let Some(start) = module_start(&mapped[..at], region.start) else { continue };
            let place = (start, region.start);
            let end = self.ends.remove(&place).unwrap_or_else(|| module_end(pid, start));
            ends.insert(place, end);
            if let Some(end) = end.filter(|end| *end > region.start) {
                found.push(region.start..end.min(region.end));
            }
        }
        self.ends = ends;
        found
    }
}

/// Address at which the file is mapped whose mappings end at `end`.
fn module_start(before: &[MappedMemory], end: TargetAddr) -> Option<TargetAddr> {
    let RegionKind::File { path } = &before.last().filter(|memory| memory.region.end == end)?.region.kind else {
        return None;
    };
    let of_file = before.iter().rev().take(PARTS_MAX).map(|memory| &memory.region);
    let mut of_file = of_file.take_while(|region| matches!(&region.kind, RegionKind::File { path: it } if it == path));
    of_file.find(|region| region.offset.0 == 0).map(|region| region.start)
}

/// The end of a module's memory by the headers at its start.
fn module_end(pid: Pid, start: TargetAddr) -> Option<TargetAddr> {
    // Without the page in memory, the headers would be read from a file system that may not answer.
    process_memory::has_file_page(pid, start.0).ok().filter(|has_page| *has_page)?;
    let mut bytes = vec![0; HEADER_BYTES];
    let read = process_memory::read(pid, &[(start.0, HEADER_BYTES)], &mut bytes).ok()?;
    end_by_headers(&bytes[..read], start.0).map(TargetAddr)
}

fn end_by_headers(bytes: &[u8], start: u64) -> Option<u64> {
    /// Type of a segment that is loaded (`PT_LOAD`).
    const LOADED: u32 = 1;
    /// Start of an ELF file: `\x7fELF`, 64 bits, little-endian.
    const MAGIC: &[u8] = b"\x7fELF\x02\x01";
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)));
    let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    bytes.starts_with(MAGIC).then_some(())?;
    let (first, size_bytes, count) = (usize::try_from(word(32)?).ok()?, half(54)?, half(56)?);
    let mut segments = Vec::new();
    for nth in 0..count {
        let at = first.checked_add(nth.checked_mul(size_bytes)?)?;
        if number(at)? == LOADED {
            let (offset, address, memory_bytes) = (word(at + 8)?, word(at + 16)?, word(at + 40)?);
            segments.push((offset, address, address.checked_add(memory_bytes)?));
        }
    }
    let (_, linked, _) = segments.iter().find(|(offset, ..)| *offset == 0)?;
    let bias = start.wrapping_sub(linked / PAGE_BYTES * PAGE_BYTES);
    let end = segments.iter().map(|(_, _, end)| *end).max()?;
    end.wrapping_add(bias).checked_next_multiple_of(PAGE_BYTES).filter(|end| *end > start)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};

    use heapbpf_linux::proc::smaps::smaps;

    use super::*;

    /// Zero-initialised, and large enough for pages of its own.
    static OWN: [AtomicU8; 3 << 20] = [const { AtomicU8::new(0) }; 3 << 20];

    #[test]
    fn variables_of_this_program_are_found() {
        OWN[1 << 20].store(1, Ordering::Relaxed);
        let pid = Pid(std::process::id());
        let mapped = smaps(pid).expect("readable");
        let mut variables = Variables::default();
        let spans = variables.spans(pid, &mapped);
        let inside = TargetAddr((&raw const OWN[1 << 20]).addr() as u64);
        assert!(spans.iter().any(|span| span.contains(&inside)), "{inside:?} in {spans:?}");
        assert_eq!(variables.spans(pid, &mapped), spans, "when the ends are known");
    }

    #[test]
    fn damaged_headers_have_no_end() {
        let mut bytes = vec![0; HEADER_BYTES];
        assert_eq!(end_by_headers(&bytes, 0x1000), None);
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        assert_eq!(end_by_headers(&bytes, 0x1000), None);
        bytes[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        bytes[54..58].copy_from_slice(&[0xff; 4]);
        assert_eq!(end_by_headers(&bytes, 0x1000), None);
        assert_eq!(end_by_headers(&bytes[..20], 0x1000), None);
    }
}
