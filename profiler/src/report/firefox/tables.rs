//! A thread's tables: strings, functions, the files they are in, frames and stacks, by columns as the format has them.

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{CATEGORY_GAP, CATEGORY_GROUP, CATEGORY_NATIVE, Libs};
use crate::model::{Frame, FrameId, Profile, TargetProfile};
use crate::report::calls::calls;
use crate::report::places::{self, Place};

pub(super) struct Tables<'a> {
    profile: &'a Profile,
    target: &'a TargetProfile,
    libs: &'a Libs<'a>,
    pub(super) strings: Strings,
    pub(super) functions: Functions,
    pub(super) resources: Resources,
    pub(super) frames: Frames,
    pub(super) stacks: Stacks,
    /// Of the profile's frames, with how many are between them and the one that they are inlined into.
    known: FxHashMap<(FrameId, usize), usize>,
    known_functions: FxHashMap<(usize, Option<usize>, Option<usize>), usize>,
    known_said: FxHashMap<(usize, usize), usize>,
    known_stacks: FxHashMap<(Option<usize>, usize), usize>,
}

/// Texts, each once.
#[derive(Default)]
pub(super) struct Strings {
    pub(super) strings: Vec<String>,
    known: FxHashMap<String, usize>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Functions {
    length: usize,
    name: Vec<usize>,
    #[serde(rename = "isJS")]
    is_js: Vec<bool>,
    #[serde(rename = "relevantForJS")]
    relevant_for_js: Vec<bool>,
    resource: Vec<isize>,
    file_name: Vec<Option<usize>>,
    line_number: Vec<Option<u32>>,
    column_number: Vec<Option<u32>>,
}

#[derive(Default, Serialize)]
pub(super) struct Resources {
    length: usize,
    lib: Vec<usize>,
    name: Vec<usize>,
    host: Vec<Option<usize>>,
    r#type: Vec<u32>,
    #[serde(skip)]
    known: FxHashMap<usize, usize>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Frames {
    length: usize,
    /// In the file, as its symbols have it; -1 where that is not known.
    address: Vec<i64>,
    inline_depth: Vec<usize>,
    category: Vec<usize>,
    subcategory: Vec<usize>,
    func: Vec<usize>,
    native_symbol: Vec<Option<usize>>,
    #[serde(rename = "innerWindowID")]
    inner_window_id: Vec<u32>,
    line: Vec<Option<u32>>,
    column: Vec<Option<u32>>,
}

#[derive(Default, Serialize)]
pub(super) struct Stacks {
    length: usize,
    prefix: Vec<Option<usize>>,
    frame: Vec<usize>,
}

/// What says something and is no place in code.
#[derive(Clone, Copy, Debug)]
pub(super) enum Said {
    Group,
    Gap,
}

impl Strings {
    pub(super) fn number(&mut self, text: &str) -> usize {
        if let Some(&known) = self.known.get(text) {
            return known;
        }
        self.known.insert(text.to_owned(), self.strings.len());
        self.strings.push(text.to_owned());
        self.strings.len() - 1
    }
}

impl<'a> Tables<'a> {
    pub(super) fn new(profile: &'a Profile, target: &'a TargetProfile, libs: &'a Libs<'a>) -> Self {
        Self {
            profile,
            target,
            libs,
            strings: Strings::default(),
            functions: Functions::default(),
            resources: Resources::default(),
            frames: Frames::default(),
            stacks: Stacks::default(),
            known: FxHashMap::default(),
            known_functions: FxHashMap::default(),
            known_said: FxHashMap::default(),
            known_stacks: FxHashMap::default(),
        }
    }

    /// A stack below `prefix`, the frames leaf first. What is no frame of the profile's is left out.
    pub(super) fn stack(&mut self, prefix: Option<usize>, frames: &[FrameId]) -> Option<usize> {
        let profile = self.profile;
        let mut stack = prefix;
        for call in calls(profile, frames).rev() {
            for (depth, &id) in call.iter().rev().enumerate() {
                let Some(frame) = self.frame(id, depth) else { continue };
                stack = Some(self.on(stack, frame));
            }
        }
        stack
    }

