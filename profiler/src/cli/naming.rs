//! Names for reports that have been written: modules are searched for by build id.

use heapbpf_base::address::{FileOffset, LinkAddr};
use heapbpf_base::ids::ModuleId;
use heapbpf_ledger::model::Profile;

use crate::object::elf::Segment;
use crate::recording::entry::ModuleFacts;
use crate::recording::names;
use crate::symbolize::later;
use crate::symbolize::resolver::Resolver;
use crate::symbolize::sandbox::Interrupt;
use crate::symbolize::sources::Sources;

/// Source of the names in a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Naming {
    /// Use the names stored in the recording; symbolize only if it has none.
    #[default]
    Recorded,
    /// Symbolize locations that have no name.
    Again,
}

/// Adds names to a JSON report. Where a file is missing, the report's mappings replace its program headers.
pub(super) fn add_names(profile: &mut Profile, sources: &Sources) {
    let facts = |(id, module): (ModuleId, &heapbpf_ledger::model::ModuleProfile)| ModuleFacts {
        id,
        path: module.path.to_string(),
        build_id: module.build_id.clone(),
        file: None,
        code: Vec::new(),
    };
    let mut facts: Vec<ModuleFacts> = (0..).map(ModuleId).zip(&profile.modules).map(facts).collect();
    for mapping in profile.targets.iter().flat_map(|target| &target.mappings) {
        let Some(bias) = mapping.bias else { continue };
        facts[mapping.module].code.push(Segment {
            offset: FileOffset(mapping.offset),
            size_bytes: mapping.end.saturating_sub(mapping.start),
            address: LinkAddr(mapping.start.wrapping_sub(bias)),
            executable: true,
        });
    }
    let resolver = Resolver::sandboxed(Interrupt::default(), sources.clone());
    later::symbolize(profile, &names::find(&facts, true).modules, &resolver);
}
