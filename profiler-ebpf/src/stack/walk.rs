//! Walks a stack outwards, frame by frame: by tables made from `.eh_frame`, or by frame pointers.
//!
//! One frame is a global function, and so are some dozens of frames. The verifier checks each of them once, so a deep
//! walk costs it no more than a shallow one. The walk's state lies in the claimed scratch area between calls. This form
//! loads from Linux 5.15 on, which cookies need anyway.

use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::stack::{StackEnd, StackHasher};
use profiler_common::step::{Registers, Step, step};
use profiler_common::unwind::{PageRows, ProcessMapping, ReadTables, Rule, SEARCH_STEPS, UnwindRow, find_rule};

use crate::config;
use crate::hook::Call;
use crate::maps::{MAPPINGS, PAGES, PROCESSES, ROWS, RULES, SCRATCH};
use crate::scratch::{Claim, Scratch};
use crate::stack::Unwound;
use crate::stack::window::{self, Window};

/// What one step hands to the next.
#[repr(C)]
pub(crate) struct Walk {
    ip: u64,
    sp: u64,
    bp: u64,
    /// Frames written so far.
    depth: u64,
    /// The mapping that the last frame was in: mostly the next one's too.
    mapping: ProcessMapping,
    /// The process's mappings.
    mapping_first: u32,
    mapping_count: u32,
    /// The frames' hash so far.
    hash: u64,
    /// 1 when `ip` is a return address.
    is_return_address: u32,
    reserved: u32,
}

/// The step function's word for "there is a caller"; everything else is a [`StackEnd`] plus 1.
const GO_ON: u32 = 0;

/// Walks from a function's entry, where the return address is on top of the stack.
#[inline(always)]
pub(super) fn unwind(call: &Call, claim: &Claim, hasher: StackHasher) -> Unwound {
    let scratch = claim.scratch();
    window::clear(scratch);
    let end = match start(call, scratch, hasher) {
        Ok(()) => walk(claim.area()),
        Err(end) => end,
    };
    // SAFETY: the area is claimed by this program.
    let (depth, hash) = unsafe { ((*scratch).walk.depth, (*scratch).walk.hash) };
    Unwound { depth, end, hasher: StackHasher::resume(hash) }
}

/// The state before the first frame: the caller's, once the call has returned.
#[inline(always)]
fn start(call: &Call, scratch: *mut Scratch, hasher: StackHasher) -> Result<(), StackEnd> {
    // SAFETY: the area is claimed by this program.
    let walk = unsafe { &mut (*scratch).walk };
    walk.depth = 0;
    walk.hash = hasher.state();
    let ip = Window(scratch).read(call.sp()).ok_or(StackEnd::Unreadable)?;
    let tgid = call.tgid();
    let (first, count) = if config::unwind_by_tables() { mappings_of(tgid) } else { (0, 0) };
    *walk = Walk {
        ip,
        sp: call.sp().wrapping_add(8),
        bp: call.bp(),
        depth: 0,
        mapping: ProcessMapping::NONE,
        mapping_first: first,
        mapping_count: count,
        hash: hasher.state(),
        is_return_address: 1,
        reserved: 0,
    };
    Ok(())
}

/// Where the process's mappings lie, and how many there are.
#[inline(always)]
fn mappings_of(tgid: u32) -> (u32, u32) {
    match PROCESSES.get_ptr(&tgid) {
        // SAFETY: the pointer comes from a successful lookup.
        Some(process) => unsafe { ((*process).first, (*process).count) },
        None => (0, 0),
    }
}

/// Frames that one call of [`unwind_some`] walks: the loops nest, so that their bounds add up where the verifier sees
/// them, and multiply where they run.
const SOME: usize = 32;

const _: () = assert!(STACK_FRAMES_MAX.is_multiple_of(SOME));

