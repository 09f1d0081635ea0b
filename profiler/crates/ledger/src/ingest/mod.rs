//! Decodes the bytes of ring buffer records. Pure; any bytes give a [`Record`] or an error, never a panic.

pub mod event;
pub mod field;
pub mod record;

use std::mem::offset_of;
use std::sync::Arc;

use heapbpf_base::address::{FileOffset, TargetAddr};
use heapbpf_base::ids::{HeapId, HookId, Pid, StackId, Tid};
use heapbpf_base::units::MonotonicNanos;
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::live::LiveBlock;
use profiler_common::mapped::FileKey;
use profiler_common::record::{
    AllocRecord, ExecRecord, ForkRecord, FreeRecord, MappedRecord, RangeRecord, RawStackHeader, RecordHeader,
    RecordKind, RemapRecord, StackHeader, StackPageRecord,
};
use profiler_common::stack::StackEnd;
use profiler_common::step::Registers;

use self::event::{Allocation, Event, Free, Remap, Stack};
use self::field::{DecodeError, field, word};
use self::record::{Exec, FirstTouch, Fork, Mapped, RawCode, RawStack, Record, StackPage};

pub fn decode(bytes: &[u8]) -> Result<Record, DecodeError> {
    let kind = *bytes.first().ok_or(DecodeError::Short)?;
    match RecordKind::from_wire(kind).ok_or(DecodeError::UnknownKind(kind))? {
        RecordKind::Alloc => allocation(bytes).map(Event::Alloc).map(Record::Event),
        RecordKind::Restore => allocation(bytes).map(Event::Restore).map(Record::Event),
        RecordKind::Free => free(bytes).map(Event::Free).map(Record::Event),
        RecordKind::Stack => stack(bytes).map(Record::Event),
        RecordKind::Remap => remap(bytes).map(Event::Remap).map(Record::Event),
        RecordKind::UnknownFree => free(bytes).map(Record::UnknownFree),
        RecordKind::Fork => fork(bytes).map(Record::Fork),
        RecordKind::Exec => exec(bytes).map(Record::Exec),
        RecordKind::RawStack => raw_stack(bytes),
        RecordKind::StackPage => stack_page(bytes),
        RecordKind::Mapped => mapped(bytes).map(Record::Mapped),
        RecordKind::Range => range(bytes),
        kind @ (RecordKind::Code | RecordKind::CodePlace | RecordKind::RubyCode | RecordKind::PhpCode) => {
            code(kind, bytes).map(Record::Code)
        }
    }
}

fn allocation(bytes: &[u8]) -> Result<Allocation, DecodeError> {
    const BLOCK: usize = offset_of!(AllocRecord, block);
    let words = [word(bytes, BLOCK)?, word(bytes, BLOCK + 8)?, word(bytes, BLOCK + 16)?];
    let block = LiveBlock::from_words(words.map(u64::from_ne_bytes));
    Ok(Allocation {
        pid: Pid(field!(bytes, AllocRecord, header.tgid, u32)),
        tid: Tid(field!(bytes, AllocRecord, tid, u32)),
        address: TargetAddr(field!(bytes, AllocRecord, address, u64)),
        size_bytes: block.size_bytes(),
        time: MonotonicNanos(block.time_ns()),
        stack: StackId(block.stack_id()),
        interval: block.interval(),
        hook: HookId(field!(bytes, AllocRecord, hook, u16)),
        heap: HeapId(block.heap()),
        has_replaced: field!(bytes, AllocRecord, has_replaced, u16) != 0,
    })
}

fn free(bytes: &[u8]) -> Result<Free, DecodeError> {
    Ok(Free {
        pid: Pid(field!(bytes, FreeRecord, header.tgid, u32)),
        tid: Tid(field!(bytes, FreeRecord, tid, u32)),
        address: TargetAddr(field!(bytes, FreeRecord, address, u64)),
        time: MonotonicNanos(field!(bytes, FreeRecord, time_ns, u64)),
        age_us: field!(bytes, FreeRecord, age_us, u32),
    })
}

fn fork(bytes: &[u8]) -> Result<Fork, DecodeError> {
    Ok(Fork {
        parent: Pid(field!(bytes, ForkRecord, header.tgid, u32)),
        child: Pid(field!(bytes, ForkRecord, child, u32)),
        time: MonotonicNanos(field!(bytes, ForkRecord, time_ns, u64)),
        shares_memory: field!(bytes, ForkRecord, shares_memory, u32) != 0,
    })
}

