//! The page's tables, in columns: callsites and history as numbers with as few digits as possible, and names, complete
//! and unescaped. The page shortens names, and never parses them as markup.

use std::borrow::Cow;
use std::collections::BTreeMap;

use heapbpf_base::units::{EstimatedCount, MonotonicNanos};
use heapbpf_ledger::details::Histogram;
use heapbpf_ledger::model::{
    CallsiteProfile, Change, CurvePoint, Frame, FrameId, FrameKind, HeapUsage, Profile, SampleTrigger, SourcePiece,
    TargetProfile, base_name,
};
use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};

use crate::function;
use crate::tables::{ByColumn, Columns as Getters, Intern, Interner, gap_frames};

/// Integers beyond this are not exact as floats.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// A number rounded to a hundredth, which is far below the error of estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Number(pub(super) f64);

impl Serialize for Number {
    #[expect(clippy::cast_possible_truncation, reason = "whole and below `EXACT_MAX`")]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rounded = (self.0 * 100.0).round() / 100.0;
        match rounded {
            _ if !self.0.is_finite() => serializer.serialize_i64(0),
            _ if self.0.abs() >= EXACT_MAX => serializer.serialize_f64(self.0),
            whole if whole.fract() == 0.0 => serializer.serialize_i64(whole as i64),
            rounded => serializer.serialize_f64(rounded),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "the page shows fewer digits than 2^53 has")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}

/// A time of the ledger in milliseconds since the recording started; negative before that.
#[expect(clippy::cast_precision_loss, reason = "the page shows milliseconds")]
pub(super) fn millis(profile: &Profile, time: MonotonicNanos) -> Number {
    let since = i128::from(time.0) - i128::from(profile.started_monotonic_ns);
    Number((since as f64 / 1e6).round())
}

/// One number for each item of a list; empty where all are 0.
#[derive(Debug, Default)]
struct Column(Vec<Number>);

impl FromIterator<f64> for Column {
    fn from_iter<I: IntoIterator<Item = f64>>(numbers: I) -> Self {
        Self(numbers.into_iter().map(Number).collect())
    }
}

impl Serialize for Column {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_empty = self.0.iter().all(|number| number.0 == 0.0);
        if is_empty { &[] } else { self.0.as_slice() }.serialize(serializer)
    }
}

