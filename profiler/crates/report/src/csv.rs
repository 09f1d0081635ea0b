//! Comma-separated values (RFC 4180): a table of callsites, and one of functions.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::io;

use heapbpf_ledger::model::{CallsiteProfile, Profile, TargetProfile};

use super::presentation::{Group, Presentation, View};
use super::tables::{self, OrderedMap, end_frame, gap_frames, group_frame, heap_name};
use super::usage::{Views, own_frame, usage};
use super::{describe, folded, text};

/// A cell of a table.
pub enum Cell<'a> {
    /// heapbpf's own: a heading, or a number.
    Own(Cow<'a, str>),
    /// What targets and files have named.
    Name(Cow<'a, str>),
}

impl<'a> Cell<'a> {
    pub fn own(text: &'a str) -> Self {
        Self::Own(text.into())
    }

    pub fn number(number: impl ToString) -> Self {
        Self::Own(number.to_string().into())
    }

    pub fn name(text: impl Into<Cow<'a, str>>) -> Self {
        Self::Name(text.into())
    }

    /// Quoted where the format requires it. Spreadsheets evaluate text that starts like a formula: unless names are wanted raw, these
    /// have an apostrophe before them, as in <https://owasp.org/www-community/attacks/CSV_Injection>.
    fn written(&self, raw: bool) -> String {
        let (text, is_name) = match self {
            Self::Own(text) => (text, false),
            Self::Name(text) => (text, true),
        };
        let text = text::printable(text);
        // Programs may ignore what stands for a character that is not shown.
        let begins = text.trim_start_matches([char::REPLACEMENT_CHARACTER, ' ']);
        let mark = if is_name && !raw && begins.starts_with(FORMULA) { "'" } else { "" };
        if text.contains([',', '"']) {
            format!("\"{mark}{}\"", text.replace('"', "\"\""))
        } else {
            format!("{mark}{text}")
        }
    }
}

/// First characters of formulas, also in the width that East Asian keyboards type. Tabs and line ends have been trimmed.
const FORMULA: [char; 8] = ['=', '+', '-', '@', '＝', '＋', '－', '＠'];

/// A row per callsite, the largest of the view first. Stacks are as in folded text, the outermost frame first.
pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let amounts = View::ALL.map(column);
    let columns = ["pid", "process", "thread", "heap"].into_iter().chain(amounts.iter().map(String::as_str));
    let columns = columns.chain(["age_ns_median", "function", "file", "line", "module", "stack"]);
    row(columns.map(Cell::own), presentation.csv_raw, out)?;
    let mut callsites: Vec<_> = profile.callsites().collect();
    callsites.sort_by_key(|(_, callsite)| Reverse(presentation.view.of_callsite(callsite)));
    for (target, callsite) in callsites {
        row(cells(profile, target, callsite), presentation.csv_raw, out)?;
    }
    if let Some(amounts) = folded_amounts(profile) {
        let names = [Cell::number(0), Cell::own(EXITED), Cell::own(""), Cell::own("")];
        let rest = ["", "", "", "", "", describe::FOLDED].map(Cell::own);
        row(names.into_iter().chain(amounts.map(Cell::number)).chain(rest), presentation.csv_raw, out)?;
    }
    Ok(())
}

/// In the column of processes; no process has their pid, 0.
const EXITED: &str = "[exited]";

/// Amounts of processes of which only totals are kept, so that sums of columns are the totals.
fn folded_amounts(profile: &Profile) -> Option<Views> {
    Some(View::ALL.map(|view| view.of_folded(profile))).filter(|amounts| amounts.iter().any(|&amount| amount > 0))
}

fn cells<'a>(profile: &'a Profile, target: &'a TargetProfile, callsite: &'a CallsiteProfile) -> Vec<Cell<'a>> {
    let thread = callsite.thread.map(|_| group_frame(Group::Thread, target, callsite)).unwrap_or_default();
    let frame = own_frame(profile, callsite).and_then(|at| tables::frame(profile, callsite.stack[at]));
    let names = frame.map(|frame| (frame.label(), frame.file.as_deref().unwrap_or_default(), frame.line));
    let (function, file, line) = names.unwrap_or_default();
    let module = frame.and_then(|frame| frame.module.as_deref()).unwrap_or_default();
    let mut cells = vec![
        Cell::number(target.facts.pid),
        Cell::name(&target.facts.comm),
        Cell::name(thread),
        Cell::name(heap_name(target, callsite.heap)),
    ];
    cells.extend(View::ALL.map(|view| Cell::number(view.of_callsite(callsite))));
    let optional = |number: Option<u64>| number.map_or(Cell::own(""), Cell::number);
    cells.extend([optional(callsite.details.ages.median_ns()), Cell::name(function), Cell::name(file)]);
    cells.extend([optional(line.map(u64::from)), Cell::name(module)]);
    let own = callsite.stack.iter().rev().filter_map(|&id| tables::frame(profile, id)).map(|frame| frame.label());
    let stack: Vec<String> = gap_frames(callsite).chain(own).map(|name| folded::label(&name)).collect();
    cells.push(Cell::name(stack.join(";")));
    cells
}

/// A row per function, the largest of the view first.
pub(super) fn write_functions(
    profile: &Profile,
    presentation: &Presentation,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let amounts = ["self", "total"].map(|kind| View::ALL.map(|view| format!("{kind}_{}", column(view))));
    let columns = ["function", "module"].into_iter().chain(amounts.iter().flatten().map(String::as_str));
    row(columns.map(Cell::own), presentation.csv_raw, out)?;
    for (key, usage) in usage(profile, presentation.view, true) {
        let amounts = [usage.own, usage.total].into_iter().flatten().map(Cell::number);
        let names = [&key.function, &key.module].map(Cell::name);
        row(names.into_iter().chain(amounts), presentation.csv_raw, out)?;
    }
    // Not functions, so that sums of `self_…` are the totals.
    let without_frames =
        stackless(profile).into_iter().chain(folded_amounts(profile).map(|it| (describe::FOLDED.to_owned(), it)));
    for (name, amounts) in without_frames {
        let amounts = [amounts; 2].into_iter().flatten().map(Cell::number);
        let names = [Cell::name(name), Cell::own("")];
        row(names.into_iter().chain(amounts), presentation.csv_raw, out)?;
    }
    Ok(())
}

/// Amounts of callsites without frames, by the frame that stands for these.
fn stackless(profile: &Profile) -> OrderedMap<String, Views> {
    let mut sums = OrderedMap::<String, Views>::default();
    for (_, callsite) in profile.callsites().filter(|(_, callsite)| callsite.stack.is_empty()) {
        let name = end_frame(callsite.end, &callsite.stack).unwrap_or_default();
        let sum = sums.entry(name).or_default();
        *sum = std::array::from_fn(|at| sum[at].saturating_add(View::ALL[at].of_callsite(callsite)));
    }
    sums
}

fn column(view: View) -> String {
    view.name().replace('-', "_")
}

/// Writes a row. `raw` leaves names as they are, for programs.
pub fn row<'a>(cells: impl IntoIterator<Item = Cell<'a>>, raw: bool, out: &mut dyn io::Write) -> io::Result<()> {
    let cells: Vec<String> = cells.into_iter().map(|cell| cell.written(raw)).collect();
    writeln!(out, "{}", cells.join(","))
}
