//! A difference as JSON, for programs: every callsite with all four quantities before and after. Its shape is a contract.

use std::io;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{Callsite, Change, Diff, Place, Program, Side, Stack};
use crate::report::json::stack::FrameFields;
use crate::report::json::totals::Number;
use crate::report::{ReportError, View};

/// Version of the shape. Raised when a reader of the one before could go wrong; a new field alone does not raise it.
pub(crate) const VERSION: u32 = 1;

pub(super) fn write(diff: &Diff<'_>, view: View, out: &mut dyn io::Write) -> Result<(), ReportError> {
    let root = Root {
        version: VERSION,
        kind: "diff",
        before: SideFields::new(diff.before),
        after: SideFields::new(diff.after),
        same_recording: super::is_same_recording(diff.before.profile, diff.after.profile),
        programs: diff.programs.iter().map(ProgramFields::new).collect(),
        totals: ChangeFields(diff.total(), diff.is_exact()),
        callsites: diff.by_growth(view).into_iter().map(|callsite| CallsiteFields::new(diff, callsite)).collect(),
    };
    serde_json::to_writer(&mut *out, &root).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    Ok(())
}

#[derive(Serialize)]
struct Root<'a> {
    version: u32,
    /// Tells it from the report of one profile.
    kind: &'static str,
    before: SideFields<'a>,
    after: SideFields<'a>,
    same_recording: bool,
    programs: Vec<ProgramFields<'a>>,
    totals: ChangeFields,
    callsites: Vec<CallsiteFields<'a>>,
}

#[derive(Serialize)]
struct SideFields<'a> {
    file: &'a str,
    interval_bytes: u64,
    started_unix_ns: u64,
    ended_unix_ns: u64,
    incomplete: bool,
    lost: Reasons<'a>,
}

impl<'a> SideFields<'a> {
    fn new(side: Side<'a>) -> Self {
        let Side { name, profile } = side;
        Self {
            file: name,
            interval_bytes: profile.interval_bytes,
            started_unix_ns: profile.started_unix_ns,
            ended_unix_ns: profile.ended_unix_ns,
            incomplete: profile.incomplete(),
            lost: Reasons(&profile.health.lost),
        }
    }
}

struct Reasons<'a>(&'a [(String, u64)]);

impl Serialize for Reasons<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(reason, count)| (reason, count)))
    }
}

#[derive(Serialize)]
struct ProgramFields<'a> {
    before: Option<&'a str>,
    after: Option<&'a str>,
    targets_before: usize,
    targets_after: usize,
}

impl<'a> ProgramFields<'a> {
    fn new(program: &'a Program) -> Self {
        let [before, after] = &program.names;
        let [targets_before, targets_after] = program.targets;
        Self { before: before.as_deref(), after: after.as_deref(), targets_before, targets_after }
    }
}

#[derive(Serialize)]
struct CallsiteFields<'a> {
    /// Index into the programs; null for ended processes of which sums alone are kept.
    program: Option<usize>,
    heap: Option<&'a str>,
    inherited: bool,
    end: Option<&'static str>,
    stack: Vec<FrameFields<'a>>,
    #[serde(flatten)]
    change: ChangeFields,
}

impl<'a> CallsiteFields<'a> {
    fn new(diff: &Diff<'_>, callsite: &'a Callsite<'_>) -> Self {
        let is_exact = callsite.change.is_exact() || diff.is_exact();
        let change = ChangeFields(callsite.change, is_exact);
        match &callsite.place {
            Place::Folded => Self { program: None, heap: None, inherited: false, end: None, stack: Vec::new(), change },
            Place::Stack(stack) => Self {
                program: Some(stack.program),
                heap: stack.heap,
                inherited: stack.inherited,
                end: stack.end.map(|end| end.counter().name()),
                stack: frames(stack),
                change,
            },
        }
    }
}

fn frames<'a>(stack: &Stack<'a>) -> Vec<FrameFields<'a>> {
    stack.frames().map(FrameFields::of_any_process).collect()
}

/// The four quantities, and whether they are exact.
struct ChangeFields(Change, bool);

#[derive(Serialize)]
struct QuantityFields {
    before: Number,
    after: Number,
    growth: Number,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_95: Option<[f64; 2]>,
}

impl Serialize for ChangeFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(View::ALL.len()))?;
        for view in View::ALL {
            map.serialize_entry(&view.name().replace('-', "_"), &quantity(view, &self.0, self.1))?;
        }
        map.end()
    }
}

fn quantity(view: View, change: &Change, is_exact: bool) -> QuantityFields {
    let (before, after) = (&change.before, &change.after);
    let bytes = |before, after| [before, after, after - before].map(|bytes| Number::of_bytes(bytes, is_exact));
    let count = |before, after| [before, after, after - before].map(|count| Number::of_count(count, is_exact));
    let [before, after, growth] = match view {
        View::LiveBytes => bytes(before.live_bytes(), after.live_bytes()),
        View::LiveCount => count(before.live_count(), after.live_count()),
        View::AllocBytes => bytes(before.alloc_bytes, after.alloc_bytes),
        View::AllocCount => count(before.alloc_count, after.alloc_count),
    };
    QuantityFields { before, after, growth, growth_95: (!is_exact).then(|| change.confidence(view)) }
}
