//! Interactive flame graphs in SVG, drawn by inferno from folded stacks. Colours are those of the HTML page: a hue for each
//! module. Allocators and runtimes are hatched.

use std::io;

use colour::Colour;
use header::{Header, Key};
use heapbpf_ledger::model::{Frame, Profile, base_name};
use image::{Image, Paint};
use nodes::{Position, lines, nodes};
use rustc_hash::FxHashMap;

use super::describe::Caption;
use super::folded::{Stacks, label};
use super::presentation::{Presentation, View};
use super::{describe, function, text};

pub(crate) mod colour;
pub(super) mod header;
pub(super) mod image;
pub(super) mod nodes;

const HOOKS_MAX: usize = 5;

/// Maximum number of modules in the legend.
const KEYS_MAX: usize = 8;

pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let Presentation { view, icicle, .. } = *presentation;
    let mut stacks = Stacks::merge(profile, presentation);
    let caption = Caption::new(profile, view);

    let mut parts = if profile.unreachable {
        let totals = describe::totals(profile);
        let [total, count] = [view, View::LiveCount].map(|view| view.amount(view.rounded(&totals)));
        vec![format!("{total} in {count}"), describe::checked_at(profile).unwrap_or_default()]
    } else {
        let recorded = format!("recorded for {}", text::duration(describe::duration_ns(profile)));
        vec![caption.total, caption.interval, recorded]
    };
    parts.push(caption.verdict.clone());
    if profile.window.is_some_and(|window| window.number.is_some()) {
        parts.push(format!("live {} in the window", describe::delta(profile)));
    }
    parts.extend(caption.left_out.map(|left_out| format!("not drawn: {left_out}")));

    let [started, ended] = [profile.started_unix_ns, profile.ended_unix_ns].map(text::moment);
    let version = env!("CARGO_PKG_VERSION");
    let interval_bytes = profile.interval_bytes;
    let mut notes =
        format!("heapbpf {version}; view {view}; from {started} to {ended}; interval {interval_bytes} bytes");
    for (heap, bytes) in describe::own_intervals(profile) {
        notes += &format!(", of {} {bytes}", text::printable(heap));
    }
    notes += &format!("; {}", caption.verdict);
    for target in &profile.targets {
        notes += &format!("; pid {}: {}", target.facts.pid, text::printable(&target.facts.command));
    }

    let header = Header::new(&format!("{} of {}", caption.title, caption.subject), parts, notes);
    let (lines, shift) = lines(&mut stacks, |&value| value);
    if lines.is_empty() {
        return header::draw_words(&header, &reasons(profile, view), out);
    }
    let (paints, legend) = paint(profile, &stacks, shift);
    Image { header: &header, legend: &legend, paints: &paints, view, icicle }.draw(&lines, shift, out)
}

/// Colours of the frames by position, and the legend: the modules with the widest frames.
fn paint(profile: &Profile, stacks: &Stacks, shift: u32) -> (FxHashMap<Position, Paint>, Vec<Key>) {
    // Functions of one name in several modules are one frame, of the first module's colour.
    let mut frames: FxHashMap<String, &Frame> = FxHashMap::default();
    for frame in &profile.frames {
        frames.entry(label(&frame.label())).or_insert(frame);
    }
    let mut paints = FxHashMap::default();
    let mut modules: FxHashMap<&str, u64> = FxHashMap::default();
    let (mut has_grey, mut has_plumbing) = (false, false);
    nodes(
        stacks,
        |&value| value >> shift,
        |node| {
            let frame = node.label.and_then(|label| frames.get(&stacks.labels[label as usize]));
            let module = frame.and_then(|frame| frame.module.as_deref()).map(base_name);
            if let Some(module) = module {
                let widest = modules.entry(module).or_default();
                *widest = node.width.max(*widest);
            }
            let is_hatched = frame.is_some_and(|frame| function::is_plumbing(frame));
            has_plumbing |= is_hatched;
            // Labels in brackets are not code.
            has_grey |= module.is_none() && frame.is_some_and(|frame| !frame.label().starts_with('['));
            let variant = frame.and_then(|frame| frame.function.as_deref()).unwrap_or_default();
            let colour = module.map_or(Colour::grey(), |module| Colour::of_module(module, variant));
            paints.insert(node.position, Paint { colour, is_hatched, words: None });
        },
    );
    let mut modules: Vec<(&str, u64)> = modules.into_iter().collect();
    modules.sort_unstable_by(|(one, width), (other, other_width)| other_width.cmp(width).then(one.cmp(other)));
    let keys = modules.iter().take(KEYS_MAX);
    let mut legend: Vec<Key> =
        keys.map(|(module, _)| Key::new(Colour::of_key(module), &text::printable(module))).collect();
    legend.extend(has_grey.then(|| Key::new(Colour::grey(), "no module")));
    legend.extend(has_plumbing.then(|| Key { is_hatched: true, ..Key::new(Colour::grey(), "allocator or runtime") }));
    if modules.len() > KEYS_MAX {
        let more = format!("and {}", text::counted((modules.len() - KEYS_MAX) as u64, "more module"));
        legend.push(Key { colour: None, ..Key::new(Colour::grey(), &more) });
    }
    (paints, legend)
}

fn reasons(profile: &Profile, view: View) -> Vec<String> {
    let mut unattached = describe::each_once(profile);
    unattached.retain(|(_, hook)| hook.error.is_some());
    unattached.sort_by_key(|(_, hook)| !hook.is_missing());
    let unattached = unattached.into_iter().take(HOOKS_MAX).map(|(_, hook)| describe::unattached(hook));
    describe::nothing(profile, view).into_iter().chain(unattached).collect()
}
