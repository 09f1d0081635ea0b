//! The format of heaptrack: each allocation and each free by itself, so it is made of a recording and not of a profile, which gives
//! the names alone.
//!
//! Lines of text; numbers are hexadecimal, and count from 1, allocations from 0:
//!
//! ```text
//! s <bytes> <string>         i <address> <module> {<function> <file> <line>}       t <instruction> <outer trace>
//! a <bytes> <trace>          + <allocation>          - <allocation>                c <milliseconds>
//! ```
//!
//! Owns what is written when; what came and went is told by whoever reads the recording.

use std::io;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::calls::calls;
use super::describe;
use super::roots::roots;
use super::text::printable;
use super::valgrind::command;
use super::{Presentation, Report, ReportError};
use crate::model::{FrameId, Profile};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Heaptrack;

/// Versions of heaptrack and of its format that this is like.
const VERSIONS: &str = "10400 3";

/// Sizes with their traces that are remembered. When there are more, they are told anew, which costs a reader memory and nothing else.
const INFOS_MAX: usize = 1 << 20;

impl Report for Heaptrack {
    fn write(&self, _: &Profile, _: &Presentation, _: &mut dyn io::Write) -> Result<(), ReportError> {
        Err(ReportError::NeedsRecording(super::Format::Heaptrack))
    }
}

/// Writes what comes and goes, in the order in which it happens. It remembers what it has named, and nothing of what is live.
pub(crate) struct Events<'a, W> {
    out: W,
    profile: &'a Profile,
    presentation: &'a Presentation,
    time_ms: u64,
    strings: FxHashMap<Arc<str>, u32>,
    instructions: FxHashMap<Box<[u32]>, u32>,
    words: FxHashMap<String, u32>,
    instruction_count: u32,
    traces: FxHashMap<(u32, u32), u32>,
    /// Of callsites, by their target's place and their own.
    known: FxHashMap<(usize, usize), u32>,
    infos: FxHashMap<(u64, u32), u64>,
    info_count: u64,
}

impl<'a, W: io::Write> Events<'a, W> {
    /// Begins a file with the names of this profile.
    pub(crate) fn new(mut out: W, profile: &'a Profile, presentation: &'a Presentation) -> io::Result<Self> {
        writeln!(out, "v {VERSIONS}")?;
        writeln!(
            out,
            "# heapbpf; {}; {}",
            printable(&describe::interval(profile)),
            printable(&describe::losses(profile))
        )?;
        writeln!(out, "X {}", printable(&command(profile)))?;
        // Of the machine's memory a recording says nothing.
        writeln!(out, "I 1000 0")?;
        // Readers take the first one for the latest where there is none, and so its frees for those of temporary allocations.
        writeln!(out, "a 0 0")?;
        Ok(Self {
            out,
            profile,
            presentation,
            time_ms: 0,
            strings: FxHashMap::default(),
            instructions: FxHashMap::default(),
            words: FxHashMap::default(),
            instruction_count: 0,
            traces: FxHashMap::default(),
            known: FxHashMap::default(),
            infos: FxHashMap::default(),
            info_count: 1,
        })
    }

    /// It is so many nanoseconds after the beginning. Time does not go back.
    pub(crate) fn at(&mut self, since_start_ns: u64) -> io::Result<()> {
        let time_ms = since_start_ns / 1_000_000;
        if time_ms > self.time_ms {
            self.time_ms = time_ms;
            writeln!(self.out, "c {time_ms:x}")?;
        }
        Ok(())
    }

    /// A callsite allocated: by its target's place in the profile, and its own in that. One that is not there is passed over.
    pub(crate) fn allocate(&mut self, target: usize, callsite: usize, bytes: u64) -> io::Result<()> {
        let Some(info) = self.info(target, callsite, bytes)? else { return Ok(()) };
        writeln!(self.out, "+ {info:x}")
    }

    /// What a callsite had allocated was freed, or some of it.
    pub(crate) fn free(&mut self, target: usize, callsite: usize, bytes: u64) -> io::Result<()> {
        let Some(info) = self.info(target, callsite, bytes)? else { return Ok(()) };
        writeln!(self.out, "- {info:x}")
    }

    /// What was freed was not, or what is live counts as so many bytes more. It is no allocation, so it is told as a free of what
    /// is less than nothing: readers take sizes from sums of 64 bits, in which that comes to the same.
    pub(crate) fn take_back(&mut self, target: usize, callsite: usize, bytes: u64) -> io::Result<()> {
        self.free(target, callsite, bytes.wrapping_neg())
    }

    /// All is told.
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

    /// The trace of a callsite: what stands above it, then its frames, the outermost first.
    fn trace_of(&mut self, target: usize, callsite: usize) -> io::Result<Option<u32>> {
        if let Some(&trace) = self.known.get(&(target, callsite)) {
            return Ok(Some(trace));
        }
        let profile = self.profile;
        let Some(of_target) = profile.targets.get(target) else { return Ok(None) };
        let Some(of_callsite) = of_target.callsites.get(callsite) else { return Ok(None) };
        let mut trace = 0;
        for word in roots(of_target, of_callsite, self.presentation) {
            let instruction = self.word(&word)?;
            trace = self.trace(instruction, trace)?;
        }
        let is_known = |id: &FrameId| profile.frames.get(id.0 as usize).is_some();
        let stack: Vec<FrameId> = of_callsite.stack.iter().copied().filter(is_known).collect();
        // Calls that were inlined belong to the instruction of the function that they were inlined into.
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

    /// The instruction of a call.
    fn instruction(&mut self, call: &[FrameId]) -> io::Result<u32> {
        let key: Box<[u32]> = call.iter().map(|id| id.0).collect();
        if let Some(&instruction) = self.instructions.get(&key) {
            return Ok(instruction);
        }
        let profile = self.profile;
        let frames: Vec<_> = call.iter().filter_map(|id| profile.frames.get(id.0 as usize)).collect();
        let Some(outermost) = frames.last() else { return Ok(0) };
        let module = outermost.module.as_ref().map_or(Ok(0), |module| self.string(module))?;
        let mut line = format!("i {:x} {module:x}", outermost.address);
        // Readers have words of their own for an instruction of which nothing is known.
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

    /// An instruction that stands for a word of heapbpf's own. Its address is its number: readers tell instructions apart by it.
    fn word(&mut self, word: &str) -> io::Result<u32> {
        if let Some(&instruction) = self.words.get(word) {
            return Ok(instruction);
        }
        let function = self.string(&Arc::from(word))?;
        self.instruction_count += 1;
        writeln!(self.out, "i {0:x} 0 {function:x} 0 0", self.instruction_count)?;
        self.words.insert(word.to_owned(), self.instruction_count);
        Ok(self.instruction_count)
    }

    /// A string on one line. An empty one would be none.
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

/// Readers count in 32 bits.
fn number(of: usize) -> io::Result<u32> {
    u32::try_from(of).map_err(|_| io::Error::other("there is more than heaptrack has numbers for"))
}
