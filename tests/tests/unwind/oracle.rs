//! The same stacks unwound by framehop, and where the two unwinders differ.
//!
//! framehop has its own code for everything from the lookup of a function to the registers of its caller. Its input is
//! that of the kernel side: the registers at the hooked function's entry, a copy of the stack's memory taken at the
//! same time, and the unwind sections of the files that the process maps.

use std::collections::HashMap;
use std::sync::Arc;

#[cfg(target_arch = "aarch64")]
use framehop::aarch64::{
    CacheAarch64 as Cache, PtrAuthMask, UnwindRegsAarch64 as Registers, UnwinderAarch64 as Framehop,
};
#[cfg(not(target_arch = "aarch64"))]
use framehop::x86_64::{CacheX86_64 as Cache, UnwindRegsX86_64 as Registers, UnwinderX86_64 as Framehop};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use heapbpf::internals::{AddressSpace, Image, ModuleStore, RawSample, Table};
use heapbpf_base::address::LinkAddr;
use heapbpf_base::ids::{ModuleId, Pid};
use heapbpf_ledger::ingest::record::RawStack;
use object::{Object, ObjectSection};
use profiler_common::interpreter::InterpretedFrame;
use profiler_common::limits::{PAGE_BYTES, RAW_STACK_PAGES_MAX, STACK_FRAMES_MAX};
use profiler_common::stack::StackEnd;
use profiler_common::unwind::{CallerBp, Cfa, Rule};

/// framehop's result for a stack.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Return addresses, the innermost first.
    pub(crate) frames: Vec<u64>,
    /// Why it stopped. `Ok` at the thread's first frame.
    pub(crate) end: Result<(), framehop::Error>,
    /// The address that could not be read, if one could not.
    unread: Option<u64>,
}

/// Location of a module in the process.
struct Place {
    start: u64,
    end: u64,
    bias: u64,
    module: ModuleId,
}

/// framehop with a process's modules.
pub(crate) struct Oracle {
    unwinder: Framehop<Arc<[u8]>>,
    cache: Cache,
    modules: ModuleStore,
    places: Vec<Place>,
    /// heapbpf's tables, for the rule that was used where the two differ.
    tables: HashMap<ModuleId, Table>,
}

/// Addresses in the stack. Interpreted functions have none, and framehop does not see them.
pub(crate) fn native(sample: &RawSample) -> impl Iterator<Item = u64> {
    let words = sample.stack.frames.iter().map(|frame| frame.0);
    words.filter(|&word| InterpretedFrame::from_word(word).is_none())
}

impl Oracle {
    /// Reads the current mappings of a process.
    pub(crate) fn new(pid: u32) -> Self {
        let mut modules = ModuleStore::default();
        let mut space = AddressSpace::new(Pid(pid));
        space.refresh(&mut modules).expect("the process lives");
        let mut unwinder = Framehop::new();
        let mut places = Vec::new();
        for mapped in space.mappings() {
            let (start, end) = (mapped.mapping.start.0, mapped.mapping.end.0);
            let Some(module) = mapped.module else { continue };
            let Some(bias) = modules.get(module).bias(mapped.mapping.start, mapped.mapping.offset) else { continue };
            let image = modules.get(module).image().expect("a module with code has a file");
            let bytes = std::fs::read(image.path()).expect("root reads every file");
            let sections = sections(&object::File::parse(&bytes[..]).expect("modules are ELF files"));
            unwinder.add_module(Module::new(modules.get(module).path().to_string(), start..end, bias, sections));
            places.push(Place { start, end, bias, module });
        }
        assert!(places.len() >= 3, "a program, its C library and the vDSO at least");
        Self { unwinder, cache: Cache::new(), modules, places, tables: HashMap::new() }
    }

    /// Unwinds a copy, from the kernel side's initial state: that of the caller after the return.
    pub(crate) fn walk(&mut self, raw: &RawStack) -> Walk {
        let mut walk = Walk { frames: Vec::new(), end: Ok(()), unread: None };
        let mut unread = None;
        let mut read = |address| {
            raw.word(address).ok_or_else(|| {
                unread = Some(address);
            })
        };
        let mut next = FrameAddress::from_return_address(raw.caller.0);
        let mut registers = registers(raw);
        while let Some(address) = next
            && walk.frames.len() < STACK_FRAMES_MAX
        {
            walk.frames.push(address.address());
            next = match self.unwinder.unwind_frame(address, &mut registers, &mut self.cache, &mut read) {
                Ok(caller) => caller.and_then(FrameAddress::from_return_address),
                Err(error) => {
                    walk.end = Err(error);
                    None
                }
            };
        }
        walk.unread = unread;
        walk
    }