fn exec(bytes: &[u8]) -> Result<Exec, DecodeError> {
    let (pid, tid) = (field!(bytes, ExecRecord, header.tgid, u32), field!(bytes, ExecRecord, tid, u32));
    Ok(Exec {
        pid: Pid(pid),
        by_other_thread: tid != pid,
        time: MonotonicNanos(field!(bytes, ExecRecord, time_ns, u64)),
    })
}

fn mapped(bytes: &[u8]) -> Result<Mapped, DecodeError> {
    let device = field!(bytes, MappedRecord, file.device, u32);
    Ok(Mapped {
        pid: Pid(field!(bytes, MappedRecord, header.tgid, u32)),
        start: TargetAddr(field!(bytes, MappedRecord, start, u64)),
        end: TargetAddr(field!(bytes, MappedRecord, end, u64)),
        offset: FileOffset(field!(bytes, MappedRecord, offset, u64)),
        file: FileKey { inode: field!(bytes, MappedRecord, file.inode, u64), device, reserved: 0 },
        number: field!(bytes, MappedRecord, number, u32),
        is_corrected: field!(bytes, MappedRecord, is_corrected, u16) != 0,
        has_replaced: field!(bytes, MappedRecord, has_replaced, u16) != 0,
    })
}

fn range(bytes: &[u8]) -> Result<Record, DecodeError> {
    let touch = FirstTouch {
        page: TargetAddr(field!(bytes, RangeRecord, page, u64)),
        stack: StackId(field!(bytes, RangeRecord, stack_id, u64)),
        tid: Tid(field!(bytes, RangeRecord, tid, u32)),
        time: MonotonicNanos(field!(bytes, RangeRecord, time_ns, u64)),
        memory: field!(bytes, RangeRecord, memory, u32),
    };
    Ok(Record::Range(Pid(field!(bytes, RangeRecord, header.tgid, u32)), touch))
}

fn remap(bytes: &[u8]) -> Result<Remap, DecodeError> {
    Ok(Remap {
        pid: Pid(field!(bytes, RemapRecord, header.tgid, u32)),
        tid: Tid(field!(bytes, RemapRecord, tid, u32)),
        old_address: TargetAddr(field!(bytes, RemapRecord, old_address, u64)),
        old_bytes: field!(bytes, RemapRecord, old_bytes, u64),
        new_address: TargetAddr(field!(bytes, RemapRecord, new_address, u64)),
        new_bytes: field!(bytes, RemapRecord, new_bytes, u64),
        began: MonotonicNanos(field!(bytes, RemapRecord, began_ns, u64)),
        ended: MonotonicNanos(field!(bytes, RemapRecord, ended_ns, u64)),
        stack: StackId(field!(bytes, RemapRecord, stack_id, u64)),
        hook: HookId(field!(bytes, RemapRecord, hook, u16)),
        heap: HeapId(field!(bytes, RemapRecord, heap, u8)),
    })
}

fn stack(bytes: &[u8]) -> Result<Event, DecodeError> {
    let end = field!(bytes, StackHeader, end, u8);
    let end = StackEnd::from_wire(end).ok_or(DecodeError::UnknownEnd(end))?;
    let depth = usize::from(field!(bytes, StackHeader, depth, u16)).min(STACK_FRAMES_MAX);
    let frames = bytes.get(size_of::<StackHeader>()..).and_then(|rest| rest.get(..depth * 8));
    let frames: Arc<[TargetAddr]> = frames
        .ok_or(DecodeError::Short)?
        .chunks_exact(8)
        .map(|chunk| word(chunk, 0).map(|address| TargetAddr(u64::from_ne_bytes(address))))
        .collect::<Result<_, _>>()?;
    let pid = Pid(field!(bytes, StackHeader, header.tgid, u32));
    Ok(Event::Stack(pid, StackId(field!(bytes, StackHeader, stack_id, u64)), Stack { frames, end }))
}

