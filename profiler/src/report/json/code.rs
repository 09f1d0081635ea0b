//! What ran, in the JSON report: files of code, where they were mapped, and threads.

use serde::Serialize;

use crate::model::{MappingProfile, ModuleProfile, Profile, TargetProfile, ThreadProfile};

#[derive(Serialize)]
pub(super) struct ModuleFields<'a> {
    path: &'a str,
    /// In hexadecimal, two digits a byte.
    build_id: Option<String>,
}

impl<'a> ModuleFields<'a> {
    pub(super) fn new(module: &'a ModuleProfile) -> Self {
        let hexadecimal = |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { path: &module.path, build_id: module.build_id.as_ref().map(hexadecimal) }
    }
}

/// Numbers in hexadecimal, as those of frames.
#[derive(Serialize)]
pub(super) struct MappingFields {
    start: String,
    end: String,
    offset: String,
    bias: Option<String>,
    /// Place in the report's modules.
    module: usize,
}

impl MappingFields {
    /// Those of a target that are in a module that there is.
    pub(super) fn of(profile: &Profile, target: &TargetProfile) -> Vec<Self> {
        let is_placed = |mapping: &&MappingProfile| mapping.module < profile.modules.len();
        target.mappings.iter().filter(is_placed).map(Self::new).collect()
    }

    fn new(mapping: &MappingProfile) -> Self {
        let MappingProfile { start, end, offset, bias, module } = *mapping;
        Self {
            start: format!("{start:#x}"),
            end: format!("{end:#x}"),
            offset: format!("{offset:#x}"),
            bias: bias.map(|bias| format!("{bias:#x}")),
            module,
        }
    }
}

#[derive(Serialize)]
pub(super) struct ThreadFields<'a> {
    tid: u32,
    name: Option<&'a str>,
}

impl<'a> ThreadFields<'a> {
    pub(super) fn new(thread: &'a ThreadProfile) -> Self {
        Self { tid: thread.tid.0, name: thread.name.as_deref() }
    }
}
