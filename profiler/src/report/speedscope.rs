//! The format of speedscope (its `file-format-schema.json`): one profile per view, of all processes together and, where there
//! are several, of each.
//!
//! Owns which profiles a file has and in what order. Stacks are written one by one, as numbers of frames.

use std::io;

use rustc_hash::FxHashMap;
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use super::{Presentation, Report, ReportError, View, describe, roots, window};
use crate::model::{CallsiteProfile, Frame, Profile, TargetProfile};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Speedscope;

impl Report for Speedscope {
    /// The profile of the view is the one that is shown first.
    fn write(
        &self,
        profile: &Profile,
        presentation: &Presentation,
        out: &mut dyn io::Write,
    ) -> Result<(), ReportError> {
        let stacks = Stacks::new(profile, presentation);
        let file = File {
            schema: SCHEMA,
            exporter: concat!("heapbpf ", env!("CARGO_PKG_VERSION")),
            name: name(profile),
            active_profile_index: View::ALL.iter().position(|view| *view == presentation.view).unwrap_or(0),
            profiles: profiles(profile, &stacks),
            shared: Shared { frames: &stacks.frames.frames },
        };
        serde_json::to_writer(&mut *out, &file).map_err(io::Error::from)?;
        out.write_all(b"\n")?;
        Ok(())
    }
}

/// Of what, how it was sampled, and what is missing: speedscope has no other place for words.
fn name(profile: &Profile) -> String {
    let (subject, interval) = (describe::subject(profile), describe::interval(profile));
    format!("{subject}{}: {interval}, {}", window::title(profile), describe::losses(profile))
}

/// The four of all processes, in the order of [`View::ALL`], then those of each that are not empty.
fn profiles<'a>(profile: &'a Profile, stacks: &'a Stacks<'a>) -> Vec<Sampled<'a>> {
    let all = View::ALL.into_iter().map(|view| {
        let subject = describe::subject(profile);
        let accuracy = describe::accuracy_of_shown(profile, view);
        let folded = describe::folded(profile, view).map(|amount| format!("; {amount} of ended processes left out"));
        let title = describe::title(profile, view);
        let name = format!("{title}, {subject}{accuracy}{}", folded.unwrap_or_default());
        Sampled::new(name, view, &stacks.stacks)
    });
    let several = profile.targets.len() > 1;
    let each = profile.targets.iter().zip(&stacks.targets).filter(|_| several).flat_map(|(target, range)| {
        let stacks = stacks.stacks.get(range.clone()).unwrap_or_default();
        let sampled = move |view| {
            let name = format!("{}, {}", describe::title(profile, view), describe::target(target));
            Sampled::new(name, view, stacks)
        };
        View::ALL.into_iter().map(sampled).filter(|sampled| sampled.end_value > 0)
    });
    all.chain(each).collect()
}

#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: String,
    #[serde(rename = "activeProfileIndex")]
    active_profile_index: usize,
    profiles: Vec<Sampled<'a>>,
    shared: Shared<'a>,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: &'a [FrameFields],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
struct FrameFields {
    name: String,
    /// The source file; where that is not known, the module.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

impl FrameFields {
    fn of_frame(frame: &Frame) -> Self {
        let file = frame.file.as_ref().or(frame.module.as_ref()).map(ToString::to_string);
        Self { name: frame.label(), file, line: frame.line }
    }

    fn said(name: &str) -> Self {
        Self { name: name.to_owned(), file: None, line: None }
    }
}

/// All frames, each once: equal ones at different addresses are one.
#[derive(Default)]
struct Frames {
    frames: Vec<FrameFields>,
    numbers: FxHashMap<FrameFields, usize>,
}

impl Frames {
    fn number(&mut self, frame: FrameFields) -> usize {
        let next = self.frames.len();
        *self.numbers.entry(frame).or_insert_with_key(|frame| {
            self.frames.push(frame.clone());
            next
        })
    }
}

/// All callsites in the profile's order, those of a target side by side.
struct Stacks<'a> {
    frames: Frames,
    stacks: Vec<Stack<'a>>,
    /// Where each target's stand.
    targets: Vec<std::ops::Range<usize>>,
}

struct Stack<'a> {
    callsite: &'a CallsiteProfile,
    /// Numbers of frames, the outermost first.
    frames: Vec<usize>,
}

impl<'a> Stacks<'a> {
    fn new(profile: &'a Profile, presentation: &Presentation) -> Self {
        let mut frames = Frames::default();
        let numbers: Vec<usize> =
            profile.frames.iter().map(|frame| frames.number(FrameFields::of_frame(frame))).collect();
        let mut stacks = Vec::new();
        let mut targets = Vec::new();
        for target in &profile.targets {
            let first = stacks.len();
            stacks.extend(target.callsites.iter().map(|callsite| {
                let frames = stack(target, callsite, presentation, &numbers, &mut frames);
                Stack { callsite, frames }
            }));
            targets.push(first..stacks.len());
        }
        Self { frames, stacks, targets }
    }
}

/// `numbers` are those of the profile's frames.
fn stack(
    target: &TargetProfile,
    callsite: &CallsiteProfile,
    presentation: &Presentation,
    numbers: &[usize],
    frames: &mut Frames,
) -> Vec<usize> {
    let roots = roots::roots(target, callsite, presentation);
    let mut stack: Vec<usize> = roots.iter().map(|root| frames.number(FrameFields::said(root))).collect();
    stack.extend(callsite.stack.iter().rev().filter_map(|id| numbers.get(id.0 as usize)));
    stack
}

#[derive(Serialize)]
struct Sampled<'a> {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start_value: u64,
    #[serde(rename = "endValue")]
    end_value: u64,
    samples: Samples<'a>,
    weights: Weights<'a>,
}

impl<'a> Sampled<'a> {
    fn new(name: String, view: View, stacks: &'a [Stack<'a>]) -> Self {
        let unit = match view {
            View::LiveBytes | View::AllocBytes => "bytes",
            View::LiveCount | View::AllocCount => "none",
        };
        let end_value = shown(stacks, view).fold(0_u64, |sum, (_, weight)| sum.saturating_add(weight));
        let (samples, weights) = (Samples { stacks, view }, Weights { stacks, view });
        Self { r#type: "sampled", name, unit, start_value: 0, end_value, samples, weights }
    }
}

/// Those of which the view says something, with what it says.
fn shown<'a>(stacks: &'a [Stack<'a>], view: View) -> impl Iterator<Item = (&'a Stack<'a>, u64)> {
    stacks.iter().map(move |stack| (stack, view.of_callsite(stack.callsite))).filter(|(_, weight)| *weight > 0)
}

struct Samples<'a> {
    stacks: &'a [Stack<'a>],
    view: View,
}

impl Serialize for Samples<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut samples = serializer.serialize_seq(None)?;
        for (stack, _) in shown(self.stacks, self.view) {
            samples.serialize_element(&stack.frames)?;
        }
        samples.end()
    }
}

struct Weights<'a> {
    stacks: &'a [Stack<'a>],
    view: View,
}

impl Serialize for Weights<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(shown(self.stacks, self.view).map(|(_, weight)| weight))
    }
}
