//! Takes the stack of a call and sends its frames if the agent has not had them.

mod raw;
mod walk;
mod window;

use core::mem::size_of;

use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::helpers::bpf_probe_read_user;
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::record::{RecordHeader, RecordKind, StackHeader};
use profiler_common::stack::{StackEnd, StackHasher};

use crate::bounds::masked;
use crate::hook::Call;
use crate::maps::STACKS;
use crate::scratch::{Claim, Scratch};
use crate::{config, counter, emit};

pub(crate) use raw::RawRecord;
pub(crate) use walk::Walk;

/// What an unwinder leaves behind; the frames are in the area's record.
pub(crate) struct Unwound {
    pub(crate) depth: u64,
    pub(crate) end: StackEnd,
    pub(crate) hasher: StackHasher,
}

/// The call's stack. Must be taken at entry: at the return the caller is hidden behind the trampoline.
#[inline(always)]
pub(crate) fn take(call: &Call) -> u64 {
    let Some(claim) = Claim::take(call.tid()) else {
        return caller_only(call);
    };
    let scratch = claim.scratch();
    let hasher = StackHasher::new(config::stack_seed(), call.tgid());
    let unwound = walk::unwind(call, &claim, hasher);
    counter::raise(unwound.end.counter());
    let stack_id = id(unwound.hasher, unwound.end);
    if is_new(stack_id) {
        // SAFETY: the area is claimed by this program.
        let record = unsafe { &raw mut (*scratch).record };
        // SAFETY: as above.
        unsafe { (*record).header = header(call, stack_id, unwound.depth, unwound.end) };
        let depth = if unwound.depth > STACK_FRAMES_MAX as u64 { STACK_FRAMES_MAX as u64 } else { unwound.depth };
        let length = size_of::<StackHeader>() as u64 + depth * 8;
        if !emit::bytes(record.cast_const().cast(), length) {
            forget(stack_id);
        }
    }
    if config::raw_stacks() {
        raw::send(claim.area(), call, stack_id);
    }
    claim.release();
    stack_id
}

/// A stack of one frame, for want of memory to unwind in.
#[inline(always)]
fn caller_only(call: &Call) -> u64 {
    let end = StackEnd::NoScratch;
    counter::raise(end.counter());
    // SAFETY: the helper checks the address.
    let caller = unsafe { bpf_probe_read_user(call.sp() as *const u64) }.unwrap_or(0);
    let mut hasher = StackHasher::new(config::stack_seed(), call.tgid());
    hasher.add(caller);
    let stack_id = id(hasher, end);
    if is_new(stack_id) && !emit::record((header(call, stack_id, 1, end), caller)) {
        forget(stack_id);
    }
    stack_id
}

/// Frames that are the same but end for another reason are another stack.
#[inline(always)]
fn id(mut hasher: StackHasher, end: StackEnd) -> u64 {
    hasher.add(end as u64);
    hasher.finish()
}

#[inline(always)]
fn header(call: &Call, stack_id: u64, depth: u64, end: StackEnd) -> StackHeader {
    StackHeader {
        header: RecordHeader::new(RecordKind::Stack, call.tgid()),
        stack_id,
        depth: depth as u16,
        end: end as u8,
        reserved: [0; 5],
    }
}

/// Whether the stack's frames have to be sent; marks them as sent.
#[inline(always)]
fn is_new(stack_id: u64) -> bool {
    if STACKS.get_ptr(&stack_id).is_some() {
        return false;
    }
    // When this fails, or the entry is evicted, the frames are sent again, which does no harm.
    let _ = STACKS.insert(&stack_id, &1, u64::from(BPF_ANY));
    true
}

/// The frames did not get through: the next event with this stack shall try again.
#[inline(always)]
fn forget(stack_id: u64) {
    let _ = STACKS.remove(&stack_id);
}

/// Writes one frame.
#[inline(always)]
fn put(scratch: *mut Scratch, index: usize, address: u64) {
    if index < STACK_FRAMES_MAX {
        let index = masked::<{ STACK_FRAMES_MAX as u64 - 1 }>(index as u64);
        // SAFETY: within the array, whose length is a power of two, in an area that this program has claimed.
        unsafe { (&raw mut (*scratch).record.frames).cast::<u64>().add(index as usize).write(address) };
    }
}

const _: () = assert!(STACK_FRAMES_MAX.is_power_of_two());
