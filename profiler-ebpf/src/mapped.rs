//! Where targets map memory: code may have been there before.
//!
//! The programs run at the raw tracepoint `vm_unmapped_area(addr, info)` (Linux 5.7): the kernel has found a free range for a mapping,
//! and has not made it yet (`vm_unmapped_area` in mm/mmap.c), with the lock of the process's memory held for writing: calls for one
//! process never overlap. A dynamic linker maps a library once like this, from its first byte to its last one, and its segments over
//! that. Mappings at addresses that the process chooses are not seen; nor is code that the process itself moves.
//!
//! Most mappings are memory, or data of files, where the agent has registered no code: nothing changes. Libraries are recognised by the
//! flag with which glibc maps them, by their permissions, or because the agent knows them.
//!
//! The tracepoint is preemptible on Linux 7.x, and the kernel does not run a program while another task's run of it is preempted on
//! the same CPU. So there are two copies: what one has handled is no change to the other.

use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use aya_ebpf::helpers::generated::{
    bpf_get_current_task, bpf_get_current_task_btf, bpf_get_prandom_u32, bpf_task_pt_regs,
};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel};
use profiler_common::counter::Counter;
use profiler_common::limits::{MAPPED_PER_PERIOD, MAPPED_PERIOD_SHIFT};
use profiler_common::mapped::{CodeRange, FileKey, GENERATED, MappingState};
use profiler_common::record::{MappedRecord, RecordHeader, RecordKind};
use profiler_common::unwind::{ProcessMapping, ProcessMappings, SEARCH_STEPS, TableRef};

use crate::maps::{CODE_FILES, MAPPING_STATES, MAPPINGS, PROCESSES, count};
use crate::process::Arguments;
use crate::{arch, config, emit};

/// Rows that one mapping replaces at most. Then the rows stay uncorrected, and the agent registers them again.
const REPLACED_MAX: usize = 8;

/// Serials of corrected rows: those of registrations are below.
const CORRECTED: u32 = 1 << 31;

/// `PROT_EXEC` in include/uapi/asm-generic/mman-common.h.
const EXECUTABLE: u64 = 4;
/// `MAP_PRIVATE` in include/uapi/linux/mman.h, `MAP_ANONYMOUS` in include/uapi/asm-generic/mman-common.h, and `MAP_DENYWRITE`, which the
/// kernel ignores, in include/uapi/asm-generic/mman.h. Dynamic linkers map files privately, and glibc's with the last one
/// (`MAP_COPY` in elf/dl-load.h).
const PRIVATE: u64 = 0x02;
const ANONYMOUS: u64 = 0x20;
const DENY_WRITE: u64 = 0x800;

const NEW: MappingState = MappingState {
    changes: 0,
    reported: 0,
    serial: 0,
    corrected: 0,
    shared: 0,
    period: 0,
    sent: 0,
    reserved: 0,
    last_start: 0,
    last_identity: 0,
    reused: CodeRange { start: 0, end: 0 },
    recent: CodeRange { start: 0, end: 0 },
};

const NO_FILE: FileKey = FileKey { inode: 0, device: 0, reserved: 0 };

struct Mapped {
    start: u64,
    end: u64,
    offset: u64,
    /// [`NO_FILE`] for memory without a file, and if it is not known.
    file: FileKey,
    /// Whether it is the file of a library.
    is_library: bool,
}

#[inline(always)]
fn word(address: u64) -> Option<u64> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(address as *const u64) }.ok()
}

impl Mapped {
    #[inline(always)]
    fn base(&self) -> u64 {
        self.start.wrapping_sub(self.offset)
    }

    #[inline(always)]
    fn identity(&self) -> u64 {
        if self.file.inode == 0 { GENERATED } else { self.file.identity(self.base()) }
    }

    /// Finds the file that the current thread is mapping privately by `mmap`, by the arguments of that system call.
    #[inline(always)]
    fn find_file(&mut self) -> Option<()> {
        // SAFETY: the helpers take no arguments, and a pointer that one of them has returned.
        let registers = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as u64;
        let [number, bytes, protection, flags, descriptor, offset] = arch::map_arguments(registers)?;
        let page_bytes = 1 << config::page_shift();
        let length = bytes.wrapping_add(page_bytes - 1) & !(page_bytes - 1);
        // The kernel may search a longer range, to align the mapping within it.
        if number != arch::MMAP
            || flags & (ANONYMOUS | PRIVATE) != PRIVATE
            || length != self.end.wrapping_sub(self.start)
        {
            return None;
        }
        // SAFETY: the helper takes no arguments.
        let task = unsafe { bpf_get_current_task() };
        let files = word(task + config::task_files_offset())?;
        let table = word(files + config::files_table_offset())?;
        let descriptors = word(table + config::table_descriptors_offset())?;
        // Another thread may have closed the descriptor since the kernel has looked it up, as it may at any time: a linker does not.
        let file = word(descriptors.wrapping_add((descriptor as u32 as u64) << 3))?;
        if file == 0 {
            return None;
        }
        let inode = word(file + config::file_inode_offset())?;
        let number = word(inode + config::inode_number_offset())?;
        let file_system = word(inode + config::inode_super_offset())?;
        // SAFETY: the helper checks the address.
        let device = unsafe { bpf_probe_read_kernel((file_system + config::super_device_offset()) as *const u32) };
        self.file = FileKey { inode: number, device: device.ok()?, reserved: 0 };
        self.offset = offset;
        // SAFETY: the pointer is not dereferenced.
        let is_known = unsafe { CODE_FILES.get(&self.file) }.is_some();
        self.is_library = is_known || flags & DENY_WRITE != 0 || protection & EXECUTABLE != 0;
        Some(())
    }
}

