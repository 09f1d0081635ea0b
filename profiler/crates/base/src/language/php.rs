//! PHP.

use profiler_common::interpreter::{CodeKind, Runtime};

use super::facts::{Executor, Facts, Functions, RECORD_MAPPINGS, Role};

pub(super) const FACTS: Facts = Facts {
    name: "PHP",
    files: &["php", "libphp", "mod_php"],
    heap_mark: None,
    heap: "PHP keeps its variables in chunks of its own allocator",
    remedies: &["start it with USE_ZEND_ALLOC=0", RECORD_MAPPINGS],
    perf_map: Some("start it with `-d opcache.jit_debug=16`"),
    generated_name: None,
    frame_pointers: None,
    frame_type: "php",
    functions: Some(Functions {
        module: "[php]",
        kinds: [CodeKind::Php, CodeKind::Php],
        runtime: Runtime::Php,
        map: "PHPS",
        role: Role::Interpreter,
        loop_frames: 1,
        executor: Executor::interpreter,
    }),
};
