//! Languages of .NET.

use super::facts::Facts;

pub(super) const FACTS: Facts = Facts {
    name: ".NET",
    files: &["libcoreclr.so"],
    heap_mark: None,
    heap: ".NET keeps objects in its own heap",
    remedies: &["use `dotnet-gcdump`"],
    perf_map: Some("start it with `DOTNET_PerfMapEnabled=1`"),
    generated_name: None,
    frame_pointers: None,
    frame_type: "dotnet",
    functions: None,
};
