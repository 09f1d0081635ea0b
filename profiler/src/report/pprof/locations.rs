//! Where calls are: a location per instruction with the functions that were inlined there, in mappings of files.
//!
//! Addresses are those of calls, not those that calls return to: one less, which is inside the call and so in its function and
//! on its line, as the format has it.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

use super::messages::{Function, Line, Location, Mapping};
use super::strings::Strings;
use crate::model::{Frame, FrameId, MappingProfile, Profile, TargetProfile};
use crate::report::calls::calls;
use crate::report::places::{Place, call_address, hex};

/// In the place of a mapping's number in keys: the location is no code.
const NO_CODE: u32 = u32::MAX;

/// What stands for a frame that the profile does not have.
const UNKNOWN: &str = "[frame unknown]";

/// Mappings, functions and locations by number. Numbers begin at 1; 0 is none.
pub(super) struct Locations<'a> {
    profile: &'a Profile,
    mapping_numbers: FxHashMap<MappingKey<'a>, u32>,
    mappings: Vec<MappingKey<'a>>,
    function_numbers: FxHashMap<FunctionKey, u64>,
    functions: Vec<FunctionKey>,
    /// By a mapping and the frames of a call; or by [`NO_CODE`] and the number of a text.
    location_numbers: FxHashMap<Box<[u32]>, u32>,
    locations: Vec<Known>,
}

/// A mapping; without a range where it is not known where in memory the file was.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct MappingKey<'a> {
    start: u64,
    end: u64,
    offset: u64,
    path: &'a str,
    build_id: Option<&'a [u8]>,
}

/// Numbers of texts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FunctionKey {
    name: i64,
    file: i64,
}

struct Known {
    mapping: u32,
    address: u64,
    lines: Box<[Line]>,
}

/// What is known of a target's frames: their mappings by their numbers.
pub(super) struct Scope<'a> {
    target: &'a TargetProfile,
    mappings: FxHashMap<FrameId, u32>,
}

impl<'a> Scope<'a> {
    pub(super) fn new(target: &'a TargetProfile) -> Self {
        Self { target, mappings: FxHashMap::default() }
    }
}

impl<'a> Locations<'a> {
    pub(super) fn new(profile: &'a Profile) -> Self {
        Self {
            profile,
            mapping_numbers: FxHashMap::default(),
            mappings: Vec::new(),
            function_numbers: FxHashMap::default(),
            functions: Vec::new(),
            location_numbers: FxHashMap::default(),
            locations: Vec::new(),
        }
    }

    /// Appends the locations of a stack, leaf first.
    pub(super) fn stack(
        &mut self,
        scope: &mut Scope<'a>,
        stack: &[FrameId],
        strings: &mut Strings<'a>,
        into: &mut Vec<u32>,
    ) {
        let mut key = Vec::new();
        for call in calls(self.profile, stack) {
            key.clear();
            key.push(call.last().map_or(0, |&id| self.mapping(scope, id)));
            key.extend(call.iter().map(|id| id.0));
            let number = match self.location_numbers.get(key.as_slice()) {
                Some(&number) => number,
                None => self.add_call(&key, call, strings),
            };
            into.push(number);
        }
    }

    /// The location of what is no code.
    pub(super) fn named(&mut self, name: Cow<'a, str>, strings: &mut Strings<'a>) -> u32 {
        let name = strings.number(name);
        let key = [NO_CODE, u32::try_from(name).expect("texts are fewer than frames")];
        if let Some(&number) = self.location_numbers.get(key.as_slice()) {
            return number;
        }
        let line = Line { function_id: self.function(FunctionKey { name, file: 0 }), line: 0 };
        self.add(&key, Known { mapping: 0, address: 0, lines: [line].into() })
    }

    fn add_call(&mut self, key: &[u32], call: &[FrameId], strings: &mut Strings<'a>) -> u32 {
        let lines = call.iter().map(|&id| self.line(id, strings)).collect();
        let frame = call.last().and_then(|&id| frame(self.profile, id));
        let address = frame.map_or(0, call_address);
        self.add(key, Known { mapping: key[0], address, lines })
    }

    fn add(&mut self, key: &[u32], known: Known) -> u32 {
        self.locations.push(known);
        let number = u32::try_from(self.locations.len()).expect("locations are numbered as frames are");
        self.location_numbers.insert(key.into(), number);
        number
    }