    /// Whether both found the same frames, and both or neither reached the thread's first one.
    pub(crate) fn agree(&mut self, sample: &RawSample, walk: &Walk) -> bool {
        let mut ours: Vec<u64> = native(sample).collect();
        // On aarch64, framehop ends where the frame pointer becomes 0 (`UnwindRuleAarch64::exec`), before the function that started
        // the thread.
        if cfg!(target_arch = "aarch64")
            && ours.len() == walk.frames.len() + 1
            && ours.last().and_then(|frame| self.rule(frame - 1)) == Some(Rule::END)
        {
            ours.pop();
        }
        (sample.stack.end == StackEnd::Complete) == walk.end.is_ok() && ours == walk.frames
    }

    /// Returns the reason for a difference, or `None` if it is unknown.
    pub(crate) fn explain(&mut self, sample: &RawSample, walk: &Walk) -> Option<&'static str> {
        let shared = native(sample).zip(&walk.frames).take_while(|(a, b)| a == *b);
        let common: Vec<u64> = shared.map(|(a, _)| a).collect();
        let copy_end = sample.raw.start.0.saturating_add(sample.raw.bytes.len() as u64);
        let is_prefix = common.len() == walk.frames.len();
        let is_full = sample.raw.bytes.len() as u64 == RAW_STACK_PAGES_MAX as u64 * PAGE_BYTES;
        if is_prefix && is_full && walk.unread.is_some_and(|address| address >= copy_end) {
            return Some("the stack is longer than a copy may be");
        }
        // The effect of a lost frame shows further out, so every frame up to the difference counts.
        common.iter().rev().find_map(|&frame| self.known_difference(frame))
    }

    /// Returns the known framehop difference for the rule of this frame.
    fn known_difference(&mut self, frame: u64) -> Option<&'static str> {
        let rule = self.rule(frame - 1)?;
        match (rule, rule.cfa(), rule.caller_bp()) {
            (Rule::GAP, ..) => Some("no unwind information: heapbpf stops, framehop guesses by frame pointer"),
            (Rule::UNSUPPORTED, ..) => Some("a rule that tables cannot hold: heapbpf stops"),
            (Rule::SIGNAL, ..) | (_, Some(Cfa::AtSp { .. } | Cfa::AtBp { .. }), _) => {
                Some("an expression that reads memory, which framehop does not evaluate")
            }
            (_, _, CallerBp::Lost) => Some("rbp is saved at a place that tables cannot express"),
            _ => None,
        }
    }

    /// Returns the rule of heapbpf's table for an address.
    fn rule(&mut self, address: u64) -> Option<Rule> {
        let place = self.place(address)?;
        let (module, link) = (place.module, LinkAddr(address.wrapping_sub(place.bias)));
        let modules = &self.modules;
        let table = self.tables.entry(module).or_insert_with(|| {
            let image = modules.get(module).image().expect("opened before");
            let bytes = std::fs::read(image.path()).expect("read before");
            heapbpf::internals::build_unwind_table(&Image::from_bytes(&bytes).expect("memory")).expect("an ELF file")
        });
        Some(table.lookup(link))
    }

    fn place(&self, address: u64) -> Option<&Place> {
        self.places.iter().find(|place| (place.start..place.end).contains(&address))
    }

    /// Describes a frame: module, link address, rule.
    pub(crate) fn describe(&mut self, frame: u64) -> String {
        let rule = self.rule(frame.wrapping_sub(1));
        match self.place(frame.wrapping_sub(1)) {
            Some(place) => {
                let path = self.modules.get(place.module).path();
                format!("{path}+{:#x} {rule:?}", frame.wrapping_sub(place.bias))
            }
            None => format!("{frame:#x}"),
        }
    }
}

/// After the return to the caller.
#[cfg(target_arch = "aarch64")]
fn registers(raw: &RawStack) -> Registers {
    let mask = PtrAuthMask(profiler_common::arch::aarch64::CODE_ADDRESS);
    Registers::new_with_ptr_auth_mask(mask, raw.caller.0, raw.sp.0, raw.bp)
}

/// After the return to the caller.
#[cfg(not(target_arch = "aarch64"))]
fn registers(raw: &RawStack) -> Registers {
    Registers::new(raw.caller.0, raw.sp.0.wrapping_add(8), raw.bp)
}

fn sections(file: &object::File<'_>) -> ExplicitModuleSectionInfo<Arc<[u8]>> {
    let range = |name: &str| {
        let section = file.section_by_name(name)?;
        Some(section.address()..section.address() + section.size())
    };
    let bytes = |name: &str| Some(Arc::from(file.section_by_name(name)?.data().ok()?));
    ExplicitModuleSectionInfo {
        text_svma: range(".text"),
        got_svma: range(".got"),
        eh_frame_svma: range(".eh_frame"),
        eh_frame: bytes(".eh_frame"),
        eh_frame_hdr_svma: range(".eh_frame_hdr"),
        eh_frame_hdr: bytes(".eh_frame_hdr"),
        ..ExplicitModuleSectionInfo::default()
    }
}
