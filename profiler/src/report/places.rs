//! Where a frame's code lies: its module, and the mapping of it in the target.

use crate::model::{Frame, MappingProfile, ModuleProfile, Profile, TargetProfile};

/// See the module. Either may be unknown: reports of old versions have neither.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place<'a> {
    pub(super) module: Option<&'a ModuleProfile>,
    pub(super) mapping: Option<&'a MappingProfile>,
}

impl<'a> Place<'a> {
    pub(super) fn of(profile: &'a Profile, target: &'a TargetProfile, frame: &Frame) -> Self {
        let Some(path) = &frame.module else { return Self::default() };
        let module_at = |at: usize| profile.modules.get(at).filter(|module| module.path == *path);
        let address = call_address(frame);
        // What was unmapped meanwhile is among the mappings too, so another module's may have the address as well.
        let mapping = target
            .mappings
            .iter()
            .find(|mapping| (mapping.start..mapping.end).contains(&address) && module_at(mapping.module).is_some());
        let module = match mapping {
            Some(mapping) => module_at(mapping.module),
            None => profile.modules.iter().find(|module| module.path == *path),
        };
        Self { module, mapping }
    }
}

/// The address of a frame's call, not of what it returns to: that of the last byte of its instruction.
pub(super) fn call_address(frame: &Frame) -> u64 {
    frame.address.saturating_sub(1)
}

/// Bytes as two lower-case hexadecimal digits each.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