fn raw_stack(bytes: &[u8]) -> Result<Record, DecodeError> {
    let length = usize::try_from(field!(bytes, RawStackHeader, length, u64)).map_err(|_| DecodeError::Short)?;
    let memory = bytes.get(size_of::<RawStackHeader>()..).and_then(|rest| rest.get(..length));
    let raw = RawStack {
        sp: TargetAddr(field!(bytes, RawStackHeader, sp, u64)),
        bp: field!(bytes, RawStackHeader, bp, u64),
        caller: TargetAddr(field!(bytes, RawStackHeader, caller, u64)),
        start: TargetAddr(field!(bytes, RawStackHeader, start, u64)),
        bytes: memory.ok_or(DecodeError::Short)?.into(),
    };
    let pid = Pid(field!(bytes, RawStackHeader, header.tgid, u32));
    Ok(Record::RawStack(pid, StackId(field!(bytes, RawStackHeader, stack_id, u64)), raw))
}

fn stack_page(bytes: &[u8]) -> Result<Record, DecodeError> {
    const PAGE: std::ops::Range<usize> = offset_of!(StackPageRecord, page)..size_of::<StackPageRecord>();
    let page = StackPage {
        registers: Registers {
            ip: field!(bytes, StackPageRecord, ip, u64),
            sp: field!(bytes, StackPageRecord, sp, u64),
            bp: field!(bytes, StackPageRecord, bp, u64),
            link: field!(bytes, StackPageRecord, link, u64),
            is_return_address: field!(bytes, StackPageRecord, is_return_address, u64) != 0,
        },
        start: TargetAddr(field!(bytes, StackPageRecord, start, u64)),
        bytes: bytes.get(PAGE).ok_or(DecodeError::Short)?.into(),
    };
    let pid = Pid(field!(bytes, StackPageRecord, header.tgid, u32));
    Ok(Record::StackPage(pid, StackId(field!(bytes, StackPageRecord, stack_id, u64)), page))
}

