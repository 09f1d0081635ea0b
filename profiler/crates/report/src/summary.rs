//! The summary printed after a run. The text is for people and not stable: programs read the JSON report.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::slice;

use heapbpf_base::ids::Pid;
use heapbpf_base::units::{Amounts, EstimatedBytes, EstimatedCount};
use heapbpf_ledger::details::Ages;
use heapbpf_ledger::model::{End, HeapProfile, LeakCandidate, Leaks, ObjectTypes, Origin, Profile, TargetProfile};
use heapbpf_ledger::totals::Totals;

use super::beginnings::beginnings;
use super::function::{self, chain};
use super::memory::{self, Unexplained};
use super::page::{Column, HEADING, PLAIN, Page, WARNING};
use super::presentation::{Group, View};
use super::tables::group_frame;
use super::usage::{TopBy, usage};
use super::{describe, text};

pub(super) mod health;

const TARGETS_MAX: usize = 10;

/// The table of the largest callsites, functions or modules.
#[derive(Clone, Copy, Debug)]
pub struct Top {
    pub rows: usize,
    pub by: TopBy,
}

impl From<usize> for Top {
    fn from(rows: usize) -> Self {
        Self { rows, by: TopBy::default() }
    }
}

/// `width` is the terminal's, in columns; without one, lines are not truncated. `colour` allows ANSI escapes.
pub fn summary(profile: &Profile, view: View, top: impl Into<Top>, width: Option<usize>, colour: bool) -> String {
    let top = top.into();
    let mut page = Page::new(width, colour);
    page.header(profile);
    let totals = describe::totals(profile);
    if View::AllocCount.rounded(&totals) > 0 || totals.opening_count > EstimatedCount::ZERO {
        match profile.targets.as_slice() {
            [target] if profile.others.folded_count == 0 => page.totals_of_one(profile, target),
            _ => page.totals_of_several(profile, view),
        }
        page.gap();
    }
    if !describe::has_stacks(profile, view) {
        describe::nothing(profile, view).iter().for_each(|line| page.line(PLAIN, line));
        page.gap();
    } else if top.rows > 0 {
        match top.by {
            TopBy::Callsite => page.callsites(profile, view, top.rows),
            TopBy::Function => page.usage(profile, view, top.rows, true),
            TopBy::Module => page.usage(profile, view, top.rows, false),
        }
        page.gap();
    }
    page.leaks(profile);
    page.objects(profile);
    page.health(profile, view);
    page.text
}

/// The summary's section about what is missing, and what the recording cost. Lines are not wrapped.
pub fn health_lines(profile: &Profile, view: View) -> Vec<String> {
    let mut page = Page::new(None, false);
    page.health(profile, view);
    page.text.lines().map(str::to_owned).collect()
}

impl Page {
    fn header(&mut self, profile: &Profile) {
        let subject = match profile.targets.as_slice() {
            [only] => describe::process(only),
            _ => describe::subject(profile),
        };
        let parts = [
            subject,
            format!("recorded for {}", text::duration(describe::duration_ns(profile))),
            describe::interval(profile),
        ];
        self.line(HEADING, &parts.join(" · "));
        if let [target] = profile.targets.as_slice() {
            let command = text::command(&target.facts.command);
            let line = format!("command: {command}{}", exit(target));
            self.line(PLAIN, &text::cut(&line, self.width.unwrap_or(usize::MAX)));
        }
        if profile.window.is_some() {
            self.line(PLAIN, &format!("part of the recording: {}", describe::outcome(profile)));
        }
        beginnings(profile).iter().for_each(|line| self.line(PLAIN, line));
        self.gap();
        self.unexplained(profile);
    }

    /// Precedes the numbers: they do not contain most of what the process needs.
    fn unexplained(&mut self, profile: &Profile) {
        let all = memory::unexplained(profile);
        for Unexplained { statement, details } in &all {
            self.wrapped(WARNING, "", statement);
            details.iter().for_each(|line| self.wrapped(PLAIN, "  ", line));
        }
        if !all.is_empty() {
            self.gap();
        }
    }

