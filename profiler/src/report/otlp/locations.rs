//! A target's frames as locations: an address, the mapping it lies in, and the functions there.

use opentelemetry_proto::tonic::profiles::v1development::{Line, Mapping};
use rustc_hash::FxHashMap;

use super::dictionary::{Attribute, Dictionary};
use crate::model::{CallsiteProfile, Frame, FrameId, Profile, TargetProfile};
use crate::report::calls::calls;
use crate::report::places::{self, Place};

pub(super) struct Locations<'a> {
    profile: &'a Profile,
    target: &'a TargetProfile,
    /// By frames: inlined ones with the one that they are inlined into.
    known: FxHashMap<Box<[FrameId]>, i32>,
}

impl<'a> Locations<'a> {
    pub(super) fn new(profile: &'a Profile, target: &'a TargetProfile) -> Self {
        Self { profile, target, known: FxHashMap::default() }
    }

    /// The leaf first. What is no frame of the profile's is left out.
    pub(super) fn of_stack(&mut self, callsite: &CallsiteProfile, dictionary: &mut Dictionary) -> Vec<i32> {
        let profile = self.profile;
        calls(profile, &callsite.stack).filter_map(|call| self.of_call(call, dictionary)).collect()
    }

    fn of_call(&mut self, call: &[FrameId], dictionary: &mut Dictionary) -> Option<i32> {
        if let Some(&known) = self.known.get(call) {
            return Some(known);
        }
        let frames: Vec<&Frame> = call.iter().filter_map(|id| self.profile.frames.get(id.0 as usize)).collect();
        let physical = *frames.last()?;
        let mapping = self.mapping(physical, dictionary);
        let lines = lines(&frames, dictionary);
        let location = dictionary.location(mapping, places::call_address(physical), lines);
        self.known.insert(call.into(), location);
        Some(location)
    }

    /// Where the address is known to lie in no mapping of the frame's module, that has one without addresses.
    fn mapping(&self, frame: &Frame, dictionary: &mut Dictionary) -> i32 {
        let Some(path) = &frame.module else { return 0 };
        let Place { module, mapping } = Place::of(self.profile, self.target, frame);
        let build_id = module.and_then(|module| module.build_id.as_deref());
        let attribute_indices = build_id.map(|id| dictionary.attribute(BUILD_ID, Attribute::Text(places::hex(id))));
        let filename_strindex = dictionary.string(path);
        dictionary.mapping(Mapping {
            memory_start: mapping.map_or(0, |mapping| mapping.start),
            memory_limit: mapping.map_or(0, |mapping| mapping.end),
            file_offset: mapping.map_or(0, |mapping| mapping.offset),
            filename_strindex,
            attribute_indices: attribute_indices.into_iter().collect(),
        })
    }
}

const BUILD_ID: &str = "process.executable.build_id.gnu";

/// Of code without a name there are none: the build id and the address are what it can be named by later.
fn lines(frames: &[&Frame], dictionary: &mut Dictionary) -> Vec<Line> {
    if let [Frame { function: None, file: None, .. }] = frames {
        return Vec::new();
    }
    let line = |frame: &&Frame| Line {
        function_index: dictionary.function(&frame.label(), frame.file.as_deref().unwrap_or_default()),
        line: frame.line.unwrap_or(0).into(),
        column: 0,
    };
    frames.iter().map(line).collect()
}
