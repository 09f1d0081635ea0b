//! PHP 8.0 to 8.5. Offsets are those of the version's headers, except the one that differs between builds of a version.

mod layout;
mod names;
mod record;

use std::ops::Range;
use std::sync::Arc;

use heapbpf_base::address::{FileOffset, LinkAddr};
use heapbpf_base::language::Language;
use profiler_common::interpreter::AddressRange;
use profiler_common::php;
use profiler_common::record::RecordKind;

use self::layout::Unsupported;
use super::arch::member_of;
use super::implementation::{Entered, Implementation, Record, Runtime, Sign, found};
use super::loops::loops;
use super::process::Process;
use super::version::Version;
use crate::object::ObjectError;
use crate::object::image::Image;
use crate::object::module::Module;
use crate::object::symbols::{Definition, definitions};

pub(super) const IMPLEMENTATION: Implementation = Implementation {
    language: Language::Php,
    sign: Sign::Symbol(LOOP),
    detect: |module| Php::of(module).map(found),
    record: Some(Record { kind: RecordKind::PhpCode, decode: record::decode }),
    #[cfg(test)]
    load: None,
};

/// The interpreter loop.
const LOOP: &str = "execute_ex";
/// State of the executor, in builds without thread safety (`Zend/zend_globals_macros.h`).
const GLOBALS: &str = "executor_globals";
/// Its offset in the state of a thread, in builds with thread safety.
const GLOBALS_OF_THREAD: &str = "executor_globals_offset";
/// Compares the innermost frame with 0 (`Zend/zend_execute_API.c`).
const HAS_FRAMES: &str = "zend_is_executing";
/// Functions that are called without a frame, since PHP 8.4 (`Zend/zend_frameless_function.h`).
const FRAMELESS: &str = "zend_flf_functions";
const HAS_FRAMES_BYTES: u64 = 64;
/// Real ones have 2 KB.
const GLOBALS_BYTES_MAX: u64 = 1 << 14;
/// Larger modules are not searched for their version.
const MODULE_BYTES_MAX: u64 = 1 << 28;

/// PHP in a module, by link addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Php(Result<Known, Unsupported>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    version: Version,
    /// The loop, then the part of it that the compiler considered cold.
    loops: Vec<Range<u64>>,
    globals: Range<u64>,
    /// Where the pointer to the innermost frame is.
    current: LinkAddr,
    frameless: Option<LinkAddr>,
}

impl Php {
    /// `None` if the module contains no PHP.
    fn of(module: &Module) -> Result<Option<Self>, ObjectError> {
        let image = module.image().map_err(Clone::clone)?;
        let elf = module.elf().map_err(Clone::clone)?;
        let found = definitions(image, elf, &[LOOP, GLOBALS, GLOBALS_OF_THREAD, HAS_FRAMES, FRAMELESS]);
        let get = |name: &str| found.iter().find(|definition| definition.name == name);
        let Some(execute) = get(LOOP) else { return Ok(None) };
        let known = match (get(GLOBALS), get(GLOBALS_OF_THREAD)) {
            (Some(globals), _) => Known::read(image, module, [execute, globals], get(HAS_FRAMES))
                .map(|known| Known { frameless: get(FRAMELESS).map(|functions| functions.address), ..known }),
            (None, Some(_)) => Err(Unsupported::ThreadSafe),
            // A function of another program.
            (None, None) => return Ok(None),
        };
        Ok(Some(Self(known)))
    }

    /// The PHP of a process that maps the module with this load bias.
    fn in_process(&self, bias: u64) -> Result<php::Php, Unsupported> {
        let known = self.0.as_ref().map_err(Clone::clone)?;
        let placed =
            |range: &Range<u64>| AddressRange { start: range.start.wrapping_add(bias), bytes: range.end - range.start };
        let mut php = known.version.php()?;
        for (range, found) in php.loops.iter_mut().zip(&known.loops) {
            *range = placed(found);
        }
        php.globals = placed(&known.globals);
        php.current = known.current.0.wrapping_add(bias);
        php.frameless = known.frameless.map_or(0, |functions| functions.0.wrapping_add(bias));
        Ok(php)
    }
}

impl Runtime for Php {
    fn enter(&self, process: &Process) -> Result<Option<Entered>, String> {
        let place = self.in_process(process.bias).map_err(|reason| reason.to_string())?;
        Ok(Some(Entered { place: Arc::new(place), reader: None }))
    }
}

impl Known {
    fn read(
        image: &Image,
        module: &Module,
        [execute, globals]: [&Definition; 2],
        has_frames: Option<&Definition>,
    ) -> Result<Self, Unsupported> {
        let version = version(image).ok_or(Unsupported::NoVersion)?;
        let start = globals.address.0;
        let globals = start..start.saturating_add(globals.size_bytes.min(GLOBALS_BYTES_MAX));
        let code = has_frames.and_then(|function| {
            let bytes = function.size_bytes.min(HAS_FRAMES_BYTES);
            let code = image.read(module.file_offset(function.address)?, bytes, HAS_FRAMES_BYTES).ok()?;
            Some((code, function.address.0))
        });
        let current = code.and_then(|(code, start)| member_of(&code, start, &globals)).ok_or(Unsupported::NoFrames)?;
        Ok(Self { version, loops: loops(image, module, execute), globals, current: LinkAddr(current), frameless: None })
    }
}

/// The version that a module contains.
fn version(image: &Image) -> Option<Version> {
    const STEP: usize = 1 << 20;
    let length = image.identity().size_bytes.min(MODULE_BYTES_MAX);
    (0..length).step_by(STEP).find_map(|start| {
        // The text may be in two steps.
        let bytes = (length - start).min(STEP as u64 + 64);
        Version::in_text(&image.read(FileOffset(start), bytes, bytes).ok()?)
    })
}

#[cfg(test)]
mod tests;
