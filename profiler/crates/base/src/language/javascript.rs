//! JavaScript, as Node.js executes it with V8; and programs whose heaps or engines differ: Chromium, Deno and Bun.

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

pub(super) const OF_DENO: Facts = Facts {
    name: "JavaScript in Deno",
    files: &["deno"],
    heap: "Deno keeps JavaScript objects in V8's heap",
    remedies: &[RECORD_MAPPINGS, "take heap snapshots with the developer tools (`--inspect`)"],
    perf_map: Some("start it with `deno run --v8-flags=--perf-basic-prof`"),
    // Those of Node.js.
    generated_name: None,
    functions: None,
    ..FACTS
};

pub(super) const OF_BUN: Facts = Facts {
    name: "JavaScript in Bun",
    files: &["bun"],
    heap: "Bun keeps JavaScript objects and native memory in allocators of its own, which have no symbols",
    remedies: &["use `bun --heap-prof`"],
    perf_map: Some("start it with `BUN_JSC_useJITDump=1 BUN_JSC_jitDumpDirectory=/tmp`"),
    generated_name: None,
    functions: None,
    frame_type: "jsc",
    ..FACTS
};

/// Only the interpreter's frames have the offset of an instruction.
fn executor(frame: InterpretedFrame) -> Executor {
    if frame.instruction == INSTRUCTION_UNKNOWN { Executor::Processor } else { Executor::Interpreter }
}