/// The rest depends on the language.
fn code(kind: RecordKind, bytes: &[u8]) -> Result<RawCode, DecodeError> {
    let pid = Pid(field!(bytes, RecordHeader, tgid, u32));
    Ok(RawCode { pid, kind, bytes: bytes.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::interval::Interval;
    use proptest::prelude::*;

    /// The bytes of an alloc record, written out to detect changes of the layout.
    fn alloc_bytes(kind: u8) -> Vec<u8> {
        let mut bytes = vec![kind, 0, 0, 0];
        bytes.extend(42u32.to_ne_bytes());
        bytes.extend(0x7f00_1000u64.to_ne_bytes());
        bytes.extend(43u32.to_ne_bytes());
        bytes.extend(5u16.to_ne_bytes());
        bytes.extend(0u16.to_ne_bytes());
        bytes.extend(99u64.to_ne_bytes());
        bytes.extend((77u64 | 2 << 56).to_ne_bytes());
        bytes.extend((30_000u64 | 4096 << 44).to_ne_bytes());
        bytes
    }

    fn allocation() -> Allocation {
        Allocation {
            pid: Pid(42),
            tid: Tid(43),
            address: TargetAddr(0x7f00_1000),
            size_bytes: 30_000,
            time: MonotonicNanos(77_000),
            stack: StackId(99),
            interval: Interval::nearest(4096),
            hook: HookId(5),
            heap: HeapId(2),
            has_replaced: false,
        }
    }

    #[test]
    fn allocations_decode() {
        assert_eq!(decode(&alloc_bytes(1)), Ok(Record::Event(Event::Alloc(allocation()))));
        assert_eq!(decode(&alloc_bytes(3)), Ok(Record::Event(Event::Restore(allocation()))));
    }

    #[test]
    fn first_touches_decode() {
        let mut bytes = vec![16, 0, 0, 0];
        bytes.extend(42u32.to_ne_bytes());
        [0x7f00_1000u64, 88, 99].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        [44u32, 7].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        let (page, time) = (TargetAddr(0x7f00_1000), MonotonicNanos(88));
        let touch = FirstTouch { page, stack: StackId(99), tid: Tid(44), time, memory: 7 };
        assert_eq!(decode(&bytes), Ok(Record::Range(Pid(42), touch)));
    }

    #[test]
    fn frees_decode() {
        let mut bytes = vec![2, 0, 0, 0];
        bytes.extend(42u32.to_ne_bytes());
        bytes.extend(0x10u64.to_ne_bytes());
        bytes.extend(88u64.to_ne_bytes());
        bytes.extend(44u32.to_ne_bytes());
        bytes.extend(1_000_000u32.to_ne_bytes());
        let address = TargetAddr(0x10);
        let free = Free { pid: Pid(42), tid: Tid(44), address, time: MonotonicNanos(88), age_us: 1_000_000 };
        assert_eq!(decode(&bytes), Ok(Record::Event(Event::Free(free))));
    }

    fn stack_bytes(depth: u16, end: u8, frames: &[u64]) -> Vec<u8> {
        let mut bytes = vec![4, 0, 0, 0];
        bytes.extend(42u32.to_ne_bytes());
        bytes.extend(7u64.to_ne_bytes());
        bytes.extend(depth.to_ne_bytes());
        bytes.extend([end, 0, 0, 0, 0, 0]);
        frames.iter().for_each(|frame| bytes.extend(frame.to_ne_bytes()));
        bytes
    }

    #[test]
    fn stacks_decode() {
        let stack = Stack { frames: Arc::from([TargetAddr(1), TargetAddr(2)]), end: StackEnd::BrokenChain };
        let event = Event::Stack(Pid(42), StackId(7), stack);
        assert_eq!(decode(&stack_bytes(2, 3, &[1, 2])), Ok(Record::Event(event)));
    }

    fn raw_stack_bytes(length: u64, memory: &[u64]) -> Vec<u8> {
        let mut bytes = vec![5, 0, 0, 0];
        bytes.extend(42u32.to_ne_bytes());
        for word in [7, 0x7ffc_1010, 9, 8, 0x7ffc_1000, length].iter().chain(memory) {
            bytes.extend(word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn raw_stacks_decode() {
        let Ok(Record::RawStack(Pid(42), StackId(7), raw)) = decode(&raw_stack_bytes(24, &[1, 2, 3])) else {
            panic!("not a raw stack");
        };
        assert_eq!((raw.sp, raw.bp, raw.caller), (TargetAddr(0x7ffc_1010), 9, TargetAddr(8)));
        assert_eq!(raw.start, TargetAddr(0x7ffc_1000));
        let words = [0x7ffc_1000, 0x7ffc_1008, 0x7ffc_1010].map(|address| raw.word(address));
        assert_eq!(words, [Some(1), Some(2), Some(3)]);
        let outside = [0, 0x7ffc_0ff8, 0x7ffc_1011, 0x7ffc_1018, u64::MAX].map(|address| raw.word(address));
        assert_eq!(outside, [None; 5]);
    }

    fn page_bytes() -> Vec<u8> {
        let mut bytes = vec![9, 0, 0, 0];
        bytes.extend(42u32.to_ne_bytes());
        for word in [7u64, 0x7f00_5678, 0x7ffc_1010, 9, 8, 1, 0x7ffc_1000] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend((0..512u64).flat_map(u64::to_ne_bytes));
        bytes
    }

    #[test]
    fn stack_pages_decode() {
        let Ok(Record::StackPage(Pid(42), StackId(7), page)) = decode(&page_bytes()) else {
            panic!("not a page");
        };
        let registers = Registers { ip: 0x7f00_5678, sp: 0x7ffc_1010, bp: 9, link: 8, is_return_address: true };
        assert_eq!((page.registers, page.start), (registers, TargetAddr(0x7ffc_1000)));
        assert_eq!(*page.bytes, (0..512u64).flat_map(u64::to_ne_bytes).collect::<Vec<_>>()[..]);
    }

    #[test]
    fn unknown_and_truncated_records_are_refused() {
        assert_eq!(decode(&raw_stack_bytes(24, &[1, 2])), Err(DecodeError::Short));
        assert_eq!(decode(&raw_stack_bytes(u64::MAX, &[1, 2])), Err(DecodeError::Short));
        assert_eq!(decode(&[]), Err(DecodeError::Short));
        assert_eq!(decode(&[99]), Err(DecodeError::UnknownKind(99)));
        assert_eq!(decode(&page_bytes()[..4159]), Err(DecodeError::Short));
        assert_eq!(decode(&stack_bytes(0, 200, &[])), Err(DecodeError::UnknownEnd(200)));
        assert_eq!(decode(&stack_bytes(3, 0, &[1, 2])), Err(DecodeError::Short));
        assert_eq!(decode(&alloc_bytes(1)[..47]), Err(DecodeError::Short));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..5000), kind in 0u8..16) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let _ = decode(&bytes);
        }
    }
}