    fn totals_of_one(&mut self, profile: &Profile, target: &TargetProfile) {
        let about = describe::about(profile.is_exact_of(target));
        let totals = &target.totals;
        let row = |name: &str, bytes: EstimatedBytes, last: String| {
            vec![name.to_owned(), format!("{about}{}", text::size(bytes.rounded())), last]
        };
        let blocks = |count: EstimatedCount| format!("{about}{}", text::counted(count.rounded(), "block"));
        let after = totals.peak_time.map(|time| {
            let nanos = profile.unix_ns(time).saturating_sub(profile.started_unix_ns);
            format!("after {}", text::duration(nanos))
        });
        let mut rows = vec![
            row("allocated", totals.alloc_bytes, blocks(totals.alloc_count)),
            row("freed", totals.free_bytes, blocks(totals.free_count)),
            row("live", totals.live_bytes(), blocks(totals.live_count())),
            row("peak", totals.peak_bytes, after.unwrap_or_default()),
        ];
        if !target.heaps.is_empty() && target.heaps.iter().all(HeapProfile::has_allocations_only) {
            rows.truncate(1);
            rows.push(vec!["live".to_owned(), "unknown".to_owned(), String::new()]);
        }
        if totals.opening_count > EstimatedCount::ZERO {
            let name = match target.memory.inventory() {
                _ if profile.window.is_some() => "at the start",
                None if matches!(target.facts.beginning.origin, Origin::Forked(_)) => "inherited",
                _ => "from before",
            };
            rows.insert(0, row(name, totals.opening_bytes, blocks(totals.opening_count)));
        }
        self.table(&[Column::Left(""), Column::Right(""), Column::Right("")], rows);
        if let Some(line) = memory::resident(target) {
            self.wrapped(PLAIN, "  ", &line);
        }
        if let Some(line) = memory::of_go(target) {
            self.wrapped(PLAIN, "  ", line);
        }
        if let Some(line) = memory::undecided(slice::from_ref(target)) {
            self.wrapped(PLAIN, "  ", &line);
        }
    }

    fn totals_of_several(&mut self, profile: &Profile, view: View) {
        let row = |name: String, totals: &Totals, peak: Option<EstimatedBytes>, is_exact: bool| {
            let sizes = [Some(totals.alloc_bytes), Some(totals.free_bytes), Some(totals.live_bytes()), peak];
            let size = |bytes: EstimatedBytes| format!("{}{}", describe::about(is_exact), text::size(bytes.rounded()));
            sizes.map(|bytes| bytes.map(size).unwrap_or_default()).into_iter().chain([name]).collect::<Vec<_>>()
        };
        let mut targets: Vec<&TargetProfile> = profile.targets.iter().collect();
        targets.sort_by_key(|target| (Reverse(view.rounded(&target.totals)), target.facts.pid));
        let listed = targets.iter().take(TARGETS_MAX).map(|target| {
            let name = describe::target(target) + &exit(target);
            row(name, &target.totals, Some(target.totals.peak_bytes), profile.is_exact_of(target))
        });
        let mut rows: Vec<_> = listed.collect();
        if targets.len() > TARGETS_MAX {
            let more = format!("and {} more", text::count((targets.len() - TARGETS_MAX) as u64));
            rows.push(["".into(), "".into(), "".into(), "".into(), more].into());
        }
        // Peaks are at different times, so there is no sum.
        if profile.others.folded_count > 0 {
            let name = describe::folded_processes(profile);
            rows.push(row(name, &profile.others.folded_totals, None, profile.is_exact_of_folded()));
        }
        rows.push(row("all together".to_owned(), &describe::totals(profile), None, profile.is_exact()));
        let numbers = ["allocated", "freed", "live", "peak"].map(Column::Right);
        self.table(&[numbers.as_slice(), &[Column::Left("process")]].concat(), rows);
        if let Some(line) = memory::undecided(&profile.targets) {
            self.wrapped(PLAIN, "  ", &line);
        }
    }
}

/// Growth and stack of a profile's first callsite.
pub fn grower(profile: &Profile) -> String {
    let first = profile.callsites().next();
    first.map_or_else(String::new, |(_, callsite)| {
        let growth = text::size(callsite.totals.delta_bytes().rounded());
        format!("+{growth} {}", chain(profile, &callsite.stack, callsite.end, callsite.inherited))
    })
}

fn exit(target: &TargetProfile) -> String {
    match target.facts.end {
        None => String::new(),
        Some(End::Detached(_)) => ", detached".to_owned(),
        Some(End::Replaced) => ", replaced by exec".to_owned(),
        Some(End::Exited { code: None }) => ", exited".to_owned(),
        Some(End::Exited { code: Some(code) }) => format!(", exited with {code}"),
    }
}

/// Identity of a row. Callsites that are identical on one line are one row.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Location<'a> {
    pid: Pid,
    heap: &'a str,
    thread: String,
    chain: String,
}

#[derive(Default)]
struct Sums {
    view: u64,
    live: Amounts,
    allocated: Amounts,
    ages: Ages,
}

