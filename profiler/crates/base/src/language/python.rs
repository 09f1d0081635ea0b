//! Python, as CPython executes it.

use profiler_common::interpreter::{CodeKind, Runtime};

use super::facts::{Executor, Facts, Functions, RECORD_MAPPINGS, Role};

pub(super) const FACTS: Facts = Facts {
    name: "Python",
    files: &["python", "libpython"],
    heap_mark: None,
    heap: "CPython keeps objects of up to 512 bytes in arenas of its own",
    remedies: &["start it with PYTHONMALLOC=malloc", RECORD_MAPPINGS],
    perf_map: Some("start it with `-X perf` (Python 3.12 or later)"),
    generated_name: None,
    frame_pointers: None,
    frame_type: "cpython",
    functions: Some(Functions {
        module: "[python]",
        kinds: [CodeKind::Cpython, CodeKind::Cpython],
        runtime: Runtime::Cpython,
        map: "INTERPRETERS",
        role: Role::Interpreter,
        loop_frames: 1,
        executor: Executor::interpreter,
    }),
};
