//! The JSON of a leak report. `docs/leaks.schema.json` is generated from its types: the doc comment of a type or a field is
//! its description there. Leaks are serialized one by one.

use std::io;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

use super::{BlockTotals, HeapKnowledge, Leak, Precision, Unreachable};
use crate::model::TypeEvidence;
use crate::report::ReportError;
use crate::report::json::health::Health;
use crate::report::json::schema::Frame;
use crate::report::json::values::{Hex, hexadecimal};
use crate::report::json::{Each, write_line};

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
        taken_unix_ns: check.taken_unix_ns,
        pause_ns: check.pause_ns,
        method: check.method,
        interval_bytes: check.profile.interval_bytes,
        watched_ns: check.watched_ns,
        at_exit: check.at_exit,
        known: check.known.into(),
        leaked: check.leaked.into(),
        direct: check.direct.into(),
        indirect: check.indirect().into(),
        suppressed: check.suppressed.into(),
        heaps: check.heaps.iter().map(HeapFields::new).collect(),
        caveats: &check.caveats,
        leak_count: check.leak_count,
        leaks: Each(|| check.leaks.iter().map(|leak| LeakFields::new(check, leak, contents))),
        health: Health::new(&check.profile.health),
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
    /// When the process was stopped, in nanoseconds since the Unix epoch.
    taken_unix_ns: u64,
    /// How long the process was stopped.
    pause_ns: u64,
    /// How its memory was captured: `read` while it was stopped, or in a copy made by a `fork`.
    method: &'static str,
    /// Mean bytes between recorded allocations; 1 where every allocation is recorded.
    interval_bytes: u64,
    /// How long allocations had been recorded; null where they were not.
    watched_ns: Option<u64>,
    /// The program was exiting, and was checked before its memory was released.
    at_exit: bool,
    /// All known allocations.
    known: SumFields,
    /// Unreachable allocations, without suppressed ones.
    leaked: SumFields,
    /// Leaked allocations that no other leaked allocation references, except those that it references itself.
    direct: SumFields,
    /// The other leaked allocations.
    indirect: SumFields,
    /// Allocations that suppressions match, and those reachable from these alone.
    suppressed: SumFields,
    /// How completely each heap is known.
    heaps: Vec<HeapFields<'a>>,
    /// Limitations of the result, as text.
    caveats: &'a [String],
    /// Number of leaks, including unlisted ones; similar leaks count once.
    leak_count: u64,
    /// The largest leaks up to `--limit`, by falling `total_bytes`.
    #[cfg_attr(test, schemars(with = "Vec<LeakFields<'_>>"))]
    leaks: Leaks,
    /// Drops, and the cost of profiling.
    health: Health<'a>,
}

/// A number of allocations, and their bytes.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct SumFields {
    /// Allocations.
    count: u64,
    /// Their bytes: as requested where the allocation was recorded, as rounded by the allocator where it was found in the
    /// allocator's metadata.
    bytes: u64,
}

impl From<BlockTotals> for SumFields {
    fn from(BlockTotals { count, bytes }: BlockTotals) -> Self {
        Self { count, bytes }
    }
}

/// How completely the allocations of a heap are known.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct HeapFields<'a> {
    /// Name of the heap.
    name: &'a str,
    /// `watched`: all allocations were recorded. `walked`: all were found in the allocator's metadata; recorded ones have a
    /// stack. `partial`: only recorded ones are known; the rest of the heap counts as reachable.
    precision: &'static str,
    /// Known allocations of the heap.
    known: SumFields,
    /// What could not be scanned, and why, as text.
    gaps: &'a [String],
}

impl<'a> HeapFields<'a> {
    fn new(heap: &'a HeapKnowledge) -> Self {
        let precision = match heap.precision {
            Precision::Watched => "watched",
            Precision::Walked => "walked",
            Precision::Partial => "partial",
        };
        Self { name: &heap.name, precision, known: heap.known.into(), gaps: &heap.gaps }
    }
}

/// An unreachable allocation, or several that reference each other in a cycle, with similar ones.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct LeakFields<'a> {
    /// Start address, in hexadecimal; of a cycle, that of the first allocation by address.
    address: Hex,
    /// Size of the allocation.
    size_bytes: u64,
    /// Name of the heap.
    heap: Option<&'a str>,
    /// Frames, leaf first.
    stack: Vec<Frame<'a>>,
    /// The allocation was recorded. Without that, it has no stack.
    watched: bool,
    /// Type of the object in the allocation; null where unknown.
    #[serde(rename = "type")]
    type_name: Option<TypeFields<'a>>,
    /// Age at the check, in nanoseconds; null where the allocation was not recorded.
    age_ns: Option<u64>,
    /// The first bytes, 32 at most, two hexadecimal digits each; null where not requested or unknown.
    contents: Option<String>,
    /// Number of allocations in the cycle; 1 without a cycle.
    cycle_count: u64,
    /// Everything reachable from the allocation, without itself. Allocations reachable from several leaks count for each.
    referenced: SumFields,
    /// Further leaks of the same callsite, or without a stack, of the same type.
    similar: SumFields,
    /// Everything reachable from the similar leaks.
    similar_referenced: SumFields,
    /// Bytes of the allocation, of similar ones, and of everything reachable from these. Leaks are sorted by it.
    total_bytes: u64,
}

/// Type of an object.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct TypeFields<'a> {
    /// Demangled name.
    name: &'a str,
    /// How the type was inferred.
    evidence: TypeEvidence,
}

impl<'a> LeakFields<'a> {
    fn new(check: &'a Unreachable, leak: &'a Leak, contents: bool) -> Self {
        let callsite = check.callsite(leak);
        let heap = callsite.and_then(|callsite| check.target()?.heaps.get(callsite.heap));
        let has_contents = contents && !leak.contents.is_empty();
        Self {
            address: Hex(leak.address),
            size_bytes: leak.size_bytes,
            heap: heap.map(|heap| heap.name.as_str()),
            stack: Frame::of_stack(&check.profile, callsite.map_or(&[], |callsite| &callsite.stack)),
            watched: leak.watched,
            type_name: leak.type_name.as_ref().map(|known| TypeFields { name: &known.name, evidence: known.evidence }),
            age_ns: leak.age_ns,
            contents: has_contents.then(|| hexadecimal(&leak.contents)),
            cycle_count: leak.cycle_count,
            referenced: leak.referenced.into(),
            similar: leak.similar.into(),
            similar_referenced: leak.similar_referenced.into(),
            total_bytes: leak.total_bytes(),
        }
    }
}
