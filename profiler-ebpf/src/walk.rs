//! Unwinds a stack frame by frame: by tables made from `.eh_frame`, or by frame pointers.
//!
//! One frame is a global function, and so is a batch of frames. The verifier checks each of them once, so a deep walk costs
//! it no more than a shallow one. Between calls, the state is in the claimed scratch area. This form loads on Linux 5.15 and
//! later, which cookies require anyway.

use profiler_common::arch::{CALL_BYTES, HAS_LINK};
use profiler_common::interpreter::Runtime;
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::mapped::GENERATED;
use profiler_common::rule_cache::CacheKey;
use profiler_common::stack::{StackEnd, StackHasher};
use profiler_common::step::{Registers, Step, step};
use profiler_common::unwind::{
    PageRows, ProcessMapping, ProcessMappings, ReadTables, Rule, SEARCH_STEPS, UnwindRow, find_rule,
};

use crate::layout::{Scratch, Walk};
use crate::maps::{MAPPING_STATES, MAPPINGS, PAGES, PROCESSES, ROWS, RULE_CACHE, RULES, SCRATCH};
use crate::window::Window;
use crate::{config, frames, hotspot, interpreter, machine, php, returns, v8};

/// Result of [`unwind_step`] if there is a caller; any other is a [`StackEnd`] plus 1.
const CONTINUE: u32 = 0;
/// Flag of a result of [`unwind_step`]: the frame is one of the interpreter loop.
const IN_LOOP: u32 = 1 << 8;
/// Results of [`unwind_step`] if the frame is HotSpot's or V8's: it has not been added.
const IN_HOTSPOT: u32 = 1 << 9;
const IN_V8: u32 = 1 << 10;

/// Unwinds from a call of the process at its function's entry. `sp` and `bp` are its registers there, `caller` its return
/// address. The frames are in the area's record then, and their number and hash in its state.
#[inline(always)]
pub(crate) fn unwind(
    scratch: *mut Scratch,
    area: u32,
    tgid: u32,
    (sp, bp, caller): (u64, u64, Option<u64>),
    hasher: StackHasher,
) -> StackEnd {
    match start(scratch, tgid, (sp, bp, caller), hasher) {
        Ok(()) => walk(scratch, area),
        Err(end) => end,
    }
}

/// Initialises the state: the caller's registers after the call has returned.
#[inline(always)]
fn start(
    scratch: *mut Scratch,
    tgid: u32,
    (sp, bp, caller): (u64, u64, Option<u64>),
    hasher: StackHasher,
) -> Result<(), StackEnd> {
    // SAFETY: this program has claimed the area.
    let walk = unsafe { &mut (*scratch).walk };
    walk.depth = 0;
    walk.hash = hasher.state();
    walk.hash_before = hasher.state();
    walk.seed = hasher.state();
    walk.ip = caller.ok_or(StackEnd::Unreadable)?;
    walk.sp = sp.wrapping_add(CALL_BYTES);
    if HAS_LINK {
        walk.link = 0;
    }
    walk.bp = bp;
    walk.is_return_address = 1;
    walk.interpreter.number = 0;
    machine::start(&mut walk.machine, 0);
    if config::unwind_by_tables() {
        let mappings = mappings_of(tgid);
        walk.mapping_first = mappings.first;
        walk.mapping_count = mappings.count;
        walk.mapping_serial = mappings.serial;
        start_mappings(walk, tgid, &mappings);
        walk.mapping_copies = mappings.copies as u64;
        interpreter::start(&mut walk.interpreter, mappings.interpreter);
        machine::start(&mut walk.machine, mappings.machine);
        php::start(walk);
    }
    Ok(())
}

/// The process's executable mappings.
#[inline(always)]
fn mappings_of(tgid: u32) -> ProcessMappings {
    match PROCESSES.get_ptr(&tgid) {
        // SAFETY: the pointer comes from a successful lookup.
        Some(process) => unsafe { *process },
        None => ProcessMappings::NONE,
    }
}

