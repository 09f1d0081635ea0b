//! Blocks of a process that nothing holds any more, as reports tell them.

pub(crate) use crate::leak::fold::Sum;
use crate::model::{CallsiteProfile, Profile, TargetProfile, TypeName};
pub(crate) use json::write_json;
pub(crate) use merge::merge;
pub(crate) use text::{Style, write_text};

mod json;
mod merge;
mod text;

/// One check of one process. Callsites' names, and the bytes that leaked of each, are in a profile of their own: its live blocks are the
/// leaked ones, and it has one target.
#[derive(Clone, Debug)]
pub(crate) struct Unreachable {
    /// The leaked blocks by callsite.
    pub profile: Profile,
    /// When the process was stopped, in nanoseconds since the Unix epoch.
    pub taken_unix_ns: u64,
    /// For how long.
    pub pause_ns: u64,
    /// How its memory was kept meanwhile: `read` or `fork`.
    pub method: &'static str,
    /// How long allocations had been watched, in nanoseconds; `None` where they were not.
    pub watched_ns: Option<u64>,
    /// The program had ended, and was looked at before its memory was given back.
    pub at_exit: bool,
    /// All blocks that are known.
    pub known: Sum,
    /// Those of them that nothing reaches, without suppressed ones.
    pub leaked: Sum,
    /// Those of the leaked that no other leaked one holds, apart from those that it holds itself.
    pub direct: Sum,
    /// Root leaks that suppressions match, and all that hangs on them alone.
    pub suppressed: Sum,
    /// What is known of each heap's blocks.
    pub heaps: Vec<HeapKnowledge>,
    /// What weakens the result, in words: memory that could not be read, lost events and the like.
    pub caveats: Vec<String>,
    /// Entries, the largest first, as many as were asked for.
    pub leaks: Vec<Leak>,
    /// How many there are.
    pub leak_count: u64,
}

/// How the blocks of a heap are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeapKnowledge {
    /// The heap's name.
    pub name: String,
    /// How.
    pub precision: Precision,
    /// Blocks that are known.
    pub known: Sum,
    /// What could not be looked through, each with why.
    pub gaps: Vec<String>,
}

/// How the blocks of a heap are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// All were seen to be made.
    Watched,
    /// All were found in the allocator's bookkeeping; those that were seen to be made have a stack.
    Walked,
    /// Those alone that were seen to be made since the process was attached to. The rest of the heap counts as roots: what only older blocks hold is
    /// taken for reachable, and older blocks are never leaks.
    Partial,
}

/// A leak: a block that nothing reaches, or several that hold each other and that nothing else does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Leak {
    /// The block; of several that hold each other, the first by address.
    pub address: u64,
    /// Bytes of it.
    pub size_bytes: u64,
    /// Index into the callsites of the profile's target.
    pub callsite: usize,
    /// It was seen to be made, so that the callsite has a stack.
    pub watched: bool,
    /// What it is an object of, where that can be told.
    pub type_name: Option<TypeName>,
    /// How long ago it was made, in nanoseconds, where that was seen.
    pub age_ns: Option<u64>,
    /// How it begins: at most [`CONTENTS_BYTES_MAX`].
    pub contents: Vec<u8>,
    /// How many blocks hold each other, this one included: 1 unless it is a circle.
    pub cycle_count: u64,
    /// All that hangs on it, without the block itself.
    pub referenced: Sum,
    /// Further leaks of the same callsite.
    pub similar: Sum,
    /// All that hangs on those.
    pub similar_referenced: Sum,
}

/// Bytes of a leaked block that are shown.
pub(crate) const CONTENTS_BYTES_MAX: usize = 32;

impl Unreachable {
    /// Those of the leaked that other leaked ones hold.
    pub(crate) fn indirect(&self) -> Sum {
        Sum {
            count: self.leaked.count.saturating_sub(self.direct.count),
            bytes: self.leaked.bytes.saturating_sub(self.direct.bytes),
        }
    }

    /// The process.
    pub(crate) fn target(&self) -> Option<&TargetProfile> {
        self.profile.targets.first()
    }

    /// Where a leak was made; `None` if its callsite is of another check.
    pub(crate) fn callsite(&self, leak: &Leak) -> Option<&CallsiteProfile> {
        self.target()?.callsites.get(leak.callsite)
    }
}

impl Leak {
    /// One of a watched block by itself.
    #[cfg(test)]
    pub(crate) fn made_up(address: u64, size_bytes: u64, callsite: usize) -> Self {
        Self {
            address,
            size_bytes,
            callsite,
            watched: true,
            type_name: None,
            age_ns: None,
            contents: Vec::new(),
            cycle_count: 1,
            referenced: Sum::default(),
            similar: Sum::default(),
            similar_referenced: Sum::default(),
        }
    }

    /// Bytes of it, all that hangs on it, and its like: what entries are ordered by.
    pub(crate) fn total_bytes(&self) -> u64 {
        [self.referenced.bytes, self.similar.bytes, self.similar_referenced.bytes]
            .iter()
            .fold(self.size_bytes, |sum, bytes| sum.saturating_add(*bytes))
    }
}
