//! The JSON of a leak report. `docs/leaks.schema.json` is generated from its types: the doc comment of a type or a field is
//! its description there. Leaks are serialized one by one.

use std::io;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

use super::{BlockTotals, Leak, Unreachable};
use crate::model;
use crate::report::json::health::Health;
use crate::report::json::schema::Frame;
use crate::report::json::values::Hex;
use crate::report::json::{Each, write_line};
use crate::report::{ReportError, frames};

/// Version of the shape. Raised by incompatible changes; a new field alone does not raise it.
const VERSION: u32 = 1;

/// `contents`: include the blocks' first bytes, as far as they are known.
pub(crate) fn write_json(check: &Unreachable, contents: bool, out: &mut dyn io::Write) -> Result<(), ReportError> {
    let target = check.target();
    let report = ReportFields {
        version: VERSION,
        kind: "leaks",
        pid: target.map_or(0, |target| target.facts.pid.0),
        command: target.map_or("", |target| &target.facts.command),
        interval_bytes: check.profile.interval_bytes,
        check,
        indirect: check.indirect(),
        leaks: Each(|| check.leaks.iter().map(|leak| LeakFields::new(check, leak, contents))),
        health: &check.profile.health,
    };
    Ok(write_line(&report, out)?)
}

/// What `heapbpf leaks -o FILE.json` writes: one check of one process. Fields may be added. Times are in nanoseconds.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct ReportFields<'a, Leaks = Vec<LeakFields<'a>>> {
    /// Version of this shape. Raised by incompatible changes; a new field alone does not raise it.
    version: u32,
    /// `leaks`. Reports of profiles have no kind.
    kind: &'static str,
    /// Process id.
    pid: u32,
    /// `argv[0]`.
    command: &'a str,
    /// Mean bytes between recorded allocations; 1 where every allocation is recorded.
    interval_bytes: u64,
    #[serde(flatten)]
    check: &'a Unreachable,
    /// The leaked allocations that are not direct ones.
    indirect: BlockTotals,
    /// The largest leaks up to `--limit`, by falling `total_bytes`.
    #[cfg_attr(test, schemars(with = "Vec<LeakFields<'_>>"))]
    leaks: Leaks,
    /// Drops, and the cost of profiling.
    #[serde(serialize_with = "Health::serialize")]
    #[cfg_attr(test, schemars(with = "Health"))]
    health: &'a model::Health,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct LeakFields<'a> {
    /// Start address, in hexadecimal; of a cycle, that of the first allocation by address.
    address: Hex,
    /// Name of the heap.
    heap: Option<&'a str>,
    /// Frames, leaf first.
    stack: Vec<Frame<'a>>,
    #[serde(flatten)]
    leak: &'a Leak,
    /// The first bytes, 32 at most, two hexadecimal digits each; null where not requested or unknown.
    contents: Option<String>,
    /// Bytes of the allocation, of similar ones, and of everything reachable from these. Leaks are sorted by it.
    total_bytes: u64,
}

impl<'a> LeakFields<'a> {
    fn new(check: &'a Unreachable, leak: &'a Leak, contents: bool) -> Self {
        let callsite = check.callsite(leak);
        let heap = callsite.and_then(|callsite| check.target()?.heaps.get(callsite.heap));
        let has_contents = contents && !leak.contents.is_empty();
        Self {
            address: Hex(leak.address),
            heap: heap.map(|heap| heap.name.as_str()),
            stack: Frame::of_stack(&check.profile, callsite.map_or(&[], |callsite| &callsite.stack)),
            leak,
            contents: has_contents.then(|| frames::hex(&leak.contents)),
            total_bytes: leak.total_bytes(),
        }
    }
}
