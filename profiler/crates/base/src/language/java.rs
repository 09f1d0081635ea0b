//! Java and other languages of HotSpot, OpenJDK's virtual machine.

use profiler_common::interpreter::{CodeKind, InterpretedFrame, Runtime};

use super::facts::{Executor, Facts, Functions, Role};

pub(super) const FACTS: Facts = Facts {
    name: "Java",
    files: &["libjvm.so"],
    heap_mark: None,
    heap: "the JVM keeps Java objects in its own heap",
    remedies: &["use its own recorder (`jcmd PID JFR.start`)"],
    perf_map: Some(
        "record it with `--jvm-perfmap`, or run `jcmd PID Compiler.perfmap` while it is recorded (JDK 17 or later)",
    ),
    generated_name: None,
    frame_pointers: Some("Java: start it with `-XX:+PreserveFramePointer`"),
    frame_type: "jvm",
    functions: Some(Functions {
        module: "[java]",
        kinds: [CodeKind::JavaInterpreted, CodeKind::JavaStub],
        runtime: Runtime::Hotspot,
        map: "JAVA_MACHINES",
        role: Role::Machine,
        loop_frames: 0,
        executor,
    }),
};

fn executor(frame: InterpretedFrame) -> Executor {
    match frame.kind {
        CodeKind::JavaCompiled => Executor::Processor,
        CodeKind::JavaStub => Executor::Runtime,
        _ => Executor::Interpreter,
    }
}
