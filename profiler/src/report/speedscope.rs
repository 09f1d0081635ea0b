//! The format of speedscope (its `file-format-schema.json`): a profile per view of all processes together, and of each process if
//! there are several.

use std::io;

use serde::Serialize;

use super::caption::Caption;
use super::describe;
use super::frames::synthetic_frames;
use super::intern::Interner;
use super::presentation::{Presentation, View};
use super::spec::FormatSpec;
use crate::model::{CallsiteProfile, Frame, Profile};

pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "speedscope",
    extension: "speedscope.json",
    description: "speedscope",
    is_text: true,
    write: Some(write),
};

fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let caption = Caption::new(profile, presentation.view);
    let stacks = Stacks::new(profile, presentation);
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: concat!("heapbpf ", env!("CARGO_PKG_VERSION")),
        // The format has no other place for text about the recording.
        name: format!("{}: {}, {}", caption.subject, caption.interval, caption.losses),
        active_profile_index: View::ALL.iter().position(|view| *view == presentation.view).unwrap_or(0),
        profiles: profiles(profile, &stacks),
        shared: Shared { frames: &stacks.frames.values },
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")
}

/// The four of all processes, in the order of [`View::ALL`], then those of each process that are not empty.
fn profiles<'a>(profile: &'a Profile, stacks: &'a Stacks<'a>) -> Vec<Sampled<'a>> {
    let subject = describe::subject(profile);
    let all = View::ALL.into_iter().map(|view| {
        let title = describe::title(profile, view);
        let accuracy = describe::accuracy_of_shown(profile, view);
        let left_out = describe::folded(profile, view);
        let left_out = left_out.map_or(String::new(), |amount| format!("; {amount} of exited processes left out"));
        let name = format!("{title}, {subject}{accuracy}{left_out}");
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
    /// Source file; if unknown, the module.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

impl FrameFields {
    fn new(frame: &Frame) -> Self {
        let file = frame.file.as_ref().or(frame.module.as_ref()).map(ToString::to_string);
        Self { name: frame.label(), file, line: frame.line }
    }

    fn synthetic(name: String) -> Self {
        Self { name, file: None, line: None }
    }
}

/// All callsites in the profile's order, those of a target side by side.
struct Stacks<'a> {
    /// Equal frames at different addresses are one.
    frames: Interner<FrameFields>,
    stacks: Vec<Stack<'a>>,
    /// The range of each target in `stacks`.
    targets: Vec<std::ops::Range<usize>>,
}

struct Stack<'a> {
    callsite: &'a CallsiteProfile,
    /// Indices of frames, the outermost first.
    frames: Vec<u32>,
}

impl<'a> Stacks<'a> {
    fn new(profile: &'a Profile, presentation: &Presentation) -> Self {
        let mut frames = Interner::default();
        let indices: Vec<u32> = profile.frames.iter().map(|frame| frames.intern(FrameFields::new(frame))).collect();
        let (mut stacks, mut targets) = (Vec::new(), Vec::new());
        for target in &profile.targets {
            let first = stacks.len();
            for callsite in &target.callsites {
                let synthetic = synthetic_frames(target, callsite, presentation).into_iter();
                let mut stack: Vec<u32> = synthetic.map(|name| frames.intern(FrameFields::synthetic(name))).collect();
                stack.extend(callsite.stack.iter().rev().filter_map(|id| indices.get(id.0 as usize)));
                stacks.push(Stack { callsite, frames: stack });
            }
            targets.push(first..stacks.len());
        }
        Self { frames, stacks, targets }
    }
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
    samples: Vec<&'a [u32]>,
    weights: Vec<u64>,
}

impl<'a> Sampled<'a> {
    fn new(name: String, view: View, stacks: &'a [Stack<'a>]) -> Self {
        let unit = if view.is_bytes() { "bytes" } else { "none" };
        let weighted = stacks.iter().map(|stack| (stack.frames.as_slice(), view.of_callsite(stack.callsite)));
        let (samples, weights): (Vec<_>, Vec<_>) = weighted.filter(|(_, weight)| *weight > 0).unzip();
        let end_value = weights.iter().fold(0, |sum: u64, weight| sum.saturating_add(*weight));
        Self { r#type: "sampled", name, unit, start_value: 0, end_value, samples, weights }
    }
}
