//! Strings, functions, frames and stacks of the page's data, without duplicates and referred to by index.
//!
//! Names are complete and unescaped: the page shortens them, and never parses them as markup.

use std::borrow::Cow;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::column::float;
use crate::model::{Frame, FrameId, Profile, base_name};
use crate::report::function;

/// Kinds of functions, for colours: see the page's `colour.js`.
const PROGRAM: u32 = 0;
const LIBRARY: u32 = 1;
const PLUMBING: u32 = 2;
const NAMELESS: u32 = 3;

/// Limit of offsets that JavaScript numbers represent.
const OFFSET_MAX: u64 = 1 << 53;

#[derive(Debug, Default)]
pub(super) struct Strings<'a> {
    known: FxHashMap<Cow<'a, str>, u32>,
    all: Vec<Cow<'a, str>>,
}

impl<'a> Strings<'a> {
    pub(super) fn number(&mut self, text: Cow<'a, str>) -> u32 {
        if let Some(&known) = self.known.get(&text) {
            return known;
        }
        let number = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        self.all.push(text.clone());
        self.known.insert(text, number);
        number
    }

    /// 1 + number of the string; 0 for none.
    pub(super) fn optional(&mut self, text: Option<&'a str>) -> u32 {
        text.map_or(0, |text| self.number(Cow::Borrowed(text)) + 1)
    }

    /// By number.
    pub(super) fn into_all(self) -> Vec<Cow<'a, str>> {
        self.all
    }
}

/// Functions; a module and offset or an address without a name.
#[derive(Debug, Default, Serialize)]
pub(super) struct Functions {
    /// Strings.
    name: Vec<u32>,
    /// Strings: names without parameters and template arguments.
    short: Vec<u32>,
    /// 1 + index of the string; 0 for none.
    module: Vec<u32>,
    /// `PROGRAM` and the like.
    kind: Vec<u32>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Frames {
    function: Vec<u32>,
    /// 1 + index of the string; 0 for none.
    file: Vec<u32>,
    /// 0 where unknown.
    line: Vec<u32>,
    inlined: Vec<u32>,
    /// Offset in the module's file where the source file is unknown; -1 for none.
    offset: Vec<f64>,
}

/// Collects names and frames.
#[derive(Debug)]
pub(super) struct Names<'a> {
    profile: &'a Profile,
    pub(super) strings: Strings<'a>,
    pub(super) functions: Functions,
    pub(super) frames: Frames,
    /// The page's frame for each of the profile's.
    by_id: Vec<Option<u32>>,
    known_functions: FxHashMap<(u32, u32), u32>,
    known_frames: FxHashMap<(u32, u32, u32, bool, u64), u32>,
    /// The targets' executables, whose functions are not a library's.
    programs: Vec<&'a str>,
}

impl<'a> Names<'a> {
    pub(super) fn new(profile: &'a Profile) -> Self {
        let programs = profile.targets.iter().map(|target| target.facts.comm.as_str()).collect();
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

    /// `None` if the profile has no such frame.
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
        let base = base_name(module);
        self.programs.iter().any(|comm| !comm.is_empty() && base.starts_with(comm))
    }
}

/// Stacks as a tree, from the outermost frame on. A node's parent is before it; node 0 is the empty stack.
#[derive(Debug, Default, Serialize)]
pub(super) struct Nodes {
    /// Distance of each node to its parent, from node 1 on.
    back: Vec<u32>,
    frame: Vec<u32>,
}

/// Collects stacks.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    nodes: Nodes,
    children: FxHashMap<(u32, u32), u32>,
}

impl Stacks {
    /// The node of a stack, leaf first. Frames that the profile does not have are skipped.
    pub(super) fn node(&mut self, stack: &[FrameId], names: &mut Names<'_>) -> u32 {
        let mut parent = 0;
        for &id in stack.iter().rev() {
            let Some(frame) = names.frame(id) else { continue };
            parent = match self.children.get(&(parent, frame)) {
                Some(&known) => known,
                None => self.add(parent, frame),
            };
        }
        parent
    }

    fn add(&mut self, parent: u32, frame: u32) -> u32 {
        self.nodes.frame.push(frame);
        let node = u32::try_from(self.nodes.frame.len()).unwrap_or(u32::MAX);
        self.nodes.back.push(node - parent);
        self.children.insert((parent, frame), node);
        node
    }

    pub(super) fn into_nodes(self) -> Nodes {
        self.nodes
    }
}
