//! JavaScript, as Node.js executes it with V8; and programs with Chromium's engine, whose heaps differ.

mod generated;

use profiler_common::interpreter::{CodeKind, INSTRUCTION_UNKNOWN, InterpretedFrame, Runtime};

use super::facts::{Executor, Facts, Functions, RECORD_MAPPINGS, Role};

pub(super) const FACTS: Facts = Facts {
    name: "JavaScript",
    files: &["node", "libnode.so"],
    heap_mark: None,
    heap: "Node.js keeps JavaScript objects in V8's heap",
    remedies: &[RECORD_MAPPINGS, "take V8's heap snapshots (`--heapsnapshot-signal`)"],
    perf_map: Some("start it with `--perf-basic-prof`"),
    generated_name: Some(generated::parse),
    frame_pointers: None,
    frame_type: "v8js",
    functions: Some(Functions {
        module: "[javascript]",
        kinds: [CodeKind::JavaScript, CodeKind::JavaScript],
        runtime: Runtime::V8,
        map: "JAVASCRIPT_ENGINES",
        role: Role::Machine,
        loop_frames: 0,
        executor,
    }),
};

pub(super) const OF_CHROMIUM: Facts = Facts {
    name: "JavaScript in Chromium",
    files: &["chrome", "chromium", "headless_shell", "electron", "libcef.so", "msedge", "brave"],
    heap: "Chromium uses PartitionAlloc, V8 and Oilpan",
    remedies: &["use the heap snapshots of its developer tools, or its memory-infra traces"],
    perf_map: Some("start it with `--no-sandbox --js-flags=--perf-basic-prof`"),
    // Those of the former.
    generated_name: None,
    functions: None,
    ..FACTS
};

/// Only the interpreter's frames have the offset of an instruction.
fn executor(frame: InterpretedFrame) -> Executor {
    if frame.instruction == INSTRUCTION_UNKNOWN { Executor::Processor } else { Executor::Interpreter }
}
