//! The format of heaptrack: every single allocation and free, written while a recording is read.
//! Lines of text; numbers are hexadecimal. Ids start at 1, those of allocations at 0, and are allocated for the first time in their order:
//!
//! ```text
//! s <bytes> <string>         i <address> <module> {<function> <file> <line>}       t <instruction> <outer trace>
//! a <bytes> <trace>          + <allocation>          - <allocation>                c <milliseconds>
//! ```

use std::io;
use std::sync::Arc;

use heapbpf_ledger::model::{FrameId, Profile};
use rustc_hash::FxHashMap;

use super::describe::{self, command};
use super::presentation::Presentation;
use super::tables::{Interner, calls, frame, index, synthetic_frames};
use super::text::printable;

/// Versions of heaptrack and of its format that the output is compatible with.
const VERSIONS: &str = "10400 3";

/// Number of cached (size, trace) pairs from which those without live blocks are dropped. One that is allocated again is written again,
/// which only costs readers memory.
const INFOS_MAX: usize = 1 << 20;

/// An allocation's line.
struct Info {
    id: u64,
    /// Number of blocks that were allocated and not freed.
    live: i64,
}

#[derive(PartialEq, Eq, Hash)]
enum Instruction {
    Call(Box<[FrameId]>),
    Synthetic(String),
}

/// Writes allocations and frees in the order of time. Keeps the names it has written, and no live blocks.
pub struct Events<'a, W> {
    out: W,
    profile: &'a Profile,
    presentation: &'a Presentation,
    time_ms: u64,
    // Ids are indices plus 1.
    strings: Interner<Arc<str>>,
    instructions: Interner<Instruction>,
    /// Instruction and outer trace.
    traces: Interner<(u32, u32)>,
    /// Traces of callsites, by target and callsite.
    known: FxHashMap<(usize, usize), u32>,
    infos: FxHashMap<(u64, u32), Info>,
    infos_max: usize,
    info_count: u64,
}

impl<'a, W: io::Write> Events<'a, W> {
    pub fn new(mut out: W, profile: &'a Profile, presentation: &'a Presentation) -> io::Result<Self> {
        writeln!(out, "v {VERSIONS}")?;
        let words = [Some(describe::interval(profile)), Some(describe::verdict(profile)), describe::left_out(profile)];
        let words: Vec<String> = words.into_iter().flatten().collect();
        writeln!(out, "# heapbpf; {}", printable(&words.join("; ")))?;
        writeln!(out, "X {}", printable(&command(profile)))?;
        // Page size, and the machine's memory, which a recording does not contain.
        writeln!(out, "I 1000 0")?;
        Ok(Self {
            out,
            profile,
            presentation,
            time_ms: 0,
            strings: Interner::default(),
            instructions: Interner::default(),
            traces: Interner::default(),
            known: FxHashMap::default(),
            infos: FxHashMap::default(),
            infos_max: INFOS_MAX,
            info_count: 0,
        })
    }

    /// Advances the time to `since_start_ns`. Time does not go back.
    pub fn at(&mut self, since_start_ns: u64) -> io::Result<()> {
        let time_ms = since_start_ns / 1_000_000;
        if time_ms > self.time_ms {
            self.time_ms = time_ms;
            writeln!(self.out, "c {time_ms:x}")?;
        }
        Ok(())
    }

    /// Writes an allocation, by the indices of the target and the callsite in the profile. Unknown ones are skipped.
    pub fn allocate(&mut self, target: usize, callsite: usize, bytes: u64) -> io::Result<()> {
        let Some(trace) = self.trace_of(target, callsite)? else { return Ok(()) };
        let id = match self.infos.get_mut(&(bytes, trace)) {
            // After a free, readers take 0 for the latest allocation, and would count frees of it as temporary: only the first block has it.
            Some(info) if info.id > 0 => {
                info.live += 1;
                info.id
            }
            _ => self.info(bytes, trace, 1)?,
        };
        writeln!(self.out, "+ {id:x}")
    }

    /// Writes a free, of a block or a part of one.
    pub fn free(&mut self, target: usize, callsite: usize, bytes: u64) -> io::Result<()> {
        let Some(trace) = self.trace_of(target, callsite)? else { return Ok(()) };
        if let Some(info) = self.infos.get_mut(&(bytes, trace)) {
            info.live -= 1;
            return writeln!(self.out, "- {:x}", info.id);
        }
        // heaptrack_gui crashes unless the first allocations of all ids are in the order of the ids, so an id must be allocated even
        // if no block has that size. In this order, the peak is unchanged, and readers count no temporary allocation.
        let id = self.info(bytes, trace, 0)?;
        writeln!(self.out, "- {id:x}\n- {id:x}\n+ {id:x}")
    }

