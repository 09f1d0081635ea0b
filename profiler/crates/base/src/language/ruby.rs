//! Ruby, as CRuby executes it.

use profiler_common::interpreter::{CodeKind, Runtime};

use super::facts::{Executor, Facts, Functions, RECORD_MAPPINGS, Role};

pub(super) const FACTS: Facts = Facts {
    name: "Ruby",
    files: &["ruby", "libruby"],
    heap_mark: None,
    heap: "Ruby keeps its slots in pages of its own heap",
    remedies: &[RECORD_MAPPINGS, "use `ObjectSpace`"],
    perf_map: Some("start it with `--yjit-perf`"),
    generated_name: None,
    frame_pointers: None,
    frame_type: "ruby",
    functions: Some(Functions {
        module: "[ruby]",
        kinds: [CodeKind::Ruby, CodeKind::Ruby],
        runtime: Runtime::Ruby,
        map: "RUBIES",
        role: Role::Interpreter,
        // `vm_exec_core` and `vm_exec`.
        loop_frames: 2,
        executor: Executor::interpreter,
    }),
};
