//! Loads programs for links that aya 0.14 has no type for, beside aya: its parser relocates the object's second copy
//! against the maps that aya made.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use aya::Ebpf;
use aya::maps::Map;
use aya_obj::Object;

use super::load::LoadError;
use super::private_stack;
use crate::linux::bpf::{self, AttachType, ProgramBtf, ProgramLoad};

/// An object, relocated and ready to load programs from.
pub(super) struct RelocatedObject {
    object: Object,
    btf: Option<OwnedFd>,
}

impl RelocatedObject {
    /// Relocates the object against the maps of `ebpf`, which must be made from the same bytes and have all its maps yet.
    pub(super) fn new(bytes: &[u8], ebpf: &Ebpf) -> Result<Self, LoadError> {
        let refused = |error: &dyn std::fmt::Display| LoadError::Relocation(error.to_string());
        let mut object = Object::parse(bytes).map_err(|error| refused(&error))?;
        let features = aya::features();
        let btf = match features.btf() {
            Some(btf) => object.fixup_and_sanitize_btf(btf).map_err(|error| refused(&error))?.map(|btf| btf.to_bytes()),
            None => None,
        };
        let btf = btf.map(|bytes| bpf::load_btf(&bytes)).transpose().map_err(|error| refused(&error))?;
        let maps: Vec<(String, aya_obj::Map)> = object.maps.drain().collect();
        let descriptors: HashMap<&str, RawFd> =
            ebpf.maps().filter_map(|(name, map)| Some((name, descriptor(map)?))).collect();
        let known = maps.iter().filter_map(|(name, map)| Some((name.as_str(), *descriptors.get(name.as_str())?, map)));
        let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        object.relocate_maps(known, &text).map_err(|error| refused(&error))?;
        object.relocate_calls(&text).map_err(|error| refused(&error))?;
        object.sanitize_functions(features);
        Ok(Self { object, btf })
    }

    /// Loads a program for links of this type.
    pub(super) fn load(&self, name: &'static str, attach_type: AttachType) -> Result<OwnedFd, LoadError> {
        let program = self.object.programs.get(name).ok_or(LoadError::Missing(name))?;
        let function = self.object.functions.get(&program.function_key()).ok_or(LoadError::Missing(name))?;
        let functions = function.func_info.func_info_bytes();
        let lines = function.line_info.line_info_bytes();
        let btf = self.btf.as_ref().map(|btf| ProgramBtf {
            btf,
            functions: (&functions, function.func_info_rec_size),
            lines: (&lines, function.line_info_rec_size),
        });
        let load =
            ProgramLoad { name, instructions: &function.instructions, license: &program.license, attach_type, btf };
        let program = bpf::load_program(load).map_err(|refused| LoadError::program(name, &refused.to_string()))?;
        private_stack::refuse(name, &program)?;
        Ok(program)
    }
}

/// The descriptor of a map of a kind that the object has.
fn descriptor(map: &Map) -> Option<RawFd> {
    match map {
        Map::Array(data)
        | Map::PerCpuArray(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::PerfEventArray(data)
        | Map::ProgramArray(data)
        | Map::RingBuf(data) => Some(data.fd().as_fd().as_raw_fd()),
        _ => None,
    }
}
