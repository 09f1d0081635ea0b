//! Searches for code of a process.

use heapbpf_base::ids::Pid;
use heapbpf_linux::arch::INSTRUCTION_ALIGNMENT;
use heapbpf_linux::proc::maps::Region;
use heapbpf_linux::process_memory;

/// Maximum number of bytes that are read for one search.
pub(super) const BYTES_MAX: u64 = 16 << 20;

const PIECE_BYTES: u64 = 64 << 10;

/// Returns the address of this code in a mapping.
pub(super) fn search(pid: Pid, region: &Region, code: &[u8], left_bytes: &mut u64) -> Option<u64> {
    let mut start = region.start.0;
    while start < region.end.0 && *left_bytes > 0 {
        let count = PIECE_BYTES.min(region.end.0 - start);
        *left_bytes = left_bytes.saturating_sub(count);
        let bytes = read(pid, start, count);
        let mut places = bytes.windows(code.len()).enumerate().step_by(INSTRUCTION_ALIGNMENT);
        if let Some((offset, _)) = places.find(|(_, window)| *window == code) {
            return Some(start + offset as u64);
        }
        start += count;
    }
    None
}

/// Reads memory as far as possible.
pub(super) fn read(pid: Pid, address: u64, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(count).unwrap_or(0)];
    let read = process_memory::read(pid, &[(address, bytes.len())], &mut bytes).unwrap_or(0);
    bytes.truncate(read);
    bytes
}