type Columns = BTreeMap<&'static str, Column>;
type Getter<T> = (&'static str, fn(&T) -> f64);

#[derive(Debug, Serialize)]
pub(super) struct CallsiteColumns {
    count: usize,
    #[serde(flatten)]
    columns: Columns,
    sizes: HistogramColumns,
    /// In microseconds.
    ages: HistogramColumns,
    lifetimes: HistogramColumns,
}

const CALLSITE: [Getter<CallsiteProfile>; 13] = [
    ("opening_bytes", |callsite| callsite.totals.opening_bytes.to_f64()),
    ("opening_count", |callsite| callsite.totals.opening_count.to_f64()),
    ("alloc_bytes", |callsite| callsite.totals.alloc_bytes.to_f64()),
    ("alloc_count", |callsite| callsite.totals.alloc_count.to_f64()),
    ("live_bytes", |callsite| callsite.totals.live_bytes().to_f64()),
    ("live_count", |callsite| callsite.totals.live_count().to_f64()),
    ("peak_bytes", |callsite| callsite.totals.peak_bytes.to_f64()),
    ("at_peak_bytes", |callsite| callsite.totals.at_peak.bytes.to_f64()),
    ("alloc_samples", |callsite| float(callsite.totals.alloc_samples)),
    ("live_samples", |callsite| float(callsite.totals.live_samples)),
    ("oldest", |callsite| age_millis(callsite.details.ages.oldest_ns)),
    ("median", |callsite| age_millis(callsite.details.ages.median_ns())),
    // 1 + number of temporary blocks; 0 where unknown.
    ("temporary", |callsite| callsite.details.temporary_count.map_or(0.0, |count| float(count) + 1.0)),
];

/// Live blocks above the minimum age, where one was requested.
const OLDER: [Getter<CallsiteProfile>; 2] = [
    ("older_bytes", |callsite| callsite.older.unwrap_or_else(|| callsite.totals.live()).bytes.to_f64()),
    ("older_count", |callsite| callsite.older.unwrap_or_else(|| callsite.totals.live()).count.to_f64()),
];

/// -1 where nothing is live.
fn age_millis(nanos: Option<u64>) -> f64 {
    nanos.map_or(-1.0, |nanos| (float(nanos) / 1e6).round())
}

impl CallsiteColumns {
    pub(super) fn new(
        target: &TargetProfile,
        names: &mut Names<'_>,
        stacks: &mut Stacks,
        gaps: &mut Vec<Vec<String>>,
    ) -> Self {
        let callsites = &target.callsites;
        let has_older = callsites.iter().any(|callsite| callsite.older.is_some());
        let older = OLDER.into_iter().filter(|_| has_older);
        let column = |(name, of): Getter<CallsiteProfile>| (name, callsites.iter().map(of).collect());
        let mut columns: Columns = CALLSITE.into_iter().chain(older).map(column).collect();
        let node = callsites.iter().map(|callsite| f64::from(stacks.node(&callsite.stack, names)));
        columns.insert("node", node.collect());
        columns.insert("gap", callsites.iter().map(|callsite| float(gap(callsite, gaps) as u64)).collect());
        // Past the end where the heap is unknown.
        let heaps = target.heaps.len();
        columns.insert("heap", callsites.iter().map(|callsite| float(callsite.heap.min(heaps) as u64)).collect());
        // 1 + index of the target's threads; 0 for none.
        let thread = |callsite: &CallsiteProfile| callsite.thread.filter(|&thread| thread < target.threads.len());
        let thread = callsites.iter().map(|callsite| thread(callsite).map_or(0.0, |thread| float(thread as u64 + 1)));
        columns.insert("thread", thread.collect());
        Self {
            count: callsites.len(),
            columns,
            sizes: HistogramColumns::new(callsites.iter().map(|callsite| &callsite.details.sizes)),
            ages: HistogramColumns::new(callsites.iter().map(|callsite| &callsite.details.ages.histogram)),
            lifetimes: HistogramColumns::new(callsites.iter().map(|callsite| &callsite.details.lifetimes)),
        }
    }
}

fn gap(callsite: &CallsiteProfile, gaps: &mut Vec<Vec<String>>) -> usize {
    let labels: Vec<String> = gap_frames(callsite).collect();
    gaps.iter().position(|known| *known == labels).unwrap_or_else(|| {
        gaps.push(labels);
        gaps.len() - 1
    })
}

/// All buckets, concatenated, and their `count` by callsite. A bucket is 0, or 1 + log2 of its smallest value.
#[derive(Debug, Serialize)]
struct HistogramColumns {
    count: Column,
    bucket: Vec<u32>,
    blocks: Vec<Number>,
}

impl HistogramColumns {
    fn new<'a>(histograms: impl Iterator<Item = &'a Histogram> + Clone) -> Self {
        let count = histograms.clone().map(|histogram| float(histogram.iter().count() as u64)).collect();
        let bucket =
            |(smallest, blocks): (u64, EstimatedCount)| (u64::BITS - smallest.leading_zeros(), Number(blocks.to_f64()));
        let (bucket, blocks) = histograms.flat_map(Histogram::iter).map(bucket).unzip();
        Self { count, bucket, blocks }
    }
}

const HELD: [Getter<HeapUsage>; 4] = [
    ("live_bytes", |held| held.live_bytes),
    ("live_count", |held| held.live_count),
    ("alloc_bytes", |held| held.alloc_bytes),
    ("alloc_count", |held| held.alloc_count),
];

fn held<'a>(held: impl Iterator<Item = &'a HeapUsage> + Clone) -> Columns {
    HELD.into_iter().map(|(name, of)| (name, held.clone().map(of).collect())).collect()
}

/// The history of a target's heap. Times are in milliseconds since the recording started.
#[derive(Debug, Serialize)]
pub(super) struct HistoryColumns {
    curve: Columns,
    /// An occasion is 0 for a periodic point, -1 for a mark, else the number of the window that ended.
    instants: Columns,
    /// Changes by callsite, then by time; `count` is their number for each callsite.
    changes: Columns,
}