impl Page {
    fn callsites(&mut self, profile: &Profile, view: View, top: usize) {
        let locations = locations(profile, view);
        let which = match locations.len() {
            all if all > top => format!("largest {top} of {} callsites", text::count(all as u64)),
            all => text::counted(all as u64, "callsite"),
        };
        let estimated = if profile.is_exact() { "" } else { " (estimates)" };
        self.line(HEADING, &format!("{which} by {}{estimated}", describe::title(profile, view)));

        let several_targets = profile.targets.len() > 1;
        let several_heaps = profile.targets.iter().any(|target| target.heaps.len() > 1);
        let live = view.is_live();
        let quantities = if live { ["live", "blocks", "allocated"] } else { ["allocated", "blocks", "live"] };
        let mut columns: Vec<Column> = quantities.into_iter().chain(["share"]).map(Column::Right).collect();
        // Allocated blocks that may be freed have no age.
        let aged = live && locations.iter().any(|(_, sums)| sums.ages.median_ns().is_some());
        columns.extend(aged.then_some(Column::Right("median age")));
        columns.extend(several_targets.then_some(Column::Right("pid")));
        columns.extend(several_heaps.then_some(Column::Left("heap")));
        let by_thread = locations.iter().any(|(location, _)| !location.thread.is_empty());
        columns.extend(by_thread.then_some(Column::Left("thread")));
        columns.push(Column::Left("where"));

        let whole = view.rounded(&describe::totals(profile));
        let rows = locations.into_iter().take(top).map(|(location, sums)| {
            let [first, last] = if live { [sums.live, sums.allocated] } else { [sums.allocated, sums.live] };
            let [size, last] = [first.bytes, last.bytes].map(|bytes| text::size(bytes.rounded()));
            let mut cells = vec![size, text::count(first.count.rounded()), last, share(sums.view, whole)];
            cells.extend(aged.then(|| sums.ages.median_ns().map_or(String::new(), text::duration)));
            cells.extend(several_targets.then(|| location.pid.to_string()));
            cells.extend(several_heaps.then(|| text::printable(location.heap).into_owned()));
            cells.extend(by_thread.then(|| text::printable(&location.thread).into_owned()));
            cells.push(location.chain);
            cells
        });
        let rows = rows.collect();
        self.table(&columns, rows);
        if describe::folded(profile, view).is_some() {
            let share = share(view.rounded(&profile.others.folded_totals), whole);
            let processes = describe::folded_processes(profile);
            self.line(PLAIN, &format!("  {share} belongs to {processes}, of which only totals are kept"));
        }
    }
}

impl Page {
    /// What functions or modules allocated themselves, and with their callees.
    fn usage(&mut self, profile: &Profile, view: View, top: usize, by_function: bool) {
        let noun = if by_function { "function" } else { "module" };
        let index = View::ALL.iter().position(|other| *other == view).unwrap_or_default();
        let rows = usage(profile, view, by_function);
        let which = match rows.len() {
            all if all > top => format!("largest {top} of {} {noun}s", text::count(all as u64)),
            all => text::counted(all as u64, noun),
        };
        let estimated = if profile.is_exact() { "" } else { " (estimates)" };
        let title = describe::title(profile, view);
        self.line(HEADING, &format!("{which} by {title}{estimated}; total includes callees"));
        let whole = view.rounded(&describe::totals(profile));
        let cells = rows.into_iter().take(top).map(|(key, usage)| {
            let amounts = [usage.own, usage.total].map(|views| views[index]);
            let mut cells: Vec<String> =
                amounts.iter().flat_map(|&amount| [view.amount(amount), share(amount, whole)]).collect();
            if by_function {
                cells.push(text::cut(&text::printable(&key.module), MODULE_CHARS_MAX).into_owned());
                cells.push(function::short(&text::printable(&key.function)));
            } else {
                cells.push(text::printable(&key.module).into_owned());
            }
            cells
        });
        let cells = cells.collect();
        let mut columns: Vec<Column> = ["self", "share", "total", "share"].map(Column::Right).into();
        columns.push(Column::Left("module"));
        columns.extend(by_function.then_some(Column::Left("function")));
        self.table(&columns, cells);
    }
}

const MODULE_CHARS_MAX: usize = 24;

fn locations(profile: &Profile, view: View) -> Vec<(Location<'_>, Sums)> {
    let mut locations: BTreeMap<Location<'_>, Sums> = BTreeMap::new();
    for (target, callsite) in profile.callsites() {
        let value = view.of_callsite(callsite);
        if value > 0 {
            let heap = target.heaps.get(callsite.heap).map_or("", |heap| heap.name.as_str());
            let chain = chain(profile, &callsite.stack, callsite.end, callsite.inherited);
            let thread = callsite.thread.map(|_| group_frame(Group::Thread, target, callsite)).unwrap_or_default();
            let sums = locations.entry(Location { pid: target.facts.pid, heap, thread, chain }).or_default();
            sums.view = sums.view.saturating_add(value);
            sums.live += callsite.older.unwrap_or_else(|| callsite.totals.live());
            sums.allocated += callsite.totals.allocated();
            sums.ages.add(&callsite.details.ages);
        }
    }
    let mut locations: Vec<_> = locations.into_iter().collect();
    locations.sort_by_key(|(_, sums)| Reverse(sums.view));
    locations
}