    fn line(&mut self, id: FrameId, strings: &mut Strings<'a>) -> Line {
        let Some(frame) = frame(self.profile, id) else {
            let name = strings.number(UNKNOWN.into());
            return Line { function_id: self.function(FunctionKey { name, file: 0 }), line: 0 };
        };
        let name = match frame.function.as_deref() {
            Some(function) if !function.is_empty() => Cow::Borrowed(function),
            _ => Frame { function: None, ..frame.clone() }.label().into(),
        };
        let file = frame.file.as_deref().map_or(0, |file| strings.number(file.into()));
        let function_id = self.function(FunctionKey { name: strings.number(name), file });
        Line { function_id, line: frame.line.map_or(0, i64::from) }
    }

    fn function(&mut self, key: FunctionKey) -> u64 {
        let next = self.functions.len() as u64 + 1;
        *self.function_numbers.entry(key).or_insert_with(|| {
            self.functions.push(key);
            next
        })
    }

    fn mapping(&mut self, scope: &mut Scope<'a>, id: FrameId) -> u32 {
        if let Some(&number) = scope.mappings.get(&id) {
            return number;
        }
        let number =
            frame(self.profile, id).and_then(|frame| mapping(self.profile, scope.target, frame)).map_or(0, |key| {
                let next = u32::try_from(self.mappings.len() + 1).expect("mappings are fewer than frames");
                *self.mapping_numbers.entry(key).or_insert_with(|| {
                    self.mappings.push(key);
                    next
                })
            });
        scope.mappings.insert(id, number);
        number
    }

    /// The mapping that readers take for the program's goes first: that of the first file that looks like no library.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.mappings.len()).collect();
        let is_program = |path: &str| !path.starts_with('[') && !path.ends_with(".so") && !path.contains(".so.");
        if let Some(first) = self.mappings.iter().position(|mapping| is_program(mapping.path)) {
            order[..=first].rotate_right(1);
        }
        order
    }

    /// All mappings. Their flags say that all names are there, so that no reader looks for them.
    pub(super) fn mappings(&self, strings: &mut Strings<'a>) -> Vec<Mapping> {
        let mut mapping = |(place, &number): (usize, &usize)| {
            let key = self.mappings[number];
            let build_id = key.build_id.map(hex).unwrap_or_default();
            Mapping {
                id: place as u64 + 1,
                memory_start: key.start,
                memory_limit: key.end,
                file_offset: key.offset,
                filename: strings.number(key.path.into()),
                build_id: strings.number(build_id.into()),
                has_functions: true,
                has_filenames: true,
                has_line_numbers: true,
                has_inline_frames: true,
            }
        };
        self.order().iter().enumerate().map(&mut mapping).collect()
    }

    /// All locations.
    pub(super) fn locations(&self) -> impl Iterator<Item = Location> {
        let mut ids = vec![0; self.mappings.len() + 1];
        for (place, number) in self.order().into_iter().enumerate() {
            ids[number + 1] = place as u64 + 1;
        }
        self.locations.iter().zip(1..).map(move |(place, id)| Location {
            id,
            mapping_id: ids[place.mapping as usize],
            address: place.address,
            line: place.lines.to_vec(),
        })
    }

    /// All functions.
    pub(super) fn functions(&self) -> impl Iterator<Item = Function> {
        let function =
            |(key, id): (&FunctionKey, u64)| Function { id, name: key.name, system_name: 0, filename: key.file };
        self.functions.iter().zip(1..).map(function)
    }
}

/// A frame; a report that was read back can name one that it does not have.
fn frame(profile: &Profile, id: FrameId) -> Option<&Frame> {
    profile.frames.get(id.0 as usize)
}

/// The mapping that a frame's call is in. Where only the file is known, that without a range.
fn mapping<'a>(profile: &'a Profile, target: &'a TargetProfile, frame: &'a Frame) -> Option<MappingKey<'a>> {
    let path = frame.module.as_deref()?;
    let place = Place::of(profile, target, frame);
    let build_id = place.module.and_then(|module| module.build_id.as_deref());
    Some(match place.mapping {
        Some(&MappingProfile { start, end, offset, .. }) => MappingKey { start, end, offset, path, build_id },
        None => MappingKey { start: 0, end: 0, offset: 0, path, build_id },
    })
}
