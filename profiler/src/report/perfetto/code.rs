//! Places in code as a trace numbers them: mappings, and what stands in them.
//!
//! Owns how an address becomes a mapping and a place in its file. A place is a run of inlined calls and the function that
//! holds them, which a trace has as one frame; names and lines of the run go into the symbols of the module. Perfetto has those
//! by module and address, so where two runs share an address, neither gets symbols, and each of their functions is a frame.

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::messages::{self, AddressSymbols, Line, ModuleSymbols};
use crate::model::{Frame, FrameId, MappingProfile, Profile, TargetProfile};

/// The mapping of frames that heapbpf has made up, as heapprofd's is `ERROR`.
const OWN: &str = "[heapbpf]";

/// A place, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place(u32);

/// All places of a profile, each once.
pub(super) struct Code<'a> {
    profile: &'a Profile,
    pub(super) functions: Strings<'a>,
    pub(super) paths: Strings<'a>,
    pub(super) build_ids: FxHashMap<&'a [u8], u64>,
    pub(super) mappings: Vec<messages::Mapping>,
    mapping_ids: FxHashMap<MappingKey<'a>, u64>,
    places: Vec<PlaceData>,
    place_ids: FxHashMap<PlaceKey, Place>,
    /// Which place's names stand for an address of a file.
    symbols: FxHashMap<(ModuleKey<'a>, u64), Place>,
    module_of: Vec<ModuleKey<'a>>,
}

type MappingKey<'a> = (ModuleKey<'a>, [u64; 4]);

/// A file, as Perfetto knows it: by path and build id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct ModuleKey<'a> {
    path: &'a str,
    build_id: &'a [u8],
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct PlaceKey {
    mapping: u64,
    rel_pc: u64,
    /// The innermost first; empty of a made-up frame.
    run: Box<[FrameId]>,
    /// The name of a made-up frame.
    label: u64,
}

struct PlaceData {
    key: PlaceKey,
    /// Its functions are frames of their own.
    is_spelled: bool,
}

impl<'a> Code<'a> {
    pub(super) fn new(profile: &'a Profile) -> Self {
        Self {
            profile,
            functions: Strings::default(),
            paths: Strings::default(),
            build_ids: FxHashMap::default(),
            mappings: Vec::new(),
            mapping_ids: FxHashMap::default(),
            places: Vec::new(),
            place_ids: FxHashMap::default(),
            symbols: FxHashMap::default(),
            module_of: Vec::new(),
        }
    }

    /// The place of a frame that is in no code.
    pub(super) fn made_up(&mut self, name: String) -> Place {
        let module = ModuleKey { path: OWN, build_id: &[] };
        let mapping = self.mapping(module, [0; 4]);
        let label = self.functions.intern(Cow::Owned(name));
        self.intern(PlaceKey { mapping, rel_pc: 0, run: Box::default(), label })
    }

    /// The place of a run of inlined calls and the function that holds them, the innermost first.
    pub(super) fn place(&mut self, target: &'a TargetProfile, run: &[FrameId]) -> Option<Place> {
        let profile = self.profile;
        let frame = profile.frames.get(run.last()?.0 as usize)?;
        let (module, range, rel_pc) = locate(profile, target, frame);
        let mapping = self.mapping(module, range);
        let place = self.intern(PlaceKey { mapping, rel_pc, run: run.into(), label: 0 });
        let owner = *self.symbols.entry((module, rel_pc)).or_insert(place);
        if owner != place && !self.reads_alike(owner, place) {
            for place in [owner, place] {
                self.places[place.0 as usize].is_spelled = true;
            }
        }
        Some(place)
    }

    fn intern(&mut self, key: PlaceKey) -> Place {
        if let Some(&known) = self.place_ids.get(&key) {
            return known;
        }
        let place = Place(u32::try_from(self.places.len()).expect("profiles number their frames in 32 bits"));
        self.place_ids.insert(key.clone(), place);
        self.places.push(PlaceData { key, is_spelled: false });
        place
    }

    fn mapping(&mut self, module: ModuleKey<'a>, range: [u64; 4]) -> u64 {
        if let Some(&known) = self.mapping_ids.get(&(module, range)) {
            return known;
        }
        let iid = self.mappings.len() as u64 + 1;
        let [start, end, offset, load_bias] = range;
        let build_id = match module.build_id {
            [] => None,
            bytes => {
                let next = self.build_ids.len() as u64 + 1;
                Some(*self.build_ids.entry(bytes).or_insert(next))
            }
        };
        let path_string_ids = components(module.path).map(|part| self.paths.intern(Cow::Borrowed(part))).collect();
        self.mappings.push(messages::Mapping {
            iid: Some(iid),
            build_id,
            start_offset: Some(0),
            start: Some(start),
            end: Some(end),
            load_bias: Some(load_bias),
            path_string_ids,
            exact_offset: Some(offset),
        });
        self.mapping_ids.insert((module, range), iid);
        self.module_of.push(module);
        iid
    }

    /// Whether both places have the same functions and lines.
    fn reads_alike(&self, one: Place, other: Place) -> bool {
        let names = |place: Place| {
            let run = &self.places[place.0 as usize].key.run;
            run.iter().map(|&id| self.profile.frame(id)).map(|frame| (&frame.function, &frame.file, frame.line))
        };
        names(one).eq(names(other))
    }