    /// A frame that says something, on `prefix`.
    pub(super) fn say(&mut self, prefix: Option<usize>, text: &str, said: Said) -> usize {
        let category = match said {
            Said::Group => CATEGORY_GROUP,
            Said::Gap => CATEGORY_GAP,
        };
        let name = self.strings.number(text);
        let frame = match self.known_said.get(&(name, category)) {
            Some(&known) => known,
            None => {
                let function = self.function(name, None, None);
                let frame = self.frames.add(Row { function, category, address: -1, inline_depth: 0, line: None });
                self.known_said.insert((name, category), frame);
                frame
            }
        };
        self.on(prefix, frame)
    }

    fn on(&mut self, prefix: Option<usize>, frame: usize) -> usize {
        let Self { stacks, known_stacks, .. } = self;
        *known_stacks.entry((prefix, frame)).or_insert_with(|| {
            stacks.prefix.push(prefix);
            stacks.frame.push(frame);
            stacks.length += 1;
            stacks.length - 1
        })
    }

    fn frame(&mut self, id: FrameId, depth: usize) -> Option<usize> {
        if let Some(&known) = self.known.get(&(id, depth)) {
            return Some(known);
        }
        let frame = self.profile.frames.get(id.0 as usize)?;
        let name = self.strings.number(&frame.label());
        let resource = frame.module.as_deref().and_then(|path| self.resource(path));
        let file = frame.file.as_deref().map(|file| self.strings.number(file));
        let function = self.function(name, resource, file);
        let address = self.address(frame);
        let row = Row { function, category: CATEGORY_NATIVE, address, inline_depth: depth, line: frame.line };
        let number = self.frames.add(row);
        self.known.insert((id, depth), number);
        Some(number)
    }

    /// In the module, as its symbols have it; -1 where that is not known.
    fn address(&self, frame: &Frame) -> i64 {
        let bias = Place::of(self.profile, self.target, frame).mapping.and_then(|mapping| mapping.bias);
        let address = bias.and_then(|bias| places::call_address(frame).checked_sub(bias));
        // The profiler holds them in 32 bits.
        address.and_then(|address| u32::try_from(address).ok()).map_or(-1, i64::from)
    }

    fn resource(&mut self, path: &str) -> Option<usize> {
        let lib = self.libs.number(path)?;
        let Self { resources, strings, libs, .. } = self;
        let name = strings.number(libs.name(lib));
        Some(*resources.known.entry(lib).or_insert_with(|| {
            resources.lib.push(lib);
            resources.name.push(name);
            resources.host.push(None);
            // A library.
            resources.r#type.push(1);
            resources.length += 1;
            resources.length - 1
        }))
    }

    fn function(&mut self, name: usize, resource: Option<usize>, file: Option<usize>) -> usize {
        let Self { functions, known_functions, .. } = self;
        *known_functions.entry((name, resource, file)).or_insert_with(|| {
            functions.name.push(name);
            functions.is_js.push(false);
            functions.relevant_for_js.push(false);
            functions.resource.push(resource.and_then(|resource| isize::try_from(resource).ok()).unwrap_or(-1));
            functions.file_name.push(file);
            functions.line_number.push(None);
            functions.column_number.push(None);
            functions.length += 1;
            functions.length - 1
        })
    }
}

struct Row {
    function: usize,
    category: usize,
    address: i64,
    inline_depth: usize,
    line: Option<u32>,
}

impl Frames {
    fn add(&mut self, Row { function, category, address, inline_depth, line }: Row) -> usize {
        self.address.push(address);
        self.inline_depth.push(inline_depth);
        self.category.push(category);
        self.subcategory.push(0);
        self.func.push(function);
        self.native_symbol.push(None);
        self.inner_window_id.push(0);
        self.line.push(line);
        self.column.push(None);
        self.length += 1;
        self.length - 1
    }
}
