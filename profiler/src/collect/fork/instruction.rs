//! Where a process has an instruction that makes system calls: in what the kernel maps into it, where the thread made one, or in
//! any code.

use super::ForkError;
use crate::address::TargetAddr;
use crate::ids::Pid;
use crate::linux::proc::regions::{Region, RegionKind, region_of};
use crate::linux::process_memory;
use crate::linux::ptrace::Tracee;

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Most bytes that are looked through.
const BYTES_MAX: u64 = 16 << 20;

/// Bytes that are read at once.
const PIECE_BYTES: u64 = 64 << 10;

/// Addresses of processes are below this one: the page above it is the kernel's (`[vsyscall]`), and makes no system calls.
const ADDRESS_END: u64 = 1 << 56;

/// The address of a `syscall` instruction that a process can run; `None` if there is none in sight.
pub(super) fn find(pid: Pid, tracee: &Tracee, mapped: &[Region]) -> Result<Option<u64>, ForkError> {
    let runs = |region: &&Region| region.executable && region.readable && region.end.0 < ADDRESS_END;
    let registers = tracee.registers().map_err(|error| ForkError::Trace(pid, error))?.ok_or(ForkError::Ended(pid))?;
    let (kernels, others): (Vec<&Region>, Vec<&Region>) =
        mapped.iter().filter(runs).partition(|region| region.kind == RegionKind::Kernel);
    // The first thread may have ended, and has no memory then.
    let living = tracee.pid();
    let mut left_bytes = BYTES_MAX;
    if let Some(found) = kernels.iter().find_map(|region| search(living, region, &mut left_bytes)) {
        return Ok(Some(found));
    }
    let last = registers.rip.saturating_sub(SYSCALL.len() as u64);
    let is_code = region_of(mapped, TargetAddr(last)).is_some_and(|region| runs(&region));
    if registers.is_in_syscall() && is_code && read(living, last, SYSCALL.len() as u64) == SYSCALL {
        return Ok(Some(last));
    }
    Ok(others.iter().find_map(|region| search(living, region, &mut left_bytes)))
}

fn search(pid: Pid, region: &Region, left_bytes: &mut u64) -> Option<u64> {
    let mut start = region.start.0;
    while start < region.end.0 && *left_bytes > 0 {
        let count = PIECE_BYTES.min(region.end.0 - start);
        *left_bytes = left_bytes.saturating_sub(count);
        let bytes = read(pid, start, count);
        if let Some(offset) = bytes.windows(SYSCALL.len()).position(|window| window == SYSCALL) {
            return Some(start + offset as u64);
        }
        start += count;
    }
    None
}

fn read(pid: Pid, address: u64, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(count).unwrap_or(0)];
    let read = process_memory::read(pid, &[(address, bytes.len())], &mut bytes).unwrap_or(0);
    bytes.truncate(read);
    bytes
}
