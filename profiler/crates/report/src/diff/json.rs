//! A difference as JSON, for programs: every callsite with all four quantities before and after. Its shape is a contract.

use std::io;

use heapbpf_ledger::model::Loss;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::comparison::{Callsite, Delta, Diff, Program, Side, is_same_recording};
use crate::json::schema::Frame;
use crate::json::values::{Amount, counts};
use crate::plain_json::write_line;
use crate::{ReportError, View};

/// Version of the shape. Raised by incompatible changes; a new field alone does not raise it.
pub(crate) const VERSION: u32 = 1;

pub(super) fn write(diff: &Diff<'_>, view: View, out: &mut dyn io::Write) -> Result<(), ReportError> {
    let root = Root {
        version: VERSION,
        kind: "diff",
        before: side(diff.before),
        after: side(diff.after),
        same_recording: is_same_recording(diff.before.profile, diff.after.profile),
        programs: diff.programs.iter().map(program).collect(),
        totals: ChangeFields(diff.total(), diff.is_exact()),
        callsites: diff.by_growth(view).into_iter().map(|callsite| self::callsite(diff, callsite)).collect(),
    };
    Ok(write_line(&root, out)?)
}

#[derive(Serialize)]
struct Root<'a> {
    version: u32,
    /// Distinguishes it from the report of one profile, which has no kind.
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
    #[serde(serialize_with = "counts::serialize")]
    lost: &'a [(Loss, u64)],
}

fn side(Side { name, profile }: Side<'_>) -> SideFields<'_> {
    SideFields {
        file: name,
        interval_bytes: profile.interval_bytes,
        started_unix_ns: profile.started_unix_ns,
        ended_unix_ns: profile.ended_unix_ns,
        incomplete: profile.incomplete(),
        lost: &profile.health.lost,
    }
}

#[derive(Serialize)]
struct ProgramFields<'a> {
    before: Option<&'a str>,
    after: Option<&'a str>,
    targets_before: usize,
    targets_after: usize,
}

fn program(program: &Program) -> ProgramFields<'_> {
    let [before, after] = &program.names;
    let [targets_before, targets_after] = program.targets;
    ProgramFields { before: before.as_deref(), after: after.as_deref(), targets_before, targets_after }
}

#[derive(Serialize)]
struct CallsiteFields<'a> {
    /// Index into the programs; null for exited processes of which only totals are kept.
    program: Option<usize>,
    heap: Option<&'a str>,
    inherited: bool,
    end: Option<&'static str>,
    stack: Vec<Frame<'a>>,
    #[serde(flatten)]
    change: ChangeFields,
}

fn callsite<'a>(diff: &Diff<'_>, callsite: &'a Callsite<'_>) -> CallsiteFields<'a> {
    let is_exact = callsite.delta.is_exact() || diff.is_exact();
    let stack = callsite.stack.as_ref();
    CallsiteFields {
        program: stack.map(|stack| stack.program),
        heap: stack.and_then(|stack| stack.heap),
        inherited: stack.is_some_and(|stack| stack.inherited),
        end: stack.and_then(|stack| stack.end).map(|end| end.counter().name()),
        stack: stack.into_iter().flat_map(|stack| stack.frames()).map(Frame::without_address).collect(),
        change: ChangeFields(callsite.delta, is_exact),
    }
}

struct ChangeFields(Delta, bool);

#[derive(Serialize)]
struct QuantityFields {
    before: Amount,
    after: Amount,
    growth: Amount,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_95: Option<[f64; 2]>,
}

impl Serialize for ChangeFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(View::ALL.len()))?;
        for view in View::ALL {
            map.serialize_entry(&view.field_name(), &quantity(view, &self.0, self.1))?;
        }
        map.end()
    }
}

fn quantity(view: View, change: &Delta, is_exact: bool) -> QuantityFields {
    let [before, after] = [&change.before, &change.after].map(|totals| view.amounts(totals));
    let [before, after, growth] = if view.is_bytes() {
        let bytes = [before.bytes, after.bytes, after.bytes - before.bytes];
        bytes.map(|bytes| Amount::of_bytes(bytes, is_exact))
    } else {
        let counts = [before.count, after.count, after.count - before.count];
        counts.map(|count| Amount::of_count(count, is_exact))
    };
    QuantityFields { before, after, growth, growth_95: (!is_exact).then(|| change.confidence(view)) }
}
