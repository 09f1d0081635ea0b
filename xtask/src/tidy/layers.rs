//! Which module of profiler/src may use which, as a table in the order of the layers. Modules that a line does not list are
//! forbidden to it, except itself and [`BASE`].

/// Small value types, which every module may use.
pub(super) const BASE: [&str; 3] = ["units", "ids", "address"];

/// Stands for every module of the lines above.
pub(super) const ALL_ABOVE: &str = "*";

/// A module, and what it may use, separated by spaces: modules, or paths into a module whose other items are forbidden.
pub(super) const LAYERS: &[(&str, &str)] = &[
    ("units", ""),
    ("ids", ""),
    ("address", ""),
    ("memory", ""),
    ("linux", ""),
    ("object", "linux"),
    ("process", "linux object"),
    ("allocator", "object linux::input process"),
    ("unwind", "object linux::proc"),
    ("bpf", "linux unwind"),
    ("collect", "memory object::fixture linux"),
    ("keeper", "bpf::load collect linux process::launch"),
    ("probe", "allocator object linux process bpf keeper"),
    ("ingest", ""),
    ("ledger", "ingest"),
    ("walk", "collect memory object linux::proc"),
    ("leak", "ledger memory"),
    ("model", "ledger"),
    ("snapshot", "leak ledger model object process"),
    (
        "symbolize",
        "leak ledger object process model snapshot linux::proc linux::channel linux::companion \
         linux::confinement",
    ),
    ("report", "leak::fold ledger model"),
    (
        "check",
        "collect keeper leak ledger memory model object report snapshot symbolize linux::proc linux::clock \
         process walk",
    ),
    (
        "recording",
        "ingest leak ledger object linux::proc linux::input linux::replacement process model snapshot \
         symbolize",
    ),
    ("guardrail", "ledger"),
    ("session", "*"),
    ("doctor", "*"),
    ("fuzzing", "*"),
    ("cli", "*"),
    ("lib", "*"),
    ("main", "*"),
];