/// Notes what has been mapped since the mappings were registered.
#[inline(always)]
fn start_mappings(walk: &mut Walk, tgid: u32, mappings: &ProcessMappings) {
    walk.mapping_changes = 0;
    walk.reused.end = 0;
    walk.unknown.end = 0;
    let Some(state) = MAPPING_STATES.get_ptr(&tgid) else {
        return;
    };
    // SAFETY: the pointer comes from a successful lookup. While another thread maps code, the words may be of two changes. The
    // ranges only grow until the rows have the changes, and this thread has no frame in code that is being replaced.
    let state = unsafe { &*state };
    walk.mapping_changes = state.changes;
    walk.reused.start = state.reused.start;
    walk.reused.end = state.reused.end;
    if state.changes == mappings.changes {
        return;
    }
    if state.corrected == mappings.serial {
        walk.mapping_serial = state.serial;
    } else {
        walk.unknown.start = state.recent.start;
        walk.unknown.end = state.recent.end;
    }
}

/// Frames that one call of [`unwind_batch`] unwinds. The loops nest, so that the verifier adds their bounds, while at run time
/// they multiply.
const BATCH: usize = 32;

const _: () = assert!(STACK_FRAMES_MAX.is_multiple_of(BATCH));

#[inline(always)]
fn walk(scratch: *mut Scratch, area: u32) -> StackEnd {
    let mut word = CONTINUE;
    for _ in 0..STACK_FRAMES_MAX / BATCH {
        word = unwind_batch(area);
        if word != CONTINUE {
            break;
        }
    }
    // SAFETY: this program has claimed the area.
    if word != CONTINUE && unsafe { (*scratch).walk.interpreter.number } != 0 {
        word = interpreter::frames_at_end(area, word);
    }
    match word.wrapping_sub(1) {
        0 => StackEnd::Complete,
        2 => StackEnd::Unreadable,
        3 => StackEnd::BrokenChain,
        5 => StackEnd::MissingModule,
        6 => StackEnd::NoRow,
        7 => StackEnd::UnsupportedRule,
        8 => StackEnd::NativeMissing,
        9 => StackEnd::Frozen,
        _ => StackEnd::Truncated,
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn unwind_batch(area: u32) -> u32 {
    for _ in 0..BATCH {
        let mut word = unwind_step(area);
        if word == IN_HOTSPOT {
            word = hotspot::hotspot_frame(area);
            if word == hotspot::IS_FROZEN {
                word = hotspot::hotspot_chunk(area);
            }
        } else if word == IN_V8 {
            word = v8::v8_frame(area);
        }
        if config::faults() && word == StackEnd::MissingModule as u32 + 1 && returns::restore_return(area) != 0 {
            word = CONTINUE;
        }
        if word & IN_LOOP != 0 {
            interpreter::frames_of_call(area);
        }
        if word & !IN_LOOP != CONTINUE {
            return word & !IN_LOOP;
        }
    }
    CONTINUE
}

/// Writes the current frame and steps to its caller. Returns [`CONTINUE`], or an end, and [`IN_LOOP`]; or [`IN_HOTSPOT`] or [`IN_V8`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn unwind_step(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return StackEnd::NoScratch as u32 + 1;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let walk = unsafe { &mut (*scratch).walk };
    let registers = walk.registers();
    let depth = walk.depth as usize;
    if depth >= STACK_FRAMES_MAX {
        return StackEnd::Truncated as u32 + 1;
    }
    match machine::with_code(&walk.machine, registers.lookup_address()) {
        Some(Runtime::V8) => return IN_V8,
        Some(_) => return IN_HOTSPOT,
        None => {}
    }
    let in_loop = if interpreter::is_loop(&walk.interpreter, registers.lookup_address()) { IN_LOOP } else { 0 };
    let rule = match rule(walk, &registers) {
        Ok(rule) => rule,
        Err(end) => {
            if end != StackEnd::NoRow || !php::is_in(&walk.interpreter) {
                frames::add(scratch, registers.ip);
                if end == StackEnd::MissingModule {
                    // What is there may be other code after the next change.
                    frames::distinguish(walk, walk.mapping_changes as u64);
                }
            }
            return (end as u32 + 1) | in_loop;
        }
    };
    frames::add(scratch, registers.ip);
    if walk.reused.contains(registers.lookup_address()) {
        distinguish_code(area);
    }
    match step(&registers, rule, &Window::of(scratch, area)) {
        Step::Caller(caller) => {
            walk.set_registers(&caller);
            CONTINUE | in_loop
        }
        // Generated code without tables may use the frame pointer for anything, and no thread begins there.
        Step::End(StackEnd::Complete) if rule == Rule::FRAME_POINTER && is_generated(area) != 0 => {
            (StackEnd::BrokenChain as u32 + 1) | in_loop
        }
        Step::End(end) => (end as u32 + 1) | in_loop,
    }
}

/// Whether the current frame is in generated code that is unwound by frame pointers: 1 or 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn is_generated(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return 0;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let walk = unsafe { &(*scratch).walk };
    match find_mapping(walk.mapping_first, walk.mapping_count, walk.registers().lookup_address()) {
        Some(mapping) => u32::from(mapping.identity == GENERATED && mapping.table.is_frame_pointer()),
        None => 0,
    }
}

