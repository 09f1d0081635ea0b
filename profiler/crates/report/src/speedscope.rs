//! The format of speedscope (its `file-format-schema.json`): profiles of all processes together, then of each.

use std::collections::BTreeMap;
use std::io;

use heapbpf_ledger::model::{CallsiteProfile, Frame, Profile};
use serde::Serialize;
use serde_json::{Value, json};

use super::describe::{self, Caption};
use super::plain_json::write_line;
use super::presentation::{Presentation, View};
use super::tables::{Intern, Interner, synthetic_frames};

pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let caption = Caption::new(profile, presentation.view);
    let mut frames = Interner::default();
    let stacks = stacks(profile, presentation, &mut frames);
    let header = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": concat!("heapbpf ", env!("CARGO_PKG_VERSION")),
        // The format has no other place for text about the recording.
        "name": format!("{}: {}, {}", caption.subject, caption.interval, caption.verdict),
        "activeProfileIndex": View::ALL.iter().position(|view| *view == presentation.view).unwrap_or(0),
    });
    let shared = BTreeMap::from([("frames", frames.iter().collect())]);
    write_line(&File { header, profiles: profiles(profile, &stacks), shared }, out)
}

/// A callsite with the indices of its frames, the outermost first.
type Stack<'a> = (Vec<u32>, &'a CallsiteProfile);

/// The stacks of each target, in the profile's order. Equal frames at different addresses are one.
fn stacks<'a>(
    profile: &'a Profile,
    presentation: &Presentation,
    frames: &mut Interner<FrameFields>,
) -> Vec<Vec<Stack<'a>>> {
    let indices: Vec<u32> = profile.frames.iter().map(|frame| frames.intern(FrameFields::new(frame))).collect();
    let mut stacks = Vec::new();
    for target in &profile.targets {
        let stack = |callsite: &'a CallsiteProfile| {
            let synthetic = synthetic_frames(target, callsite, presentation).into_iter();
            let synthetic = synthetic.map(|name| frames.intern(FrameFields { name, file: None, line: None }));
            let known = callsite.stack.iter().rev().filter_map(|id| indices.get(id.0 as usize).copied());
            (synthetic.chain(known).collect(), callsite)
        };
        stacks.push(target.callsites.iter().map(stack).collect());
    }
    stacks
}

/// The four of all processes, in the order of [`View::ALL`], then those of each process that are not empty.
fn profiles<'a>(profile: &'a Profile, stacks: &'a [Vec<Stack<'a>>]) -> Vec<Sampled<'a>> {
    let subject = describe::subject(profile);
    let all = View::ALL.into_iter().map(|view| {
        let title = describe::title(profile, view);
        let accuracy = describe::accuracy_of_shown(profile, view);
        let left_out = describe::folded(profile, view);
        let left_out = left_out.map_or(String::new(), |amount| format!("; {amount} of exited processes left out"));
        Sampled::new(format!("{title}, {subject}{accuracy}{left_out}"), view, stacks)
    });
    let several = profile.targets.len() > 1;
    let each = profile.targets.iter().zip(stacks).filter(|_| several).flat_map(|(target, stacks)| {
        let sampled = move |view| {
            let name = format!("{}, {}", describe::title(profile, view), describe::target(target));
            Sampled::new(name, view, std::slice::from_ref(stacks))
        };
        View::ALL.into_iter().map(sampled).filter(|sampled| sampled.end_value > 0)
    });
    all.chain(each).collect()
}

#[derive(Serialize)]
struct File<'a> {
    #[serde(flatten)]
    header: Value,
    profiles: Vec<Sampled<'a>>,
    shared: BTreeMap<&'static str, Vec<&'a FrameFields>>,
}

#[derive(PartialEq, Eq, Hash, Serialize)]
struct FrameFields {
    name: String,
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
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sampled<'a> {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<&'a [u32]>,
    weights: Vec<u64>,
}

impl<'a> Sampled<'a> {
    fn new(name: String, view: View, stacks: &'a [Vec<Stack<'a>>]) -> Self {
        let unit = if view.is_bytes() { "bytes" } else { "none" };
        let weighted = stacks.iter().flatten().map(|(frames, callsite)| (&**frames, view.of_callsite(callsite)));
        let (samples, weights): (Vec<_>, Vec<_>) = weighted.filter(|(_, weight)| *weight > 0).unzip();
        let end_value = weights.iter().fold(0, |sum: u64, weight| sum.saturating_add(*weight));
        Self { r#type: "sampled", name, unit, start_value: 0, end_value, samples, weights }
    }
}