    /// Writes the line of an allocation, whose id the next `+` must have.
    fn info(&mut self, bytes: u64, trace: u32, live: i64) -> io::Result<u64> {
        if self.infos.len() >= self.infos_max {
            self.infos.retain(|_, info| info.live > 0);
            self.infos_max = INFOS_MAX.max(2 * self.infos.len());
        }
        writeln!(self.out, "a {bytes:x} {trace:x}")?;
        let id = self.info_count;
        self.info_count += 1;
        self.infos.entry((bytes, trace)).and_modify(|info| info.id = id).or_insert(Info { id, live: 0 }).live += live;
        Ok(id)
    }

    pub fn finish(mut self, since_start_ns: u64) -> io::Result<W> {
        self.at(since_start_ns)?;
        Ok(self.out)
    }

    fn trace_of(&mut self, target: usize, callsite: usize) -> io::Result<Option<u32>> {
        if let Some(&trace) = self.known.get(&(target, callsite)) {
            return Ok(Some(trace));
        }
        let profile = self.profile;
        let Some(of_target) = profile.targets.get(target) else { return Ok(None) };
        let Some(of_callsite) = of_target.callsites.get(callsite) else { return Ok(None) };
        let names = synthetic_frames(of_target, of_callsite, self.presentation).into_iter();
        let is_known = |id: &FrameId| frame(profile, *id).is_some();
        let stack: Vec<FrameId> = of_callsite.stack.iter().copied().filter(is_known).collect();
        let calls = calls(profile, &stack).rev().map(|call| Instruction::Call(call.into()));
        let mut trace = 0;
        for instruction in names.map(Instruction::Synthetic).chain(calls) {
            let instruction = self.instruction(instruction)?;
            let (at, is_new) = self.traces.insert_full((instruction, trace));
            if is_new {
                writeln!(self.out, "t {instruction:x} {trace:x}")?;
            }
            trace = index(at) + 1;
        }
        self.known.insert((target, callsite), trace);
        Ok(Some(trace))
    }

    fn instruction(&mut self, instruction: Instruction) -> io::Result<u32> {
        if let Some(at) = self.instructions.get_index_of(&instruction) {
            return Ok(index(at) + 1);
        }
        let id = index(self.instructions.len()) + 1;
        let line = match &instruction {
            // Readers identify instructions by address, so the address of a synthetic one is its id.
            Instruction::Synthetic(name) => format!("i {id:x} 0 {:x} 0 0", self.string(&Arc::from(name.as_str()))?),
            Instruction::Call(call) => self.call(call)?,
        };
        writeln!(self.out, "{line}")?;
        self.instructions.insert(instruction);
        Ok(id)
    }

    fn call(&mut self, call: &[FrameId]) -> io::Result<String> {
        let profile = self.profile;
        let frames = || call.iter().map(|&id| profile.frame(id));
        let address = frames().next_back().map_or(0, |frame| frame.address);
        let module = self.optional(frames().next_back().and_then(|frame| frame.module.as_ref()))?;
        let mut line = format!("i {address:x} {module:x}");
        // Readers have their own placeholder for instructions without names.
        if frames().any(|frame| frame.function.is_some()) {
            for frame in frames() {
                let [function, file] = [&frame.function, &frame.file].map(|name| self.optional(name.as_ref()));
                line.push_str(&format!(" {:x} {:x} {:x}", function?, file?, frame.line.unwrap_or(0)));
            }
        }
        Ok(line)
    }

    fn optional(&mut self, string: Option<&Arc<str>>) -> io::Result<u32> {
        string.map_or(Ok(0), |string| self.string(string))
    }

    /// Returns the id of a string. An empty one would have no id.
    fn string(&mut self, string: &Arc<str>) -> io::Result<u32> {
        let (at, is_new) = self.strings.insert_full(Arc::clone(string));
        if is_new {
            let text = match printable(string) {
                text if text.is_empty() => "[no name]".into(),
                text => text,
            };
            writeln!(self.out, "s {:x} {text}", text.len())?;
        }
        Ok(index(at) + 1)
    }
}
