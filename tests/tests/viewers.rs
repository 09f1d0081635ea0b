//! Each format opened by its own readers: one recording, converted to all of them. Each format's tests are a module
//! here; `fixture` makes the recording.

mod fixture;
mod stacks;

// One per format, in alphabetical order, and one for programs with windows.
mod desktop;
mod dhat;
mod firefox;
mod flamegraph;
mod folded;
mod gperftools;
mod heaptrack;
mod html;
mod html_panels;
mod json_schema;
mod live;
mod massif;
mod memory_infra;
mod names;
mod otlp;
mod parquet;
mod perfetto;
mod pprof;
mod speedscope;