    /// Numbers the frames, and tells which of them each place is, the outermost first.
    pub(super) fn frames(&mut self) -> (Vec<messages::Frame>, Vec<Box<[u64]>>) {
        let mut frames = Vec::new();
        let mut ids = Vec::with_capacity(self.places.len());
        for data in &self.places {
            let PlaceKey { mapping, rel_pc, run, label } = &data.key;
            let mut add = |function: u64| {
                let iid = frames.len() as u64 + 1;
                frames.push(messages::Frame {
                    iid: Some(iid),
                    function_name_id: Some(function),
                    mapping_id: Some(*mapping),
                    rel_pc: Some(*rel_pc),
                });
                iid
            };
            let functions: Box<[u64]> = match (run.last(), data.is_spelled) {
                (None, _) => [*label].into(),
                (Some(id), false) => [self.functions.name(self.profile.frame(*id))].into(),
                (Some(_), true) => run.iter().rev().map(|id| self.functions.name(self.profile.frame(*id))).collect(),
            };
            ids.push(functions.into_iter().map(&mut add).collect());
        }
        (frames, ids)
    }

    /// The frames of a place, of all places' frames.
    pub(super) fn ids_of(ids: &[Box<[u64]>], place: Place) -> &[u64] {
        &ids[place.0 as usize]
    }

    /// Functions and lines by module and address, in their order. Of a place that is but a function's name the frame tells all.
    pub(super) fn symbols(&self) -> Vec<ModuleSymbols> {
        let told = self.symbols.iter().filter(|(_, place)| {
            let data = &self.places[place.0 as usize];
            let has_line = data.key.run.iter().any(|&id| self.profile.frame(id).file.is_some());
            !data.is_spelled && (has_line || data.key.run.len() > 1)
        });
        let mut told: Vec<_> = told.collect();
        told.sort_unstable_by_key(|((module, address), _)| (*module, *address));
        let modules = told.chunk_by(|((a, _), _), ((b, _), _)| a == b);
        let symbols = modules.filter_map(|addresses| {
            let ((module, _), _) = *addresses.first()?;
            let path = components(module.path).fold(String::new(), |path, part| path + "/" + part);
            Some(ModuleSymbols {
                path: Some(path),
                build_id: (!module.build_id.is_empty()).then(|| module.build_id.to_vec()),
                address_symbols: addresses.iter().map(|((_, address), place)| self.lines(*address, **place)).collect(),
            })
        });
        symbols.collect()
    }

    fn lines(&self, address: u64, place: Place) -> AddressSymbols {
        let run = self.places[place.0 as usize].key.run.iter().map(|&id| self.profile.frame(id));
        let lines = run.map(|frame| Line {
            function_name: Some(frame.label()),
            source_file_name: frame.file.as_deref().map(str::to_owned),
            line_number: frame.line,
        });
        AddressSymbols { address: Some(address), lines: lines.collect() }
    }
}

/// In which file a frame is, the start, end, file offset and load bias of the mapping, and the address in it. Addresses are those
/// of calls: the byte before the one to which they return.
fn locate<'a>(profile: &'a Profile, target: &'a TargetProfile, frame: &'a Frame) -> (ModuleKey<'a>, [u64; 4], u64) {
    let call = frame.address.saturating_sub(1);
    let Some(path) = &frame.module else {
        return (ModuleKey { path: "", build_id: &[] }, [0; 4], call);
    };
    let is_of = |mapping: &&MappingProfile| {
        let module = profile.modules.get(mapping.module);
        (mapping.start..mapping.end).contains(&call)
            && module.is_some_and(|module| Arc::ptr_eq(&module.path, path) || module.path == *path)
    };
    let Some(mapping) = target.mappings.iter().find(is_of) else {
        let known = profile.modules.iter().find(|module| module.path == *path);
        let build_id = known.and_then(|module| module.build_id.as_deref()).unwrap_or_default();
        let offset = frame.module_offset.map_or(call, |offset| offset.saturating_sub(1));
        return (ModuleKey { path, build_id }, [0; 4], offset);
    };
    let build_id = profile.modules.get(mapping.module).and_then(|module| module.build_id.as_deref());
    let module = ModuleKey { path, build_id: build_id.unwrap_or_default() };
    // Without the bias, places are told as offsets into the file.
    let bias = mapping.bias.unwrap_or_else(|| mapping.start.wrapping_sub(mapping.offset));
    let load_bias = mapping.start.wrapping_sub(bias).wrapping_sub(mapping.offset);
    (module, [mapping.start, mapping.end, mapping.offset, load_bias], call.wrapping_sub(bias))
}

/// A path's parts, as Perfetto puts them together again with a `/` before each.
fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// Texts by number, from 1.
#[derive(Default)]
pub(super) struct Strings<'a> {
    ids: FxHashMap<Cow<'a, str>, u64>,
}

impl<'a> Strings<'a> {
    fn intern(&mut self, text: Cow<'a, str>) -> u64 {
        let next = self.ids.len() as u64 + 1;
        *self.ids.entry(text).or_insert(next)
    }

    fn name(&mut self, frame: &'a Frame) -> u64 {
        let name = frame.function.as_deref().map_or_else(|| Cow::Owned(frame.label()), Cow::Borrowed);
        self.intern(name)
    }

    /// All of them with their numbers, in that order.
    pub(super) fn all(&self) -> Vec<(u64, &[u8])> {
        numbered(self.ids.iter().map(|(text, &iid)| (iid, text.as_bytes())))
    }
}

/// In the order of the numbers.
pub(super) fn numbered<'a>(ids: impl Iterator<Item = (u64, &'a [u8])>) -> Vec<(u64, &'a [u8])> {
    let mut ids: Vec<_> = ids.collect();
    ids.sort_unstable_by_key(|&(iid, _)| iid);
    ids
}
