//! Interpreters and virtual machines in processes: where they keep the frames of the functions that they execute. The kernel side
//! reads the frames (`profiler-ebpf/src/interpreter.rs`, `machine.rs`); this module finds the addresses and offsets, and reads the names.

mod arch;
mod control_block;
mod cpython;
mod hotspot;
mod loops;
mod memory;
mod php;
mod process;
mod ruby;
mod v8;
mod version;

pub(crate) use self::control_block::{control_block, may_define_threads};
use self::cpython::Cpython;
pub(crate) use self::memory::Memory;
use self::php::Php;
pub(crate) use self::process::{CodeMapping, Process};
use self::ruby::Ruby;
use crate::object::ObjectError;
use crate::object::interpreted::{Code, PlacedCode, PseudoModule};
use crate::object::module::Module;
use crate::object::symbols::definitions;
use crate::unwind::runtimes::RuntimePlace;

/// What a module contains.
#[derive(Clone, Debug)]
pub(crate) enum Runtime {
    Python(Cpython),
    Java(hotspot::Library),
    JavaScript(Box<v8::Library>),
    Ruby(Ruby),
    Php(Php),
}

/// A runtime of a process.
pub(crate) struct Entered {
    pub(crate) place: RuntimePlace,
    /// `None` if the kernel side sends the names.
    pub(crate) reader: Option<Reader>,
}

/// Reads the names of code from a process.
#[derive(Debug)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum Reader {
    Java(hotspot::Machine),
    JavaScript(v8::Engine),
}

impl Runtime {
    /// `None` if the module contains no runtime. `is_java` distinguishes Java's, of which only this is a sign before it is read.
    pub(crate) fn of(module: &Module, is_java: bool) -> Result<Option<Self>, ObjectError> {
        if is_java {
            return Ok(hotspot::Library::of(module)?.map(Self::Java));
        }
        if Ruby::may_be_in(module) {
            return Ok(Ruby::of(module)?.map(Self::Ruby));
        }
        // Most modules contain none: their symbols are read once.
        let image = module.image().map_err(Clone::clone)?;
        let elf = module.elf().map_err(Clone::clone)?;
        let signs = definitions(image, elf, &[cpython::SIGN, php::SIGN, v8::SIGN]);
        let has = |sign: &str| signs.iter().any(|found| found.name == sign);
        if has(cpython::SIGN)
            && let Some(cpython) = Cpython::of(module)?
        {
            return Ok(Some(Self::Python(cpython)));
        }
        if has(php::SIGN)
            && let Some(php) = Php::of(module)?
        {
            return Ok(Some(Self::Php(php)));
        }
        if has(v8::SIGN) {
            return Ok(v8::Library::of(module)?.map(Box::new).map(Self::JavaScript));
        }
        Ok(None)
    }

    /// Stands for its functions.
    pub(crate) fn pseudo(&self) -> PseudoModule {
        match self {
            Self::Python(_) => PseudoModule::Python,
            Self::Java(_) => PseudoModule::Java,
            Self::JavaScript(_) => PseudoModule::JavaScript,
            Self::Ruby(_) => PseudoModule::Ruby,
            Self::Php(_) => PseudoModule::Php,
        }
    }

    /// In a process that maps the module. `None` if it has not started yet.
    pub(crate) fn in_process(self, process: &Process) -> Result<Option<Entered>, String> {
        let &Process { pid, bias, uses_musl, control_block, .. } = process;
        match self {
            Self::Python(cpython) => {
                let place = cpython.in_process(pid, bias, uses_musl, control_block);
                let place = place.map_err(|reason| reason.to_string())?;
                Ok(Some(Entered { place: RuntimePlace::Cpython(place), reader: None }))
            }
            Self::Php(php) => {
                let place = php.in_process(bias).map_err(|reason| reason.to_string())?;
                Ok(Some(Entered { place: RuntimePlace::Php(place), reader: None }))
            }
            Self::Java(library) => {
                let machine = library.in_process(pid, bias).map_err(|reason| reason.to_string())?;
                Ok(machine.map(|machine| Entered {
                    place: RuntimePlace::Hotspot(*machine.place()),
                    reader: Some(Reader::Java(machine)),
                }))
            }
            Self::JavaScript(library) => {
                let engine = library.in_process(&process.code).map_err(|reason| reason.to_string())?;
                let place = RuntimePlace::V8(*engine.place());
                Ok(Some(Entered { place, reader: Some(Reader::JavaScript(engine)) }))
            }
            Self::Ruby(ruby) => {
                let place = ruby.in_process(pid, bias, uses_musl).map_err(|reason| reason.to_string())?;
                Ok(Some(Entered { place: RuntimePlace::Ruby(place), reader: None }))
            }
        }
    }
}

impl Reader {
    /// Names and lines. `None` if the code has been replaced, or is malformed.
    pub(crate) fn read(&mut self, memory: &impl Memory, code: &PlacedCode) -> Option<Code> {
        match self {
            Self::Java(machine) => machine.read(memory, code),
            Self::JavaScript(engine) => engine.read(memory, code),
        }
    }
}
