//! The format of heaptrack: every single allocation and free. It is written while a recording is read; the profile only supplies the
//! names.
//!
//! Lines of text; numbers are hexadecimal. Ids start at 1, those of allocations at 0:
//!
//! ```text
//! s <bytes> <string>         i <address> <module> {<function> <file> <line>}       t <instruction> <outer trace>
//! a <bytes> <trace>          + <allocation>          - <allocation>                c <milliseconds>
//! ```

use std::io;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::caption::command;
use super::describe;
use super::frames::{calls, frame, synthetic_frames};
use super::presentation::Presentation;
use super::spec::FormatSpec;
use super::text::printable;
use crate::model::{FrameId, Profile};

pub(super) const FORMAT: FormatSpec =
    FormatSpec { name: "heaptrack", extension: "heaptrack.zst", description: "heaptrack", is_text: false, write: None };

/// Versions of heaptrack and of its format that the output is compatible with.
const VERSIONS: &str = "10400 3";

/// Maximum number of cached (size, trace) pairs. Beyond it, pairs are written again, which only costs readers memory.
const INFOS_MAX: usize = 1 << 20;

/// Writes allocations and frees in the order of time. Keeps the names it has written, and no live blocks.
pub(crate) struct Events<'a, W> {
    out: W,
    profile: &'a Profile,
    presentation: &'a Presentation,
    time_ms: u64,
    strings: FxHashMap<Arc<str>, u32>,
    instructions: FxHashMap<Box<[u32]>, u32>,
    synthetic: FxHashMap<String, u32>,
    instruction_count: u32,
    traces: FxHashMap<(u32, u32), u32>,
    /// Traces of callsites, by target and callsite.
    known: FxHashMap<(usize, usize), u32>,
    infos: FxHashMap<(u64, u32), u64>,
    info_count: u64,
}

impl<'a, W: io::Write> Events<'a, W> {
    /// Starts a file.
    pub(crate) fn new(mut out: W, profile: &'a Profile, presentation: &'a Presentation) -> io::Result<Self> {
        writeln!(out, "v {VERSIONS}")?;
        writeln!(
            out,
            "# heapbpf; {}; {}",
            printable(&describe::interval(profile)),
            printable(&describe::losses(profile))
        )?;
        writeln!(out, "X {}", printable(&command(profile)))?;
        // Page size, and the machine's memory, which a recording does not contain.
        writeln!(out, "I 1000 0")?;
        // Before the first allocation, readers use allocation 0 as the latest one, and would count its frees as temporary.
        writeln!(out, "a 0 0")?;
        Ok(Self {
            out,
            profile,
            presentation,
            time_ms: 0,
            strings: FxHashMap::default(),
            instructions: FxHashMap::default(),
            synthetic: FxHashMap::default(),
            instruction_count: 0,
            traces: FxHashMap::default(),
            known: FxHashMap::default(),
            infos: FxHashMap::default(),
            info_count: 1,
        })
    }

    /// Advances the time to `since_start_ns`. Time does not go back.
    pub(crate) fn at(&mut self, since_start_ns: u64) -> io::Result<()> {
        let time_ms = since_start_ns / 1_000_000;
        if time_ms > self.time_ms {
            self.time_ms = time_ms;
            writeln!(self.out, "c {time_ms:x}")?;
        }
        Ok(())
    }

    /// Writes an allocation, by the indices of the target and the callsite in the profile. Unknown ones are skipped.
    pub(crate) fn allocate(&mut self, target: usize, callsite: usize, bytes: u64) -> io::Result<()> {
        let Some(info) = self.info(target, callsite, bytes)? else { return Ok(()) };
        writeln!(self.out, "+ {info:x}")
    }

    /// Writes a free of bytes that a callsite allocated.
    pub(crate) fn free(&mut self, target: usize, callsite: usize, bytes: u64) -> io::Result<()> {
        let Some(info) = self.info(target, callsite, bytes)? else { return Ok(()) };
        writeln!(self.out, "- {info:x}")
    }

    /// Writes a correction: bytes were not freed after all, or live bytes have a larger weight. It must not count as an allocation, so it
    /// is written as a free of a negative size: readers subtract sizes in 64-bit arithmetic, where that wraps to the right sum.
    pub(crate) fn unfree(&mut self, target: usize, callsite: usize, bytes: u64) -> io::Result<()> {
        self.free(target, callsite, bytes.wrapping_neg())
    }

    pub(crate) fn finish(mut self, since_start_ns: u64) -> io::Result<W> {
        self.at(since_start_ns)?;
        Ok(self.out)
    }

