//! A check as JSON, for programs: `docs/leaks.schema.json` has its shape, which is a contract. Leaks are written one by one, never held as
//! JSON in memory.

use std::fmt::Write;
use std::io;

use serde::{Serialize, Serializer};

use super::{HeapKnowledge, Leak, Precision, Sum, Unreachable};
use crate::model::{CallsiteProfile, TargetProfile, TypeEvidence, TypeName};
use crate::report::ReportError;
use crate::report::json::health::HealthFields;
use crate::report::json::stack::StackFields;

/// Version of the shape. Raised when a reader of the one before could go wrong; a new field alone does not raise it.
const VERSION: u32 = 1;

/// Writes a check. `contents` says whether blocks' first bytes are in it, as far as they are known.
pub(crate) fn write_json(check: &Unreachable, contents: bool, out: &mut dyn io::Write) -> Result<(), ReportError> {
    serde_json::to_writer(&mut *out, &Root::new(check, contents)).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    Ok(())
}

#[derive(Serialize)]
struct Root<'a> {
    version: u32,
    /// Tells it from the report of a profile.
    kind: &'static str,
    pid: u32,
    command: &'a str,
    taken_unix_ns: u64,
    pause_ns: u64,
    method: &'static str,
    interval_bytes: u64,
    watched_ns: Option<u64>,
    at_exit: bool,
    known: SumFields,
    leaked: SumFields,
    direct: SumFields,
    indirect: SumFields,
    suppressed: SumFields,
    heaps: Vec<HeapFields<'a>>,
    caveats: &'a [String],
    leak_count: u64,
    leaks: Leaks<'a>,
    health: HealthFields<'a>,
}

impl<'a> Root<'a> {
    fn new(check: &'a Unreachable, contents: bool) -> Self {
        let target = check.target();
        Self {
            version: VERSION,
            kind: "leaks",
            pid: target.map_or(0, |target| target.pid.0),
            command: target.map_or("", |target| target.command.as_str()),
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
            leaks: Leaks { check, contents },
            health: HealthFields::new(&check.profile.health),
        }
    }
}

#[derive(Serialize)]
struct SumFields {
    count: u64,
    bytes: u64,
}

impl From<Sum> for SumFields {
    fn from(Sum { count, bytes }: Sum) -> Self {
        Self { count, bytes }
    }
}

#[derive(Serialize)]
struct HeapFields<'a> {
    name: &'a str,
    /// `watched`, `walked` or `partial`.
    precision: &'static str,
    known: SumFields,
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

struct Leaks<'a> {
    check: &'a Unreachable,
    contents: bool,
}

impl Serialize for Leaks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.check.leaks.iter().map(|leak| LeakFields::new(self.check, leak, self.contents)))
    }
}

#[derive(Serialize)]
struct LeakFields<'a> {
    /// In hexadecimal: 64 bits do not survive readers that hold numbers in floats.
    address: String,
    size_bytes: u64,
    heap: Option<&'a str>,
    stack: StackFields<'a>,
    watched: bool,
    #[serde(rename = "type")]
    type_name: Option<TypeFields<'a>>,
    age_ns: Option<u64>,
    /// In hexadecimal, two digits a byte.
    contents: Option<String>,
    cycle_count: u64,
    referenced: SumFields,
    similar: SumFields,
    similar_referenced: SumFields,
    total_bytes: u64,
}

impl<'a> LeakFields<'a> {
    fn new(check: &'a Unreachable, leak: &'a Leak, contents: bool) -> Self {
        let callsite = check.callsite(leak);
        let has_contents = contents && !leak.contents.is_empty();
        Self {
            address: format!("{:#x}", leak.address),
            size_bytes: leak.size_bytes,
            heap: callsite.and_then(|callsite| heap(check.target()?, callsite)),
            stack: StackFields { profile: &check.profile, stack: callsite.map_or(&[], |callsite| &callsite.stack) },
            watched: leak.watched,
            type_name: leak.type_name.as_ref().map(TypeFields::new),
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

fn heap<'a>(target: &'a TargetProfile, callsite: &CallsiteProfile) -> Option<&'a str> {
    target.heaps.get(callsite.heap).map(|heap| heap.name.as_str())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Strings take all that is written to them.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[derive(Serialize)]
struct TypeFields<'a> {
    name: &'a str,
    /// `vtable` or `stack`.
    evidence: &'static str,
}

impl<'a> TypeFields<'a> {
    fn new(known: &'a TypeName) -> Self {
        let evidence = match known.evidence {
            TypeEvidence::Vtable => "vtable",
            TypeEvidence::Stack => "stack",
        };
        Self { name: &known.name, evidence }
    }
}