impl HistoryColumns {
    pub(super) fn new<'a>(profile: &Profile, target: &'a TargetProfile) -> Self {
        let mut moments: Vec<&CurvePoint> = target.history.curve.iter().collect();
        moments.sort_by_key(|moment| moment.time);
        let mut curve = held(moments.iter().map(|moment| &moment.held));
        curve.insert("time", moments.iter().map(|moment| millis(profile, moment.time).0).collect());

        let instants = &target.history.instants;
        let occasion = |occasion: Option<SampleTrigger>| match occasion {
            None => 0.0,
            Some(SampleTrigger::Mark) => -1.0,
            Some(SampleTrigger::Dump(number)) => f64::from(number),
        };
        let known = |callsite: &'a CallsiteProfile| {
            let is_known = |change: &&Change| (change.instant as usize) < instants.len();
            callsite.history.iter().filter(is_known)
        };
        let all = target.callsites.iter().flat_map(known);
        let mut changes = held(all.clone().map(|change| &change.held));
        let count = target.callsites.iter().map(|callsite| float(known(callsite).count() as u64));
        changes.insert("count", count.collect());
        changes.insert("point", all.map(|change| f64::from(change.instant)).collect());
        Self {
            curve,
            instants: BTreeMap::from([
                ("time", instants.iter().map(|instant| millis(profile, instant.time).0).collect()),
                ("occasion", instants.iter().map(|instant| occasion(instant.trigger)).collect()),
            ]),
            changes,
        }
    }
}

/// Kinds of functions, for colours: see the page's `colour.js`.
const PROGRAM: u32 = 0;
const LIBRARY: u32 = 1;
const PLUMBING: u32 = 2;
const NAMELESS: u32 = 3;
const JITTED: u32 = 4;
const INTERPRETED: u32 = 5;

/// Limit of offsets that JavaScript numbers represent.
const OFFSET_MAX: u64 = 1 << 53;

/// A function; a module and offset or an address without a name.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct FunctionFields {
    /// A string.
    name: u32,
    /// A string: the name without parameters and template arguments.
    short: u32,
    /// 1 + index of the string; 0 for none.
    module: u32,
    kind: u32,
}

#[derive(PartialEq, Eq, Hash)]
pub(super) struct FrameFields {
    function: u32,
    /// 1 + index of the string; 0 for none.
    file: u32,
    /// 0 where unknown.
    line: u32,
    is_inlined: bool,
    /// Offset in the module's file where the source file is unknown.
    offset: Option<u64>,
}

pub(super) type Functions = ByColumn<FunctionFields, u32>;

const FUNCTIONS: Getters<FunctionFields, u32> = &[
    ("name", |function| function.name),
    ("short", |function| function.short),
    ("module", |function| function.module),
    ("kind", |function| function.kind),
];

pub(super) type Frames = ByColumn<FrameFields, i64>;

const FRAMES: Getters<FrameFields, i64> = &[
    ("function", |frame| frame.function.into()),
    ("file", |frame| frame.file.into()),
    ("line", |frame| frame.line.into()),
    ("inlined", |frame| frame.is_inlined.into()),
    // -1 for none.
    ("offset", |frame| frame.offset.and_then(|offset| i64::try_from(offset).ok()).unwrap_or(-1)),
];

pub(super) struct Names<'a> {
    profile: &'a Profile,
    strings: Interner<Cow<'a, str>>,
    functions: Interner<FunctionFields>,
    frames: Interner<FrameFields>,
    by_id: Vec<Option<u32>>,
    /// The targets' executables, whose functions are not a library's.
    programs: Vec<&'a str>,
}

impl<'a> Names<'a> {
    pub(super) fn new(profile: &'a Profile) -> Self {
        Self {
            profile,
            strings: Interner::default(),
            functions: Interner::default(),
            frames: Interner::default(),
            by_id: vec![None; profile.frames.len()],
            programs: profile.targets.iter().map(|target| target.facts.comm.as_str()).collect(),
        }
    }

