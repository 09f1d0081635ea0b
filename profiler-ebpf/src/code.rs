//! Code of interpreters and virtual machines in stacks. A frame has an identity of its code; the first stack with it sends where the
//! code is, and the agent reads its names.

use profiler_common::counter::Counter;
use profiler_common::interpreter::{CodeId, CodeKind, CodePlace, CodePlaceRecord, InterpretedFrame};
use profiler_common::limits::{CODE_PER_PERIOD, CODE_PERIOD_SHIFT, CODE_RATES as RATES_COUNT};
use profiler_common::record::{RecordHeader, RecordKind};
use profiler_common::stack::StackHasher;

use crate::frames;
use crate::helpers::{BPF_RB_FORCE_WAKEUP, bpf_get_current_pid_tgid, bpf_ktime_get_ns};
use crate::layout::Scratch;
use crate::maps::{CODE_RATES, EVENTS, SCRATCH, count};
use crate::seen::{forget, is_new};

/// Adds a frame of this code, and sends where the code is if that is new. `version` distinguishes it from other code that was at the
/// place, where that does not.
#[inline(always)]
pub(crate) fn add(area: u32, scratch: *mut Scratch, kind: CodeKind, place: CodePlace, version: u64, instruction: u32) {
    if add_only(scratch, kind, place, version, instruction) {
        code_place(area);
    }
}

/// As above, without sending. Returns whether the code is new, and marks it as sent.
#[inline(always)]
pub(crate) fn add_only(
    scratch: *mut Scratch,
    kind: CodeKind,
    place: CodePlace,
    version: u64,
    instruction: u32,
) -> bool {
    // SAFETY: this program has claimed the area.
    let mut hasher = StackHasher::resume(unsafe { (*scratch).walk.seed });
    hasher.add(place.address);
    hasher.add(place.refers_to);
    hasher.add(place.detail);
    hasher.add(version);
    let id = hasher.finish();
    // SAFETY: this program has claimed the area.
    let state = unsafe { &mut (*scratch).walk.code };
    state.id = id;
    state.place = place;
    state.kind = kind as u32;
    frames::add(scratch, InterpretedFrame { kind, code: CodeId(id).in_frames(), instruction }.to_word());
    is_new(id)
}

/// Sends where the code of the current frame is.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn code_place(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr(area) else {
        return 0;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let state = unsafe { &(*scratch).walk.code };
    if !may_send(state.id) {
        return 0;
    }
    let Some(mut entry) = EVENTS.reserve::<CodePlaceRecord>(0) else {
        drop_code(state.id);
        return 0;
    };
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    entry.write(CodePlaceRecord {
        header: RecordHeader::new(RecordKind::CodePlace, tgid),
        code_id: state.id,
        place: state.place,
        kind: state.kind,
        reserved: 0,
    });
    // The agent reads the names at once: the target may free or move the code soon.
    entry.submit(u64::from(BPF_RB_FORCE_WAKEUP));
    count(Counter::Events);
    0
}

/// Has a later stack send this code, because the ring buffer is full.
#[inline(always)]
pub(crate) fn drop_code(id: u64) {
    count(Counter::RingFull);
    forget(id);
}

/// Whether the process may send this code. What is refused is counted, and sent with a later stack. Concurrent calls may overwrite each other's counts, and processes whose
/// ids have the same low bits share theirs: the limit need not be exact.
#[inline(always)]
pub(crate) fn may_send(id: u64) -> bool {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let Some(rate) = CODE_RATES.get_ptr_mut(tgid & (RATES_COUNT - 1)) else {
        return false;
    };
    // SAFETY: the helper takes no arguments.
    let period = (unsafe { bpf_ktime_get_ns() } >> CODE_PERIOD_SHIFT) as u32;
    // The period in the upper half, in the lower one the number of records.
    // SAFETY: the pointer comes from a successful lookup.
    let word = unsafe { rate.read_volatile() };
    let sent = if (word >> 32) as u32 == period { word as u32 } else { 0 };
    if sent >= CODE_PER_PERIOD {
        count(Counter::CodeRefused);
        forget(id);
        return false;
    }
    // SAFETY: as above.
    unsafe { rate.write_volatile(u64::from(period) << 32 | u64::from(sent + 1)) };
    true
}
