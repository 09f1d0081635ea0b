//! Comma-separated values (RFC 4180): a table of callsites, and one of functions.

use std::cmp::Reverse;
use std::io;

use super::presentation::{Group, Presentation, View};
use super::tables::{self, gap_frames, group_frame, heap_name};
use super::usage::{own_frame, usage};
use super::{folded, text};
use crate::model::{CallsiteProfile, Profile, TargetProfile};

/// A row per callsite, the largest of the view first. Stacks are as in folded text, the outermost frame first.
pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let amounts = View::ALL.map(column);
    let columns = ["pid", "process", "thread", "heap"].into_iter().chain(amounts.iter().map(String::as_str));
    row(columns.chain(["age_ns_median", "function", "file", "line", "module", "stack"]), out)?;
    let mut callsites: Vec<_> = profile.callsites().collect();
    callsites.sort_by_key(|(_, callsite)| Reverse(presentation.view.of_callsite(callsite)));
    for (target, callsite) in callsites {
        row(cells(profile, target, callsite).iter().map(String::as_str), out)?;
    }
    Ok(())
}

fn cells(profile: &Profile, target: &TargetProfile, callsite: &CallsiteProfile) -> Vec<String> {
    let thread = callsite.thread.map(|_| group_frame(Group::Thread, target, callsite)).unwrap_or_default();
    let frame = own_frame(profile, callsite).and_then(|at| tables::frame(profile, callsite.stack[at]));
    let names = frame.map(|frame| (frame.label(), frame.file.as_deref().unwrap_or_default(), frame.line));
    let (function, file, line) = names.unwrap_or_default();
    let module = frame.and_then(|frame| frame.module.as_deref()).unwrap_or_default();
    let mut cells = vec![
        target.facts.pid.to_string(),
        target.facts.comm.clone(),
        thread,
        heap_name(target, callsite.heap).to_owned(),
    ];
    cells.extend(View::ALL.map(|view| view.of_callsite(callsite).to_string()));
    let age = callsite.details.ages.median_ns();
    cells.push(age.map(|age| age.to_string()).unwrap_or_default());
    cells.extend([function, file.to_owned(), line.map(|line| line.to_string()).unwrap_or_default(), module.to_owned()]);
    let own = callsite.stack.iter().rev().filter_map(|&id| tables::frame(profile, id)).map(|frame| frame.label());
    let stack: Vec<String> = gap_frames(callsite).chain(own).map(|name| folded::label(&name)).collect();
    cells.push(stack.join(";"));
    cells
}

/// A row per function, the largest of the view first.
pub(super) fn write_functions(
    profile: &Profile,
    presentation: &Presentation,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let amounts = ["self", "total"].map(|kind| View::ALL.map(|view| format!("{kind}_{}", column(view))));
    row(["function", "module"].into_iter().chain(amounts.iter().flatten().map(String::as_str)), out)?;
    for (key, usage) in usage(profile, presentation.view, true) {
        let amounts = [usage.own, usage.total].map(|views| views.map(|amount| amount.to_string()));
        let names = [key.function.as_str(), key.module.as_str()];
        row(names.into_iter().chain(amounts.iter().flatten().map(String::as_str)), out)?;
    }
    Ok(())
}

fn column(view: View) -> String {
    view.name().replace('-', "_")
}

pub(crate) fn row<'a>(cells: impl IntoIterator<Item = &'a str>, out: &mut dyn io::Write) -> io::Result<()> {
    let cells: Vec<String> = cells.into_iter().map(cell).collect();
    writeln!(out, "{}", cells.join(","))
}

/// Quotes a cell where the format requires it.
fn cell(text: &str) -> String {
    let text = text::printable(text);
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into_owned() }
}
