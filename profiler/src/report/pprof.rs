//! The format of pprof (`profile.proto`), compressed.
//!
//! Owns what a sample is: a stack, what it belongs to as labels, and four values. Processes, heaps and threads are labels and never
//! frames, so that what several processes have in common adds up; `-tagroot` makes frames of them. Sums over all samples are
//! the totals of the JSON report, rounded by callsite.

use std::io;

use flate2::{Compression, GzBuilder};
use prost::Message;
use rustc_hash::FxHashMap;

use super::{Presentation, Report, ReportError, View, describe, roots};
use crate::model::{CallsiteProfile, Profile, TargetProfile};
use labels::Labels;
use locations::Locations;
use strings::Strings;

mod comments;
mod labels;
mod locations;
mod messages;
mod strings;

/// Sample types, in the order in which Go's heap profiles have them: the view, its type and its unit.
const SAMPLE_TYPES: [(View, &str, &str); 4] = [
    (View::AllocCount, "alloc_objects", "count"),
    (View::AllocBytes, "alloc_space", "bytes"),
    (View::LiveCount, "inuse_objects", "count"),
    (View::LiveBytes, "inuse_space", "bytes"),
];

/// The sample of processes that are kept as sums alone: its one frame.
const FOLDED: &str = "[processes that exited, of which sums alone are kept]";

/// Writes pprof's format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pprof;

impl Report for Pprof {
    fn write(
        &self,
        profile: &Profile,
        presentation: &Presentation,
        out: &mut dyn io::Write,
    ) -> Result<(), ReportError> {
        let mut writing = Writing::new(profile);
        for target in &profile.targets {
            writing.take_in(target);
        }
        writing.take_in_folded();
        // No time and no name: the same profile gives the same bytes.
        let mut compressed = GzBuilder::new().mtime(0).write(out, Compression::default());
        writing.write(presentation, &mut compressed)?;
        compressed.finish()?;
        Ok(())
    }
}

/// What is written, by number.
struct Writing<'a> {
    profile: &'a Profile,
    strings: Strings<'a>,
    locations: Locations<'a>,
    labels: Labels,
    /// Places in `samples`, by locations and, last, labels.
    numbers: FxHashMap<Box<[u32]>, usize>,
    /// Values in the order of [`SAMPLE_TYPES`].
    samples: Vec<[u64; 4]>,
}

impl<'a> Writing<'a> {
    fn new(profile: &'a Profile) -> Self {
        Self {
            profile,
            strings: Strings::default(),
            locations: Locations::new(profile),
            labels: Labels::default(),
            numbers: FxHashMap::default(),
            samples: Vec::new(),
        }
    }

    fn take_in(&mut self, target: &'a TargetProfile) {
        let mut labels = labels::Scope::new(target, &mut self.strings);
        let mut places = locations::Scope::new(target);
        let mut key = Vec::new();
        for callsite in &target.callsites {
            let values = SAMPLE_TYPES.map(|(view, ..)| view.of_callsite(callsite));
            if values == [0; 4] {
                continue;
            }
            key.clear();
            self.locations.stack(&mut places, &callsite.stack, &mut self.strings, &mut key);
            self.gaps(callsite, &mut key);
            let set = labels.of_callsite(callsite, &mut self.strings);
            key.push(self.labels.number(set));
            self.add(&key, values);
        }
    }

    /// The frames that say what is missing from a stack, the innermost first.
    fn gaps(&mut self, callsite: &CallsiteProfile, key: &mut Vec<u32>) {
        let gaps: Vec<String> = roots::gaps(callsite).collect();
        for gap in gaps.into_iter().rev() {
            key.push(self.locations.named(gap.into(), &mut self.strings));
        }
    }

    /// One sample for the processes that are kept as sums alone, so that sums are the totals.
    fn take_in_folded(&mut self) {
        let values = folded(self.profile, SAMPLE_TYPES.map(|(view, ..)| view));
        if values != [0; 4] {
            let location = self.locations.named(FOLDED.into(), &mut self.strings);
            let labels = self.labels.number(labels::Set::default());
            self.add(&[location, labels], values);
        }
    }

    fn add(&mut self, key: &[u32], values: [u64; 4]) {
        if let Some(&number) = self.numbers.get(key) {
            for (sum, value) in self.samples[number].iter_mut().zip(values) {
                *sum = sum.saturating_add(value);
            }
        } else {
            self.numbers.insert(key.into(), self.samples.len());
            self.samples.push(values);
        }
    }

    /// Writes all of it, a message after the other: messages of one type that follow each other are one whose lists are joined.
    fn write(&mut self, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
        let mut part = |part: messages::Profile| out.write_all(&part.encode_to_vec());
        part(self.header(presentation))?;
        let mut keys: Vec<(&[u32], usize)> = self.numbers.iter().map(|(key, &number)| (&**key, number)).collect();
        keys.sort_unstable_by_key(|&(_, number)| number);
        for (key, number) in keys {
            let Some((&labels, locations)) = key.split_last() else { continue };
            let values = self.samples[number];
            let sample = messages::Sample {
                location_id: locations.iter().copied().map(u64::from).collect(),
                value: values.map(signed).to_vec(),
                label: self.labels.messages(labels, values, &mut self.strings),
            };
            part(messages::Profile { sample: vec![sample], ..Default::default() })?;
        }
        for mapping in self.locations.mappings(&mut self.strings) {
            part(messages::Profile { mapping: vec![mapping], ..Default::default() })?;
        }
        for location in self.locations.locations() {
            part(messages::Profile { location: vec![location], ..Default::default() })?;
        }
        for function in self.locations.functions() {
            part(messages::Profile { function: vec![function], ..Default::default() })?;
        }
        for text in self.strings.texts() {
            part(messages::Profile { string_table: vec![text.to_owned()], ..Default::default() })?;
        }
        Ok(())
    }

    /// All but the lists that grow with the profile.
    fn header(&mut self, presentation: &Presentation) -> messages::Profile {
        let profile = self.profile;
        let strings = &mut self.strings;
        let sample_type = SAMPLE_TYPES.map(|(_, name, unit)| messages::ValueType::new(name, unit, strings));
        let shown = SAMPLE_TYPES.iter().find(|(view, ..)| *view == presentation.view);
        let started_unix_ns = profile.window.as_ref().map_or(profile.started_unix_ns, |window| window.start_unix_ns);
        messages::Profile {
            sample_type: sample_type.to_vec(),
            time_nanos: signed(started_unix_ns),
            duration_nanos: signed(describe::duration_ns(profile)),
            period_type: Some(messages::ValueType::new("space", "bytes", strings)),
            period: signed(profile.interval_bytes.max(1)),
            comment: comments::of(profile, presentation).into_iter().map(|text| strings.number(text.into())).collect(),
            default_sample_type: shown.map_or(0, |&(_, name, _)| strings.number(name.into())),
            ..Default::default()
        }
    }
}

/// What is kept of ended processes, of each view. How old their blocks are is not known.
pub(super) fn folded<const N: usize>(profile: &Profile, views: [View; N]) -> [u64; N] {
    views.map(|view| match view.shows_old_blocks_only(profile) {
        true => 0,
        false => view.rounded(&profile.others.folded_totals),
    })
}

/// The format's numbers have a sign; what is too large is the largest.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