/// `vm_unmapped_area(addr, info)`: the current process is about to map memory.
#[inline(always)]
pub(crate) fn mapped(arguments: &Arguments, _copy: u32) {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let Some(process) = PROCESSES.get_ptr(&tgid) else {
        return;
    };
    // SAFETY: the pointer comes from a successful lookup.
    let process = unsafe { *process };
    let start = arguments.first();
    // A negative error number.
    if start & ((1 << config::page_shift()) - 1) != 0 {
        return;
    }
    let Some(length) = word(arguments.second() + config::area_length_offset()) else {
        return;
    };
    let mut mapped = Mapped { start, end: start.wrapping_add(length), offset: 0, file: NO_FILE, is_library: false };
    let index = first_behind(process.first, process.count, mapped.start);
    let row = row_at(&process, index).filter(|row| row.start < mapped.end);
    let _ = mapped.find_file();
    let identity = mapped.identity();
    // Where there was no code of a file, what is not a library is generated code at most.
    if !mapped.is_library && row.is_none_or(|row| row.identity == GENERATED) {
        return;
    }
    let Some(state) = state_of(tgid) else {
        count(Counter::MappingMissed);
        return;
    };
    // SAFETY: the pointer comes from a successful lookup. Calls for one process do not overlap; `share` changes one word of it.
    let state = unsafe { &mut *state };
    let is_registered = process.serial != 0;
    let is_latest = state.changes == process.changes;
    let is_known = is_latest || is_registered && state.corrected == process.serial;
    if is_known && row.is_some_and(|row| row.identity == identity) {
        return;
    }
    // By the other copy, or once more.
    if state.last_start == mapped.start && state.last_identity == identity {
        return;
    }
    (state.last_start, state.last_identity) = (mapped.start, identity);
    let serial = if state.corrected == process.serial { state.serial } else { process.serial };
    note(state, &mapped, is_latest, row.is_some());
    let may_report = may_report(state);
    let is_owned = is_registered && state.shared != process.serial && may_report;
    let (mut is_corrected, mut has_all) = (false, false);
    if row.is_none() && is_known && is_registered {
        // That the rows have nothing there is right. They may be registered again, from mappings that were read before.
        (state.serial, has_all) = (serial, true);
    } else if is_owned && (is_known || forget(&process, &state.recent)) {
        (is_corrected, has_all) = correct(&process, index, &mapped);
        is_corrected &= row.is_some();
        // SAFETY: the helper takes no arguments.
        state.serial = unsafe { bpf_get_prandom_u32() } | CORRECTED;
    }
    if has_all {
        state.corrected = process.serial;
    }
    // The agent is about to read the mappings of a program that it does not know yet.
    if is_registered && may_report {
        report(tgid, state, &mapped, is_corrected, row.is_some());
    } else if is_registered && row.is_some() {
        count(Counter::MappingMissed);
    }
}

/// Tells the agent, at once if it has to register the mappings again.
#[inline(always)]
fn report(tgid: u32, state: &mut MappingState, mapped: &Mapped, is_corrected: bool, has_replaced: bool) {
    state.reported = state.reported.wrapping_add(1);
    let record = MappedRecord {
        header: RecordHeader::new(RecordKind::Mapped, tgid),
        start: mapped.start,
        end: mapped.end,
        offset: mapped.offset,
        file: mapped.file,
        number: state.reported,
        is_corrected: u16::from(is_corrected),
        has_replaced: u16::from(has_replaced),
    };
    let sent = if has_replaced && !is_corrected { emit::urgent(record) } else { emit::record(record) };
    if !sent && has_replaced {
        count(Counter::MappingMissed);
    }
}

/// Whether the process has not sent too many changes in this period; counts another one.
#[inline(always)]
fn may_report(state: &mut MappingState) -> bool {
    let period = (emit::now_ns() >> MAPPED_PERIOD_SHIFT) as u32;
    if state.period != period {
        (state.period, state.sent) = (period, 0);
    }
    state.sent = state.sent.wrapping_add(1);
    state.sent <= MAPPED_PER_PERIOD
}

