//! Who may import whom in profiler/src, as data. A module stands below those that it may use; what its line does not name is
//! forbidden to it, itself and [`BASE`] excepted.

/// Small value types, free to all.
pub(super) const BASE: [&str; 3] = ["units", "ids", "address"];

/// In a line: every module of the lines above.
pub(super) const ALL_ABOVE: &str = "*";

/// Module, and what it may use: modules, or paths into one where the rest of it is forbidden.
pub(super) const LAYERS: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("ids", &[]),
    ("address", &[]),
    ("memory", &[]),
    ("sys", &[]),
    ("proc", &["sys"]),
    ("object", &["proc", "sys"]),
    ("target", &["proc", "object", "sys"]),
    ("allocator", &["object", "sys::input", "target"]),
    ("unwind", &["object", "proc"]),
    ("bpf", &["sys", "unwind"]),
    ("collect", &["memory", "object::fixture", "proc", "sys"]),
    ("keeper", &["bpf::load", "collect", "proc", "sys", "target::launch"]),
    ("probe", &["allocator", "object", "proc", "target", "sys", "bpf", "keeper"]),
    ("ingest", &[]),
    ("ledger", &["ingest"]),
    ("walk", &["collect", "memory", "object", "proc"]),
    ("leak", &["ledger", "memory"]),
    ("model", &["ledger"]),
    ("snapshot", &["leak", "ledger", "model", "object", "target"]),
    (
        "symbolize",
        &[
            "leak",
            "ledger",
            "object",
            "proc",
            "target",
            "model",
            "snapshot",
            "sys::channel",
            "sys::companion",
            "sys::confinement",
        ],
    ),
    ("report", &["leak::fold", "ledger", "model"]),
    (
        "check",
        &[
            "collect",
            "keeper",
            "leak",
            "ledger",
            "memory",
            "model",
            "object",
            "proc",
            "report",
            "snapshot",
            "symbolize",
            "sys::clock",
            "target",
            "walk",
        ],
    ),
    (
        "recording",
        &[
            "ingest",
            "leak",
            "ledger",
            "object",
            "proc",
            "sys::input",
            "sys::replacement",
            "target",
            "model",
            "snapshot",
            "symbolize",
        ],
    ),
    ("health", &["bpf::counters", "model", "sys"]),
    ("guardrail", &["ledger"]),
    ("trigger", &["object", "proc"]),
    ("session", &[ALL_ABOVE]),
    ("doctor", &[ALL_ABOVE]),
    ("fuzzing", &[ALL_ABOVE]),
    ("cli", &[ALL_ABOVE]),
    ("lib", &[ALL_ABOVE]),
    ("main", &[ALL_ABOVE]),
];