/// Makes the stack's id depend on the code of the frame that was just added: other code may have been there before.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn distinguish_code(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return 0;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let walk = unsafe { &mut (*scratch).walk };
    let address = walk.registers().lookup_address();
    if let Some(mapping) = find_mapping(walk.mapping_first, walk.mapping_count, address) {
        frames::distinguish(walk, mapping.identity);
    }
    1
}

/// The unwind rule of the current frame.
#[inline(always)]
fn rule(walk: &Walk, registers: &Registers) -> Result<Rule, StackEnd> {
    if !config::unwind_by_tables() {
        return Ok(Rule::FRAME_POINTER);
    }
    let address = registers.lookup_address();
    if walk.unknown.contains(address) {
        return Err(StackEnd::MissingModule);
    }
    let key = CacheKey::new(walk.mapping_serial, address);
    let slot = RULE_CACHE.get_ptr_mut(key.slot());
    // SAFETY: the pointer comes from a successful lookup. The words need not be of one write: see `CacheKey::rule`.
    if let Some(rule) = slot.and_then(|slot| key.rule(unsafe { slot.read_volatile() })) {
        return Ok(rule);
    }
    let rule = search(walk, address)?;
    if let Some(slot) = slot {
        // SAFETY: as above.
        unsafe { slot.write_volatile(key.entry(rule)) };
    }
    Ok(rule)
}

/// Searches the tables for the rule of an address.
#[inline(always)]
fn search(walk: &Walk, address: u64) -> Result<Rule, StackEnd> {
    let mapping = find_mapping(walk.mapping_first, walk.mapping_count, address).ok_or(StackEnd::MissingModule)?;
    let table = &mapping.table;
    if table.is_table() {
        find_rule(&Maps, table, address).ok_or(StackEnd::NoRow)
    } else if table.is_frame_pointer() {
        // Code that opcache has compiled has no frame pointers.
        if php::is_in(&walk.interpreter) { Err(StackEnd::NoRow) } else { Ok(Rule::FRAME_POINTER) }
    } else {
        Err(StackEnd::MissingModule)
    }
}

/// Whether the agent may know by now, or soon, what is at an address: it is in no registered mapping, or something has been mapped there
/// since.
#[inline(always)]
pub(crate) fn is_unregistered(walk: &Walk, address: u64) -> bool {
    if walk.unknown.contains(address) {
        return true;
    }
    match find_mapping(walk.mapping_first, walk.mapping_count, address) {
        Some(mapping) => mapping.table.is_changed(),
        None => true,
    }
}

/// Finds the process's mapping that contains the address, by binary search over `count` mappings from index `first`.
#[inline(always)]
pub(crate) fn find_mapping(first: u32, count: u32, address: u64) -> Option<ProcessMapping> {
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

/// The unwind tables as maps.
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