/// Enters a change into the state. From here on, walks do not use the rows where it was.
#[inline(always)]
fn note(state: &mut MappingState, mapped: &Mapped, is_latest: bool, has_replaced: bool) {
    let new = CodeRange { start: mapped.start, end: mapped.end };
    state.recent = if is_latest { new } else { hull(state.recent, new) };
    if has_replaced {
        state.reused = hull(state.reused, new);
    }
    state.corrected = 0;
    state.changes = state.changes.wrapping_add(1);
}

#[inline(always)]
fn hull(one: CodeRange, other: CodeRange) -> CodeRange {
    if one.end == 0 {
        return other;
    }
    CodeRange {
        start: if other.start < one.start { other.start } else { one.start },
        end: if other.end > one.end { other.end } else { one.end },
    }
}

/// Has stacks end in the rows of a range. Returns whether those are all that overlap it.
#[inline(always)]
fn forget(process: &ProcessMappings, range: &CodeRange) -> bool {
    let index = first_behind(process.first, process.count, range.start);
    for step in 0..REPLACED_MAX as u32 {
        let at = index.wrapping_add(step);
        match row_at(process, at) {
            Some(row) if row.start < range.end => write(at, &ProcessMapping { table: TableRef::CHANGED, ..row }),
            _ => return true,
        }
    }
    false
}

/// Replaces the rows from this index on that the mapping has replaced. Returns whether its table is known, and whether all rows are
/// right.
#[inline(always)]
fn correct(process: &ProcessMappings, index: u32, mapped: &Mapped) -> (bool, bool) {
    // SAFETY: the value is copied; the agent may replace it at any time.
    let file = unsafe { CODE_FILES.get(&mapped.file) };
    let identity = mapped.identity();
    let base = mapped.base();
    let new = match file {
        Some(file) if identity != GENERATED && mapped.offset == 0 && file.code_end <= mapped.end.wrapping_sub(base) => {
            ProcessMapping {
                start: base.wrapping_add(file.code_start),
                end: base.wrapping_add(file.code_end),
                table: file.table(base),
                identity,
            }
        }
        _ => ProcessMapping { start: mapped.start, end: mapped.end, table: TableRef::CHANGED, identity },
    };
    let mut is_complete = false;
    for step in 0..REPLACED_MAX as u32 {
        let at = index.wrapping_add(step);
        match row_at(process, at) {
            Some(row) if row.start < mapped.end => {
                // The others contain nothing, and remain in their places.
                let empty = ProcessMapping { start: new.end, end: new.end, ..ProcessMapping::NONE };
                write(at, if step == 0 { &new } else { &empty });
            }
            _ => {
                is_complete = true;
                break;
            }
        }
    }
    (is_complete && !new.table.is_changed(), is_complete)
}

#[inline(always)]
fn write(index: u32, row: &ProcessMapping) {
    if let Some(place) = MAPPINGS.get_ptr_mut(index) {
        // SAFETY: the pointer comes from a successful lookup. A walk of a thread that has no frame there may read half of it: it is
        // looking for another row, and walks with the serial of before.
        unsafe { *place = *row };
    }
}

#[inline(always)]
fn row_at(process: &ProcessMappings, index: u32) -> Option<ProcessMapping> {
    if index.wrapping_sub(process.first) >= process.count {
        return None;
    }
    MAPPINGS.get(index).copied()
}

/// Index of the first row that ends behind the address.
#[inline(always)]
fn first_behind(first: u32, count: u32, address: u64) -> u32 {
    let (mut low, mut high) = (first, first.wrapping_add(count));
    for _ in 0..=SEARCH_STEPS {
        if low >= high {
            break;
        }
        let middle = low.wrapping_add(high.wrapping_sub(low) >> 1);
        let Some(row) = MAPPINGS.get(middle) else {
            break;
        };
        if row.end <= address {
            low = middle.wrapping_add(1);
        } else {
            high = middle;
        }
    }
    low
}

#[inline(always)]
fn state_of(tgid: u32) -> Option<*mut MappingState> {
    if let Some(state) = MAPPING_STATES.get_ptr_mut(&tgid) {
        return Some(state);
    }
    let _ = MAPPING_STATES.insert(&tgid, &NEW, u64::from(BPF_NOEXIST));
    MAPPING_STATES.get_ptr_mut(&tgid)
}

/// Notes that a forked child has the registered rows of its parent, which then must not be corrected for either.
#[inline(always)]
pub(crate) fn share(parent: u32, child: u32, serial: u32) {
    let Some(state) = state_of(parent) else {
        return;
    };
    // SAFETY: the pointer comes from a successful lookup.
    let state = unsafe { &mut *state };
    state.shared = serial;
    let _ = MAPPING_STATES.insert(&child, state, u64::from(BPF_ANY));
}