    fn frame(&mut self, id: FrameId) -> Option<u32> {
        let at = id.0 as usize;
        if let Some(known) = *self.by_id.get(at)? {
            return Some(known);
        }
        let frame = self.profile.frames.get(at)?;
        let function = self.function(frame);
        let file = self.optional(frame.file.as_deref());
        let offset = frame.module_offset.filter(|&offset| file == 0 && offset < OFFSET_MAX);
        let line = frame.line.unwrap_or(0);
        let number = self.frames.intern(FrameFields { function, file, line, is_inlined: frame.inlined, offset });
        self.by_id[at] = Some(number);
        Some(number)
    }

    fn function(&mut self, frame: &'a Frame) -> u32 {
        let (name, short) = match frame.function.as_deref() {
            Some(name) => (Cow::Borrowed(name), Cow::Owned(function::short(name))),
            None => (Cow::Owned(frame.label()), Cow::Owned(frame.label())),
        };
        let name = self.strings.intern(name);
        let module = self.optional(frame.module.as_deref());
        let short = self.strings.intern(short);
        self.functions.intern(FunctionFields { name, short, module, kind: self.kind(frame) })
    }

    fn optional(&mut self, text: Option<&'a str>) -> u32 {
        text.map_or(0, |text| self.strings.intern(Cow::Borrowed(text)) + 1)
    }

    fn kind(&self, frame: &Frame) -> u32 {
        let module = frame.module.as_deref().unwrap_or("");
        let base = base_name(module);
        match frame.function {
            None => NAMELESS,
            Some(_) if frame.kind == FrameKind::Jitted => JITTED,
            Some(_) if frame.kind == FrameKind::Interpreted => INTERPRETED,
            Some(_) if function::is_plumbing(frame) => PLUMBING,
            // The kernel cuts a program's name to 15 bytes.
            Some(_) if self.programs.iter().any(|comm| !comm.is_empty() && base.starts_with(comm)) => PROGRAM,
            Some(_) if module.contains(".so") || module.starts_with('[') => LIBRARY,
            Some(_) => PROGRAM,
        }
    }

    pub(super) fn into_tables(self) -> (Vec<Cow<'a, str>>, Functions, Frames) {
        let functions = ByColumn { rows: self.functions.into_iter().collect(), columns: FUNCTIONS };
        let frames = ByColumn { rows: self.frames.into_iter().collect(), columns: FRAMES };
        (self.strings.into_iter().collect(), functions, frames)
    }
}

/// Pieces of source files.
#[derive(Debug, Default, Serialize)]
pub(super) struct SourceColumns<'a> {
    /// Strings.
    file: Vec<u32>,
    /// Number of the first line.
    line: Vec<u32>,
    /// Separated by line feeds.
    text: Vec<&'a str>,
}

impl<'a> SourceColumns<'a> {
    pub(super) fn new(pieces: &'a [SourcePiece], names: &mut Names<'a>) -> Self {
        let mut columns = Self::default();
        for piece in pieces {
            columns.file.push(names.strings.intern(Cow::Borrowed(&*piece.file)));
            columns.line.push(piece.line);
            columns.text.push(&piece.text);
        }
        columns
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

/// Stacks as a tree, from the outermost frame on. A node's parent is before it; node 0 is the empty stack.
#[derive(Debug, Default, Serialize)]
pub(super) struct Nodes {
    /// Distance of each node to its parent, from node 1 on.
    back: Vec<u32>,
    frame: Vec<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Stacks {
    pub(super) nodes: Nodes,
    children: FxHashMap<(u32, u32), u32>,
}

impl Stacks {
    /// The node of a stack, leaf first. Frames that the profile does not have are skipped.
    pub(super) fn node(&mut self, stack: &[FrameId], names: &mut Names<'_>) -> u32 {
        let mut parent = 0;
        for &id in stack.iter().rev() {
            let Some(frame) = names.frame(id) else { continue };
            parent = *self.children.entry((parent, frame)).or_insert_with(|| {
                self.nodes.frame.push(frame);
                let node = u32::try_from(self.nodes.frame.len()).unwrap_or(u32::MAX);
                self.nodes.back.push(node - parent);
                node
            });
        }
        parent
    }
}
