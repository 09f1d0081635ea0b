//! Copies of stacks whose walk ended at an address outside the registered mappings: in a module that the process has mapped
//! since the agent read them. The agent reads them again and continues the walk over the copy.
//!
//! A copy consists of pages that are written into the ring buffer directly, so it needs no scratch memory. It is sent only
//! while the ring buffer has room, and while the agent permits it: the walk may also have ended at garbage.

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use profiler_common::limits::{PAGE_BYTES, STACK_COPY_PAGES_MAX};
use profiler_common::record::{RecordHeader, RecordKind, StackPageRecord};
use profiler_common::step::Registers;

use crate::maps::{EVENTS, PROCESSES, SCRATCH};
use crate::{config, walk};

/// Sends the pages of the stack that the walk in this area ended in. Returns their number: 0 if the stack remains cut.
///
/// A global function, so that the verifier checks it once.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn send_pages(area: u32, tgid: u32, stack_id: u64) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return 0;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let state = unsafe { &(*scratch).walk };
    let registers = state.registers();
    // A module without a table will not have one later.
    if !walk::is_unregistered(state, registers.lookup_address()) {
        return 0;
    }
    if EVENTS.query(u64::from(BPF_RB_AVAIL_DATA)) > config::wakeup_bytes() || !is_permitted(tgid) {
        return 0;
    }
    let mut start = registers.sp & !(PAGE_BYTES - 1);
    let mut sent = 0;
    for _ in 0..STACK_COPY_PAGES_MAX {
        if !send_page(tgid, stack_id, &registers, start) {
            break;
        }
        start = start.wrapping_add(PAGE_BYTES);
        sent += 1;
    }
    sent
}

/// Whether the agent permits another copy. Concurrent calls may count as one, which is harmless.
#[inline(always)]
fn is_permitted(tgid: u32) -> bool {
    let Some(process) = PROCESSES.get_ptr_mut(&tgid) else {
        return false;
    };
    // SAFETY: the pointer comes from a successful lookup.
    let copies = unsafe { &raw mut (*process).copies };
    // SAFETY: as above.
    let left = unsafe { copies.read_volatile() };
    if left == 0 {
        return false;
    }
    // SAFETY: as above.
    unsafe { copies.write_volatile(left - 1) };
    true
}

/// Returns false if the page is unmapped, or the ring buffer is full.
#[inline(always)]
fn send_page(tgid: u32, stack_id: u64, registers: &Registers, start: u64) -> bool {
    let Some(mut entry) = EVENTS.reserve::<StackPageRecord>(0) else {
        return false;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: within the reserved record.
    unsafe {
        (*record).header = RecordHeader::new(RecordKind::StackPage, tgid);
        (*record).stack_id = stack_id;
        (*record).ip = registers.ip;
        (*record).sp = registers.sp;
        (*record).bp = registers.bp;
        (*record).link = registers.link;
        (*record).is_return_address = registers.is_return_address as u64;
        (*record).start = start;
    }
    // SAFETY: as above; the helper checks the source.
    let read = unsafe { bpf_probe_read_user((&raw mut (*record).page).cast(), PAGE_BYTES as u32, start as *const _) };
    if read != 0 {
        entry.discard(u64::from(BPF_RB_NO_WAKEUP));
        return false;
    }
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    true
}
