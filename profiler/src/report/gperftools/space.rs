//! One address space for all processes: every mapping of a file has one place in it, that of the first process that has it, or one
//! that is free.

use std::collections::BTreeMap;
use std::io;

use rustc_hash::FxHashMap;

use crate::model::{FrameId, Profile, TargetProfile};
use crate::report::calls::calls;
use crate::report::places::Place;

/// Where mappings go whose own place is taken: programs have nothing there, in practice.
const FREE: u64 = 0x1000_0000_0000;

/// Mappings begin at multiples of it.
const PAGE_BYTES: u64 = 4096;

#[derive(Default)]
pub(super) struct Space {
    /// First addresses here, by what is mapped.
    places: FxHashMap<Mapped, u64>,
    /// What is mapped, by first address.
    ranges: BTreeMap<u64, Mapped>,
}

/// A part of a file.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Mapped {
    path: Box<str>,
    offset: u64,
    size_bytes: u64,
}

impl Space {
    /// Where what is mapped at `start` in some process is here.
    fn place(&mut self, mapped: Mapped, start: u64) -> u64 {
        if let Some(&place) = self.places.get(&mapped) {
            return place;
        }
        let mut place = start;
        if !self.is_free(place, mapped.size_bytes) {
            place = FREE;
            while let Some(end) = self.taken(place, mapped.size_bytes) {
                place = end.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES);
            }
        }
        self.ranges.insert(place, mapped.clone());
        self.places.insert(mapped, place);
        place
    }

    fn is_free(&self, start: u64, size_bytes: u64) -> bool {
        start.checked_add(size_bytes).is_some() && self.taken(start, size_bytes).is_none()
    }

    /// The end of the last range that reaches into this one.
    fn taken(&self, start: u64, size_bytes: u64) -> Option<u64> {
        let end = start.saturating_add(size_bytes);
        let (&last, mapped) = self.ranges.range(..end).next_back()?;
        let last_end = last.saturating_add(mapped.size_bytes);
        (last_end > start && last_end < u64::MAX).then_some(last_end)
    }

    /// Writes what is mapped as `/proc/PID/maps` has it.
    pub(super) fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        for (start, Mapped { path, offset, size_bytes }) in &self.ranges {
            let end = start.saturating_add(*size_bytes);
            let path = path.replace('\n', "\\012");
            writeln!(out, "{start:08x}-{end:08x} r-xp {offset:08x} 00:00 0 {path}")?;
        }
        Ok(())
    }
}

/// A process, and where its frames are in the space.
pub(super) struct Scope<'a> {
    profile: &'a Profile,
    target: &'a TargetProfile,
    addresses: FxHashMap<FrameId, u64>,
}

impl<'a> Scope<'a> {
    pub(super) fn new(profile: &'a Profile, target: &'a TargetProfile) -> Self {
        Self { profile, target, addresses: FxHashMap::default() }
    }

    /// The return addresses of a stack's calls, leaf first. Those that are in no mapping are what they are in the process.
    pub(super) fn addresses(&mut self, stack: &[FrameId], space: &mut Space) -> Vec<u64> {
        calls(self.profile, stack).filter_map(|call| call.last()).map(|&id| self.address(id, space)).collect()
    }

    fn address(&mut self, id: FrameId, space: &mut Space) -> u64 {
        if let Some(&address) = self.addresses.get(&id) {
            return address;
        }
        let address = self.look_up(id, space);
        self.addresses.insert(id, address);
        address
    }

    fn look_up(&self, id: FrameId, space: &mut Space) -> u64 {
        let Some(frame) = self.profile.frames.get(id.0 as usize) else { return super::NO_STACK };
        let Place { module: Some(module), mapping: Some(mapping) } = Place::of(self.profile, self.target, frame) else {
            return frame.address;
        };
        let size_bytes = mapping.end - mapping.start;
        let mapped = Mapped { path: (*module.path).into(), offset: mapping.offset, size_bytes };
        space.place(mapped, mapping.start).saturating_add(frame.address - mapping.start)
    }
}
