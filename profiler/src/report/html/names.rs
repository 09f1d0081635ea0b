//! Names of the page's data: complete and unescaped. The page shortens them, and never parses them as markup.

use std::borrow::Cow;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::model::{Frame, FrameId, Profile, base_name};
use crate::report::function;
use crate::report::tables::{ByColumn, Columns, Interner};

/// Kinds of functions, for colours: see the page's `colour.js`.
const PROGRAM: u32 = 0;
const LIBRARY: u32 = 1;
const PLUMBING: u32 = 2;
const NAMELESS: u32 = 3;

/// Limit of offsets that JavaScript numbers represent.
const OFFSET_MAX: u64 = 1 << 53;

/// A function; a module and offset or an address without a name.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct FunctionFields {
    /// A string.
    name: u32,
    /// A string: the name without parameters and template arguments.
    short: u32,
    /// 1 + index of the string; 0 for none.
    module: u32,
    kind: u32,
}

#[derive(PartialEq, Eq, Hash)]
pub(super) struct FrameFields {
    function: u32,
    /// 1 + index of the string; 0 for none.
    file: u32,
    /// 0 where unknown.
    line: u32,
    is_inlined: bool,
    /// Offset in the module's file where the source file is unknown.
    offset: Option<u64>,
}

pub(super) type Functions = ByColumn<FunctionFields, u32>;

const FUNCTIONS: Columns<FunctionFields, u32> = &[
    ("name", |function| function.name),
    ("short", |function| function.short),
    ("module", |function| function.module),
    ("kind", |function| function.kind),
];

pub(super) type Frames = ByColumn<FrameFields, i64>;

const FRAMES: Columns<FrameFields, i64> = &[
    ("function", |frame| frame.function.into()),
    ("file", |frame| frame.file.into()),
    ("line", |frame| frame.line.into()),
    ("inlined", |frame| frame.is_inlined.into()),
    // -1 for none.
    ("offset", |frame| frame.offset.and_then(|offset| i64::try_from(offset).ok()).unwrap_or(-1)),
];

pub(super) struct Names<'a> {
    profile: &'a Profile,
    strings: Interner<Cow<'a, str>>,
    functions: Interner<FunctionFields>,
    frames: Interner<FrameFields>,
    by_id: Vec<Option<u32>>,
    /// The targets' executables, whose functions are not a library's.
    programs: Vec<&'a str>,
}

impl<'a> Names<'a> {
    pub(super) fn new(profile: &'a Profile) -> Self {
        Self {
            profile,
            strings: Interner::default(),
            functions: Interner::default(),
            frames: Interner::default(),
            by_id: vec![None; profile.frames.len()],
            programs: profile.targets.iter().map(|target| target.facts.comm.as_str()).collect(),
        }
    }

    fn frame(&mut self, id: FrameId) -> Option<u32> {
        let at = id.0 as usize;
        if let Some(known) = *self.by_id.get(at)? {
            return Some(known);
        }
        let frame = self.profile.frames.get(at)?;
        let function = self.function(frame);
        let file = self.optional(frame.file.as_deref());
        let offset = frame.module_offset.filter(|&offset| file == 0 && offset < OFFSET_MAX);
        let line = frame.line.unwrap_or(0);
        let number = self.frames.intern(FrameFields { function, file, line, is_inlined: frame.inlined, offset });
        self.by_id[at] = Some(number);
        Some(number)
    }

    fn function(&mut self, frame: &'a Frame) -> u32 {
        let (name, short) = match frame.function.as_deref() {
            Some(name) => (Cow::Borrowed(name), Cow::Owned(function::short(name))),
            None => (Cow::Owned(frame.label()), Cow::Owned(frame.label())),
        };
        let name = self.strings.intern(name);
        let module = self.optional(frame.module.as_deref());
        let short = self.strings.intern(short);
        self.functions.intern(FunctionFields { name, short, module, kind: self.kind(frame) })
    }

    fn optional(&mut self, text: Option<&'a str>) -> u32 {
        text.map_or(0, |text| self.strings.intern(Cow::Borrowed(text)) + 1)
    }

    fn kind(&self, frame: &Frame) -> u32 {
        let module = frame.module.as_deref().unwrap_or("");
        let base = base_name(module);
        match frame.function {
            None => NAMELESS,
            Some(_) if function::is_plumbing(frame) => PLUMBING,
            // The kernel cuts a program's name to 15 bytes.
            Some(_) if self.programs.iter().any(|comm| !comm.is_empty() && base.starts_with(comm)) => PROGRAM,
            Some(_) if module.contains(".so") || module.starts_with('[') => LIBRARY,
            Some(_) => PROGRAM,
        }
    }

    pub(super) fn into_tables(self) -> (Vec<Cow<'a, str>>, Functions, Frames) {
        let functions = ByColumn { rows: self.functions.values.into_iter().collect(), columns: FUNCTIONS };
        let frames = ByColumn { rows: self.frames.values.into_iter().collect(), columns: FRAMES };
        (self.strings.values.into_iter().collect(), functions, frames)
    }
}

/// Stacks as a tree, from the outermost frame on. A node's parent is before it; node 0 is the empty stack.
#[derive(Debug, Default, Serialize)]
pub(super) struct Nodes {
    /// Distance of each node to its parent, from node 1 on.
    back: Vec<u32>,
    frame: Vec<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Stacks {
    pub(super) nodes: Nodes,
    children: FxHashMap<(u32, u32), u32>,
}

impl Stacks {
    /// The node of a stack, leaf first. Frames that the profile does not have are skipped.
    pub(super) fn node(&mut self, stack: &[FrameId], names: &mut Names<'_>) -> u32 {
        let mut parent = 0;
        for &id in stack.iter().rev() {
            let Some(frame) = names.frame(id) else { continue };
            parent = *self.children.entry((parent, frame)).or_insert_with(|| {
                self.nodes.frame.push(frame);
                let node = u32::try_from(self.nodes.frame.len()).unwrap_or(u32::MAX);
                self.nodes.back.push(node - parent);
                node
            });
        }
        parent
    }
}
