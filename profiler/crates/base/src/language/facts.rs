//! The form of a language's facts.

use profiler_common::interpreter::{CodeKind, InterpretedFrame, Runtime};

/// Remedy where objects are in memory that a program maps itself.
pub const RECORD_MAPPINGS: &str = "record mappings with `--heap mmap`";

/// Facts about a language that need no access to a process: texts for users, and marks in files, mappings and stacks.
#[derive(Debug)]
pub struct Facts {
    pub name: &'static str,
    /// Names of executables and libraries, without their versions.
    pub files: &'static [&'static str],
    /// Recognises the heap, where programs have no file in common.
    pub heap_mark: Option<HeapMark>,
    /// Where objects are, if they are not in a hooked heap.
    pub heap: &'static str,
    /// How objects are recorded nevertheless.
    pub remedies: &'static [&'static str],
    /// How the names of generated code are written to a file.
    pub perf_map: Option<&'static str>,
    /// Parses the names of generated code in such files, if they have a form of their own.
    pub generated_name: Option<fn(&str) -> Option<GeneratedName<'_>>>,
    /// How generated code keeps frame pointers.
    pub frame_pointers: Option<&'static str>,
    /// Value of `profile.frame.type` in OpenTelemetry's semantic conventions.
    pub frame_type: &'static str,
    /// `None` if stacks have no words for functions: all are native code, or heapbpf cannot read them.
    pub functions: Option<Functions>,
}

/// The function of generated code, in the name that its compiler gives to it.
#[derive(Debug, PartialEq, Eq)]
pub struct GeneratedName<'a> {
    pub function: &'a str,
    /// File and line, if the name has them.
    pub place: Option<(&'a str, u32)>,
}

/// A mapping of a heap.
#[derive(Debug)]
pub struct HeapMark {
    pub address: u64,
    /// What the names of anonymous mappings begin with.
    pub name: &'static str,
}

/// How functions appear in stacks.
#[derive(Debug)]
pub struct Functions {
    /// Path of the module that stands for them. No file has it: paths of files are absolute.
    pub module: &'static str,
    /// The first and the last of the kinds of their words.
    pub kinds: [CodeKind; 2],
    /// Whose frames the kernel side unwinds.
    pub runtime: Runtime,
    /// Name of the kernel's map with the runtime's structures.
    pub map: &'static str,
    pub role: Role,
    /// Native frames of the interpreter's loop, which precede the innermost function.
    pub loop_frames: usize,
    pub executor: fn(InterpretedFrame) -> Executor,
}

/// What a runtime is to the kernel side, which keeps one of each for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its functions are executed by a loop in native code.
    Interpreter,
    /// Its functions are executed by code that it generates.
    Machine,
}

/// What executes the code of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    Interpreter,
    /// The processor: a compiler generated it.
    Processor,
    /// The processor, for the runtime itself.
    Runtime,
}

impl Executor {
    pub fn interpreter(_: InterpretedFrame) -> Self {
        Self::Interpreter
    }
}