#[expect(clippy::cast_precision_loss, reason = "for a percentage")]
fn share(part: u64, whole: u64) -> String {
    text::share(part as f64, whole as f64)
}

const GROWING_MAX: usize = 5;

impl Page {
    fn leaks(&mut self, profile: &Profile) {
        let all: Vec<(&TargetProfile, &Leaks)> =
            profile.targets.iter().filter_map(|target| Some((target, target.leaks.as_ref()?))).collect();
        let analysed: Vec<_> = all.iter().filter(|(_, leaks)| !leaks.too_short).collect();
        if all.is_empty() {
            return;
        }
        if analysed.is_empty() {
            let span = all.iter().map(|(_, leaks)| leaks.span_ns).max().unwrap_or(0);
            let line =
                format!("growing callsites: {} is too short to detect growth (minimum: 8s)", text::duration(span));
            self.line(PLAIN, &line);
            return self.gap();
        }
        let mut rows: Vec<(&TargetProfile, &LeakCandidate)> = analysed
            .iter()
            .flat_map(|(target, leaks)| leaks.candidates.iter().map(move |candidate| (*target, candidate)))
            .collect();
        rows.sort_by(|(_, a), (_, b)| b.score.total_cmp(&a.score));
        let suppressed_count: u64 =
            analysed.iter().map(|(_, leaks)| leaks.suppressed_count).fold(0, u64::saturating_add);
        let bytes = analysed.iter().map(|(_, leaks)| leaks.suppressed_bytes).sum::<EstimatedBytes>();
        let suppressed = match suppressed_count {
            0 => String::new(),
            count => format!(" ({} suppressed, {})", text::count(count), text::size(bytes.rounded())),
        };
        if rows.is_empty() {
            self.line(PLAIN, &format!("growing callsites: none{suppressed}"));
            return self.gap();
        }
        // If there are many growing callsites, only the worst are candidates.
        let grow: u64 = analysed.iter().map(|(_, leaks)| leaks.count as u64).fold(0, u64::saturating_add);
        let count = grow.saturating_sub(suppressed_count).max(rows.len() as u64);
        let shown = rows.len().min(GROWING_MAX);
        let which =
            if count > shown as u64 { format!("first {shown} of {} ", text::count(count)) } else { String::new() };
        self.line(HEADING, &format!("{which}growing callsites, suspected of leaking{suppressed}"));
        let several = profile.targets.len() > 1;
        let mut columns: Vec<Column> = ["grows/s", "±", "live", "oldest", "old", "survive"].map(Column::Right).into();
        columns.extend(several.then_some(Column::Right("pid")));
        columns.push(Column::Left("where"));
        let rows = rows.into_iter().take(GROWING_MAX).filter_map(|(target, candidate)| {
            let callsite = target.callsites.get(candidate.callsite)?;
            let mut cells = vec![
                size(candidate.bytes_per_second),
                size(candidate.margin),
                text::size(callsite.totals.live_bytes().rounded()),
                callsite.details.ages.oldest_ns.map_or_else(|| "-".to_owned(), text::duration),
                text::share(candidate.old_share, 1.0),
                candidate.survival.map_or_else(|| "-".to_owned(), |survival| text::share(survival, 1.0)),
            ];
            cells.extend(several.then(|| target.facts.pid.to_string()));
            cells.push(chain(profile, &callsite.stack, callsite.end, false));
            Some(cells)
        });
        let rows = rows.collect();
        self.table(&columns, rows);
        self.gap();
    }
}

const TYPES_MAX: usize = 8;

impl Page {
    /// Objects of the runtimes of the processes that have most of them.
    fn objects(&mut self, profile: &Profile) {
        let mut counted: Vec<(&TargetProfile, &ObjectTypes)> = profile
            .targets
            .iter()
            .flat_map(|target| target.memory.objects().iter().map(move |counted| (target, counted)))
            .collect();
        counted.sort_by_key(|(_, counted)| Reverse(counted.typed_bytes()));
        let several = profile.targets.len() > 1;
        for (target, counted) in counted.into_iter().take(if several { TYPED_TARGETS_MAX } else { usize::MAX }) {
            let whose = if several { format!(" of {}", describe::target(target)) } else { String::new() };
            self.types(counted, TYPES_MAX, &whose);
        }
    }
}

/// Of several processes, those with most objects have a table.
const TYPED_TARGETS_MAX: usize = 2;

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and it is not negative")]
fn size(bytes: f64) -> String {
    text::size(bytes.round() as u64)
}
