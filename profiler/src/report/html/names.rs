//! Strings, functions and frames of the page's data, each once and named by its place.
//!
//! Names stand there whole, as the target has them: it is the page that cuts them, and it never takes them for markup.

use std::borrow::Cow;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::column::float;
use crate::model::{Frame, FrameId, Profile};
use crate::report::function;

/// What a function is of, for colours: see the page's `colour.js`.
const PROGRAM: u32 = 0;
const LIBRARY: u32 = 1;
const PLUMBING: u32 = 2;
const NAMELESS: u32 = 3;

/// Offsets that a float of the page holds.
const OFFSET_MAX: u64 = 1 << 53;

/// Strings by number.
#[derive(Debug, Default)]
pub(super) struct Strings<'a> {
    known: FxHashMap<Cow<'a, str>, u32>,
    all: Vec<Cow<'a, str>>,
}

impl<'a> Strings<'a> {
    /// The number of a string.
    pub(super) fn number(&mut self, text: Cow<'a, str>) -> u32 {
        if let Some(&known) = self.known.get(&text) {
            return known;
        }
        let number = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        self.all.push(text.clone());
        self.known.insert(text, number);
        number
    }

    /// The same, where there may be none: 1 more than its number, and 0 for none.
    pub(super) fn optional(&mut self, text: Option<&'a str>) -> u32 {
        text.map_or(0, |text| self.number(Cow::Borrowed(text)) + 1)
    }

    /// All of them, in the order of their numbers.
    pub(super) fn into_all(self) -> Vec<Cow<'a, str>> {
        self.all
    }
}

/// Functions, or what stands for one where there is no name.
#[derive(Debug, Default, Serialize)]
pub(super) struct Functions {
    /// Strings.
    name: Vec<u32>,
    /// Strings: names without parameters and template arguments.
    short: Vec<u32>,
    /// One more than the strings; 0 for none.
    module: Vec<u32>,
    /// What they are of.
    kind: Vec<u32>,
}

/// Frames that the page can tell apart.
#[derive(Debug, Default, Serialize)]
pub(super) struct Frames {
    function: Vec<u32>,
    /// One more than the strings; 0 for none.
    file: Vec<u32>,
    /// 0 where it is not known.
    line: Vec<u32>,
    inlined: Vec<u32>,
    /// In the module's file, where no source file is known; -1 for none.
    offset: Vec<f64>,
}

/// What names are made of while they are gathered.
#[derive(Debug)]
pub(super) struct Names<'a> {
    profile: &'a Profile,
    pub(super) strings: Strings<'a>,
    pub(super) functions: Functions,
    pub(super) frames: Frames,
    /// The page's frame of each of the profile's; `None` before it is asked for.
    by_id: Vec<Option<u32>>,
    known_functions: FxHashMap<(u32, u32), u32>,
    known_frames: FxHashMap<(u32, u32, u32, bool, u64), u32>,
    /// Files of programs, the targets' own: their functions are not a library's.
    programs: Vec<&'a str>,
}

impl<'a> Names<'a> {
    pub(super) fn new(profile: &'a Profile) -> Self {
        let programs = profile.targets.iter().map(|target| target.comm.as_str()).collect();
        Self {
            profile,
            strings: Strings::default(),
            functions: Functions::default(),
            frames: Frames::default(),
            by_id: vec![None; profile.frames.len()],
            known_functions: FxHashMap::default(),
            known_frames: FxHashMap::default(),
            programs,
        }
    }

    /// The page's number of a frame; `None` where the profile has no such frame.
    pub(super) fn frame(&mut self, id: FrameId) -> Option<u32> {
        let at = id.0 as usize;
        if let Some(known) = *self.by_id.get(at)? {
            return Some(known);
        }
        let profile = self.profile;
        let number = self.intern(profile.frames.get(at)?);
        self.by_id[at] = Some(number);
        Some(number)
    }

    fn intern(&mut self, frame: &'a Frame) -> u32 {
        let function = self.function(frame);
        let file = self.strings.optional(frame.file.as_deref());
        let offset = frame.module_offset.filter(|&offset| file == 0 && offset < OFFSET_MAX);
        let line = frame.line.unwrap_or(0);
        let key = (function, file, line, frame.inlined, offset.unwrap_or(u64::MAX));
        if let Some(&known) = self.known_frames.get(&key) {
            return known;
        }
        let number = u32::try_from(self.frames.function.len()).unwrap_or(u32::MAX);
        self.frames.function.push(function);
        self.frames.file.push(file);
        self.frames.line.push(line);
        self.frames.inlined.push(u32::from(frame.inlined));
        self.frames.offset.push(offset.map_or(-1.0, float));
        self.known_frames.insert(key, number);
        number
    }

    fn function(&mut self, frame: &'a Frame) -> u32 {
        let name: Cow<'a, str> = match frame.function.as_deref() {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(frame.label()),
        };
        let short = match frame.function.as_deref() {
            Some(name) => Cow::Owned(function::short(name)),
            None => name.clone(),
        };
        let name = self.strings.number(name);
        let module = self.strings.optional(frame.module.as_deref());
        if let Some(&known) = self.known_functions.get(&(name, module)) {
            return known;
        }
        let number = u32::try_from(self.functions.name.len()).unwrap_or(u32::MAX);
        self.functions.name.push(name);
        let short = self.strings.number(short);
        self.functions.short.push(short);
        self.functions.module.push(module);
        self.functions.kind.push(self.kind(frame));
        self.known_functions.insert((name, module), number);
        number
    }

    fn kind(&self, frame: &Frame) -> u32 {
        let module = frame.module.as_deref().unwrap_or("");
        match frame.function {
            None => NAMELESS,
            Some(_) if function::is_plumbing(frame) => PLUMBING,
            // The kernel cuts a program's name to 15 bytes.
            Some(_) if self.is_program(module) => PROGRAM,
            Some(_) if module.contains(".so") || module.starts_with('[') => LIBRARY,
            Some(_) => PROGRAM,
        }
    }

    fn is_program(&self, module: &str) -> bool {
        let base = module.rsplit('/').next().unwrap_or(module);
        self.programs.iter().any(|comm| !comm.is_empty() && base.starts_with(comm))
    }
}
