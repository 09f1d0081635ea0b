//! Each format opened by its own readers: one recording, converted to all of them. Each format's tests are a module
//! here; `fixture` makes the recording.

#[path = "viewers/fixture.rs"]
mod fixture;
#[path = "viewers/stacks.rs"]
mod stacks;

// One per format, in alphabetical order.
#[path = "viewers/dhat.rs"]
mod dhat;
#[path = "viewers/firefox.rs"]
mod firefox;
#[path = "viewers/flamegraph.rs"]
mod flamegraph;
#[path = "viewers/folded.rs"]
mod folded;
#[path = "viewers/gperftools.rs"]
mod gperftools;
#[path = "viewers/heaptrack.rs"]
mod heaptrack;
#[path = "viewers/html.rs"]
mod html;
#[path = "viewers/html_panels.rs"]
mod html_panels;
#[path = "viewers/json_schema.rs"]
mod json_schema;
#[path = "viewers/live.rs"]
mod live;
#[path = "viewers/massif.rs"]
mod massif;
#[path = "viewers/memory_infra.rs"]
mod memory_infra;
#[path = "viewers/names.rs"]
mod names;
#[path = "viewers/otlp.rs"]
mod otlp;
#[path = "viewers/parquet.rs"]
mod parquet;
#[path = "viewers/perfetto.rs"]
mod perfetto;
#[path = "viewers/pprof.rs"]
mod pprof;
#[path = "viewers/speedscope.rs"]
mod speedscope;