    fn info(&mut self, target: usize, callsite: usize, bytes: u64) -> io::Result<Option<u64>> {
        let Some(trace) = self.trace_of(target, callsite)? else { return Ok(None) };
        if let Some(&info) = self.infos.get(&(bytes, trace)) {
            return Ok(Some(info));
        }
        if self.infos.len() >= INFOS_MAX {
            self.infos.clear();
        }
        writeln!(self.out, "a {bytes:x} {trace:x}")?;
        let info = self.info_count;
        self.info_count += 1;
        self.infos.insert((bytes, trace), info);
        Ok(Some(info))
    }

    /// Returns the trace of a callsite: its synthetic frames and its own, the outermost first.
    fn trace_of(&mut self, target: usize, callsite: usize) -> io::Result<Option<u32>> {
        if let Some(&trace) = self.known.get(&(target, callsite)) {
            return Ok(Some(trace));
        }
        let profile = self.profile;
        let Some(of_target) = profile.targets.get(target) else { return Ok(None) };
        let Some(of_callsite) = of_target.callsites.get(callsite) else { return Ok(None) };
        let mut trace = 0;
        for name in synthetic_frames(of_target, of_callsite, self.presentation) {
            let instruction = self.synthetic_instruction(&name)?;
            trace = self.trace(instruction, trace)?;
        }
        let is_known = |id: &FrameId| frame(profile, *id).is_some();
        let stack: Vec<FrameId> = of_callsite.stack.iter().copied().filter(is_known).collect();
        for call in calls(profile, &stack).rev() {
            let instruction = self.instruction(call)?;
            trace = self.trace(instruction, trace)?;
        }
        self.known.insert((target, callsite), trace);
        Ok(Some(trace))
    }

    fn trace(&mut self, instruction: u32, outer: u32) -> io::Result<u32> {
        let next = number(self.traces.len() + 1)?;
        if let Some(&trace) = self.traces.get(&(instruction, outer)) {
            return Ok(trace);
        }
        writeln!(self.out, "t {instruction:x} {outer:x}")?;
        self.traces.insert((instruction, outer), next);
        Ok(next)
    }

    /// Returns the instruction of a physical call, with all functions that were inlined there.
    fn instruction(&mut self, call: &[FrameId]) -> io::Result<u32> {
        let key: Box<[u32]> = call.iter().map(|id| id.0).collect();
        if let Some(&instruction) = self.instructions.get(&key) {
            return Ok(instruction);
        }
        let profile = self.profile;
        let frames: Vec<_> = call.iter().filter_map(|&id| frame(profile, id)).collect();
        let Some(outermost) = frames.last() else { return Ok(0) };
        let module = outermost.module.as_ref().map_or(Ok(0), |module| self.string(module))?;
        let mut line = format!("i {:x} {module:x}", outermost.address);
        // Readers have their own placeholder for instructions without names.
        if frames.iter().any(|frame| frame.function.is_some()) {
            for frame in &frames {
                let function = frame.function.as_ref().map_or(Ok(0), |function| self.string(function))?;
                let file = frame.file.as_ref().map_or(Ok(0), |file| self.string(file))?;
                line.push_str(&format!(" {function:x} {file:x} {:x}", frame.line.unwrap_or(0)));
            }
        }
        writeln!(self.out, "{line}")?;
        self.instruction_count += 1;
        self.instructions.insert(key, self.instruction_count);
        Ok(self.instruction_count)
    }

    /// Returns the instruction of a synthetic frame. Its address is its id, because readers identify instructions by address.
    fn synthetic_instruction(&mut self, name: &str) -> io::Result<u32> {
        if let Some(&instruction) = self.synthetic.get(name) {
            return Ok(instruction);
        }
        let function = self.string(&Arc::from(name))?;
        self.instruction_count += 1;
        writeln!(self.out, "i {0:x} 0 {function:x} 0 0", self.instruction_count)?;
        self.synthetic.insert(name.to_owned(), self.instruction_count);
        Ok(self.instruction_count)
    }

    /// Returns the id of a string. An empty one would have no id.
    fn string(&mut self, string: &Arc<str>) -> io::Result<u32> {
        if let Some(&known) = self.strings.get(string) {
            return Ok(known);
        }
        let text = match printable(string) {
            text if text.is_empty() => "[no name]".into(),
            text => text,
        };
        writeln!(self.out, "s {:x} {text}", text.len())?;
        let next = number(self.strings.len() + 1)?;
        self.strings.insert(Arc::clone(string), next);
        Ok(next)
    }
}

/// Readers have ids of 32 bits.
fn number(of: usize) -> io::Result<u32> {
    u32::try_from(of).map_err(|_| io::Error::other("more entries than heaptrack's 32-bit ids"))
}