#[inline(always)]
fn walk(area: u32) -> StackEnd {
    for _ in 0..STACK_FRAMES_MAX / SOME {
        let word = unwind_some(area);
        if word != GO_ON {
            return match word - 1 {
                0 => StackEnd::Complete,
                2 => StackEnd::Unreadable,
                3 => StackEnd::BrokenChain,
                5 => StackEnd::MissingModule,
                6 => StackEnd::NoRow,
                7 => StackEnd::UnsupportedRule,
                _ => StackEnd::Truncated,
            };
        }
    }
    StackEnd::Truncated
}

/// Walks on until there is an end, or for some frames.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn unwind_some(area: u32) -> u32 {
    for _ in 0..SOME {
        let word = unwind_step(area);
        if word != GO_ON {
            return word;
        }
    }
    GO_ON
}

/// Writes the present frame and goes on to its caller.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn unwind_step(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return StackEnd::NoScratch as u32 + 1;
    };
    // SAFETY: the pointer comes from a successful lookup, and the area is claimed by this program.
    let walk = unsafe { &mut (*scratch).walk };
    let registers = Registers { ip: walk.ip, sp: walk.sp, bp: walk.bp, is_return_address: walk.is_return_address != 0 };
    let depth = walk.depth as usize;
    if depth >= STACK_FRAMES_MAX {
        return StackEnd::Truncated as u32 + 1;
    }
    super::put(scratch, depth, registers.ip);
    walk.depth = depth as u64 + 1;
    let mut hasher = StackHasher::resume(walk.hash);
    hasher.add(registers.ip);
    walk.hash = hasher.state();
    let rule = match rule(walk, &registers) {
        Ok(rule) => rule,
        Err(end) => return end as u32 + 1,
    };
    match step(&registers, rule, &Window(scratch)) {
        Step::Caller(caller) => {
            walk.ip = caller.ip;
            walk.sp = caller.sp;
            walk.bp = caller.bp;
            walk.is_return_address = caller.is_return_address as u32;
            GO_ON
        }
        Step::End(end) => end as u32 + 1,
    }
}

/// What to do at the present frame.
#[inline(always)]
fn rule(walk: &mut Walk, registers: &Registers) -> Result<Rule, StackEnd> {
    if !config::unwind_by_tables() {
        return Ok(Rule::FRAME_POINTER);
    }
    let address = registers.lookup_address();
    if !walk.mapping.contains(address) {
        let found = find_mapping(walk.mapping_first, walk.mapping_count, address);
        walk.mapping = found.ok_or(StackEnd::MissingModule)?;
    }
    let table = &walk.mapping.table;
    if table.is_table() {
        find_rule(&Maps, table, address).ok_or(StackEnd::NoRow)
    } else if table.is_frame_pointer() {
        Ok(Rule::FRAME_POINTER)
    } else {
        Err(StackEnd::MissingModule)
    }
}

/// The process's mapping that holds the address, by binary search over `count` mappings from `first` on.
#[inline(always)]
fn find_mapping(first: u32, count: u32, address: u64) -> Option<ProcessMapping> {
    let mut low = first;
    let mut high = first.wrapping_add(count);
    for _ in 0..SEARCH_STEPS {
        if low >= high {
            break;
        }
        let middle = low.wrapping_add(high.wrapping_sub(low) >> 1);
        let mapping = MAPPINGS.get(middle)?;
        if address < mapping.start {
            high = middle;
        } else if address >= mapping.end {
            low = middle.wrapping_add(1);
        } else {
            return Some(*mapping);
        }
    }
    None
}

/// The tables as maps.
struct Maps;

impl ReadTables for Maps {
    #[inline(always)]
    fn row(&self, index: u32) -> Option<UnwindRow> {
        ROWS.get(index >> 1).map(|cell| cell.row(index))
    }

    #[inline(always)]
    fn page(&self, index: u32) -> Option<PageRows> {
        PAGES.get(index).copied()
    }

    #[inline(always)]
    fn rule(&self, index: u16) -> Option<Rule> {
        RULES.get(index as u32).copied()
    }
}
