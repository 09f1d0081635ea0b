//! Calls that map, unmap or move memory, or move the program break. Each is recorded, at any sampling rate: they are rare, and
//! the agent needs all of them to know which parts of a mapping are left. They are not in the live set.
//!
//! The record is written at the return and contains the time of the entry: before the return, another thread may have got the
//! range that this call unmaps.

use core::mem::MaybeUninit;

use profiler_common::hook::CallShape;
use profiler_common::live::LiveBlock;
use profiler_common::record::{RecordHeader, RecordKind, RemapRecord};

use crate::call::{Call, Store};
use crate::config::page_shift;
use crate::layout::Inflight;
use crate::sample::Chance;
use crate::{emit, inflight, sample, stack};

const MAP: u8 = CallShape::Map as u8;
const UNMAP: u8 = CallShape::Unmap as u8;
const REMAP: u8 = CallShape::Remap as u8;
const BREAK: u8 = CallShape::Break as u8;

/// Whether calls of this shape are handled here.
#[inline(always)]
pub(crate) const fn is_shape(shape: u8) -> bool {
    shape >= MAP && shape <= BREAK
}

/// Flags of mmap (`include/uapi/linux/mman.h`, `include/uapi/asm-generic/mman-common.h`).
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_HUGETLB: u64 = 0x4_0000;
/// From this bit on, the flags hold the binary logarithm of the huge page size; 0 is the system's default.
const MAP_HUGE_SHIFT: u64 = 26;
const MAP_HUGE_MASK: u64 = 0x3f;

/// Handles the entry. Returns whether the return must be handled: the call may change mappings of anonymous memory.
#[inline(always)]
pub(crate) fn entry(call: &Call<impl Store>, shape: u8) -> bool {
    if sample::is_foreign(call) || inflight::nested(call) || !sample::is_on(call.cookie.heap()) {
        return false;
    }
    let size_bytes = call.register(call.cookie.size_register());
    let argument = if call.cookie.has_count() { call.register(call.cookie.count_register()) } else { 0 };
    let (is_relevant, may_map) = match shape {
        MAP => (argument & (MAP_ANONYMOUS | MAP_FIXED) != 0, argument & MAP_ANONYMOUS != 0),
        UNMAP => (true, false),
        // An old size of 0 doubles a shared mapping.
        REMAP => (argument != 0, true),
        _ => (size_bytes != 0, size_bytes as i64 > 0),
    };
    // As in `sample::sample`.
    if !is_relevant || !sample::is_recorded(call, Chance::Certain) {
        return false;
    }
    let began_ns = emit::now_ns();
    inflight::enter(
        call,
        &Inflight {
            sp: call.sp(),
            size_bytes,
            pointer: if call.cookie.has_pointer() { call.pointer() } else { 0 },
            stack_id: if may_map { stack::take(call).unwrap_or(0) } else { 0 },
            // There is no old block, so its words hold what else the return needs.
            old: MaybeUninit::new(LiveBlock::from_words([began_ns, argument, 0])),
            interval_code: 0,
            hook: call.cookie.hook(),
            shape,
            old_tracked: 0,
        },
    )
}

/// Start and length in bytes.
type Range = (u64, u64);

const EMPTY: Range = (0, 0);

/// Handles the return. A failed call has changed nothing.
#[inline(always)]
pub(crate) fn finish(call: &Call<impl Store>, inflight: &Inflight) {
    let [began_ns, argument, _] = inflight.old().words();
    let Some((old, new)) = ranges(call.result(), inflight, argument) else {
        return;
    };
    emit::record(RemapRecord {
        header: RecordHeader::new(RecordKind::Remap, call.tgid()),
        old_address: old.0,
        old_bytes: old.1,
        new_address: new.0,
        new_bytes: new.1,
        began_ns,
        ended_ns: emit::now_ns(),
        stack_id: inflight.stack_id,
        tid: call.tid(),
        hook: inflight.hook,
        heap: call.cookie.heap(),
        reserved: 0,
    });
}

/// The unmapped range and the mapped one, or `None` if the call failed.
#[inline(always)]
fn ranges(result: u64, inflight: &Inflight, argument: u64) -> Option<(Range, Range)> {
    let Inflight { size_bytes, pointer, shape, .. } = *inflight;
    if shape == UNMAP {
        let failed = result as u32 != 0;
        return if failed { None } else { Some(((pointer, whole_pages(size_bytes)), EMPTY)) };
    }
    // The C library's wrappers return -1, the system calls below them the negated error number.
    if result > u64::MAX - 4095 {
        return None;
    }
    Some(match shape {
        // A file mapping over anonymous memory unmaps that memory.
        MAP if argument & MAP_ANONYMOUS == 0 => ((result, whole_pages(size_bytes)), EMPTY),
        MAP if argument & MAP_HUGETLB != 0 => (EMPTY, (result, whole_huge_pages(size_bytes, argument))),
        MAP => (EMPTY, (result, whole_pages(size_bytes))),
        REMAP => ((pointer, whole_pages(argument)), (result, whole_pages(size_bytes))),
        // `sbrk` returns the previous end of the data segment.
        _ if size_bytes as i64 > 0 => (EMPTY, (result, size_bytes)),
        _ => ((result.wrapping_add(size_bytes), size_bytes.wrapping_neg()), EMPTY),
    })
}

#[inline(always)]
pub(crate) fn whole_pages(size_bytes: u64) -> u64 {
    let page_bytes = 1 << page_shift();
    size_bytes.wrapping_add(page_bytes - 1) & !(page_bytes - 1)
}

#[inline(always)]
fn whole_huge_pages(size_bytes: u64, flags: u64) -> u64 {
    let shift = flags >> MAP_HUGE_SHIFT & MAP_HUGE_MASK;
    // By default, a huge page is what a page of the page table maps, whose entries have 8 bytes.
    let page_bytes = 1 << if shift == 0 { 2 * page_shift() - 3 } else { shift };
    size_bytes.wrapping_add(page_bytes - 1) & !(page_bytes - 1)
}
