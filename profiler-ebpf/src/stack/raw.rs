//! Sends the memory that a stack was unwound from, for checking the unwinder against another one. Never runs in ordinary
//! use: the flag that asks for it is a constant to the verifier, which then drops all this.

use core::mem::size_of;

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use profiler_common::limits::{PAGE_BYTES, RAW_STACK_PAGES_MAX};
use profiler_common::record::{RawStackHeader, RecordHeader, RecordKind};

use crate::emit;
use crate::hook::Call;
use crate::maps::RAW;

/// A raw stack record under construction.
#[repr(C)]
pub(crate) struct RawRecord {
    header: RawStackHeader,
    pages: [[u8; PAGE_BYTES as usize]; RAW_STACK_PAGES_MAX],
}

/// Sends the call's stack with the name that its frames were sent by. The area is the one that the call has claimed.
#[inline(always)]
pub(super) fn send(area: u32, call: &Call, stack_id: u64) {
    let header = RawStackHeader {
        header: RecordHeader::new(RecordKind::RawStack, call.tgid()),
        stack_id,
        sp: call.sp(),
        bp: call.bp(),
        start: call.sp() & !(PAGE_BYTES - 1),
        length: 0,
    };
    copy_and_send(area, &header);
}

/// Copies page by page, because a copy that reaches into a page that is not there fails as a whole.
#[inline(never)]
fn copy_and_send(area: u32, header: &RawStackHeader) {
    let Some(record) = RAW.get_ptr_mut(area) else {
        return;
    };
    // SAFETY: the pointer comes from a successful lookup, and the area is claimed by this program.
    let record = unsafe { &mut *record };
    record.header = *header;
    let mut length = 0;
    for page in &mut record.pages {
        let from = header.start.wrapping_add(length);
        // SAFETY: a page into a page; the helper checks the address.
        if unsafe { bpf_probe_read_user(page.as_mut_ptr().cast(), PAGE_BYTES as u32, from as *const _) } != 0 {
            break;
        }
        length += PAGE_BYTES;
    }
    record.header.length = length;
    // The length was counted by the loop over the pages, so the verifier knows that it fits.
    let _ = emit::bytes((&raw const *record).cast(), size_of::<RawStackHeader>() as u64 + length);
}
