//! CRuby 3.0 to 3.4: where a process has the control frames of its threads. The kernel side sends names and lines.
//!
//! CRuby publishes no layouts: they are those of the version's headers ([`layout`]). What its symbols lack is found in its machine code
//! ([`program`]).

mod labels;
mod layout;
mod program;
mod record;

use std::ops::Range;
use std::sync::Arc;

use heapbpf_base::address::LinkAddr;
use heapbpf_base::language::Language;
use profiler_common::interpreter::AddressRange;
use profiler_common::record::RecordKind;
use profiler_common::ruby;

use self::layout::Layout;
use self::layout::Unsupported;
use super::arch::{ThreadLocal, is_offset};
use super::implementation::{Entered, Implementation, Record, Runtime, Sign, found};
use super::memory::Memory;
use super::process::Process;
use super::version::Version;
use crate::object::ObjectError;
use crate::object::module::Module;
use crate::object::symbols::definitions;

pub(super) const IMPLEMENTATION: Implementation = Implementation {
    language: Language::Ruby,
    sign: Sign::Path(may_contain),
    detect: |module| Ruby::of(module).map(found),
    record: Some(Record { kind: RecordKind::RubyCode, decode: record::decode }),
    #[cfg(test)]
    load: None,
};

/// The version as a text.
const VERSION: &str = "ruby_version";
/// Returns a word of the execution context.
const ERRINFO: &str = "rb_errinfo";
/// Counts the symbols.
const ALL_SYMBOLS: &str = "rb_sym_all_symbols";
const VERSION_BYTES_MAX: u64 = 16;

/// CRuby in a module, by link addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ruby(Result<Found, Unsupported>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    layout: Layout,
    /// `vm_exec`, then the part of it that the compiler considered cold.
    loops: Vec<Range<u64>>,
    /// `ruby_current_ec`.
    context: ThreadLocal,
    /// `ids` of `ruby_global_symbols`.
    names: Option<LinkAddr>,
}

/// Whether a module can contain CRuby, by its name: `ruby3.1`, `libruby-3.1.so.3.1`. Other programs link the library.
fn may_contain(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.contains("ruby"))
}

impl Ruby {
    /// `None` if the module contains no CRuby.
    fn of(module: &Module) -> Result<Option<Self>, ObjectError> {
        let image = module.image().map_err(Clone::clone)?;
        let elf = module.elf().map_err(Clone::clone)?;
        let found = definitions(image, elf, &[VERSION, ERRINFO, ALL_SYMBOLS]);
        let get = |name: &str| found.iter().find(|definition| definition.name == name);
        let (Some(version), Some(errinfo)) = (get(VERSION), get(ERRINFO)) else { return Ok(None) };
        let find = || {
            let offset = elf.data_offset(version.address);
            let bytes = version.size_bytes.min(VERSION_BYTES_MAX);
            let text = offset.and_then(|offset| image.read(offset, bytes, VERSION_BYTES_MAX).ok());
            let version = text.and_then(|text| Version::of_text(&text)).ok_or(Unsupported::NoVersion)?;
            Ok(Found {
                layout: version.layout()?,
                loops: program::loops(image, elf).ok_or(Unsupported::NoLoop)?,
                context: program::context(image, elf, errinfo).ok_or(Unsupported::NoContext)?,
                names: get(ALL_SYMBOLS).and_then(|function| program::names(image, elf, function)),
            })
        };
        Ok(Some(Self(find())))
    }

    /// The CRuby of a process that maps the module with this load bias.
    fn in_memory(&self, memory: &impl Memory, bias: u64, uses_musl: bool) -> Result<ruby::Ruby, Unsupported> {
        let found = self.0.as_ref().map_err(Clone::clone)?;
        let (tls_module, tls_offset) = place(memory, found.context, bias).ok_or(Unsupported::Unreadable)?;
        let mut ruby = ruby::Ruby {
            tls_module,
            tls_offset,
            frame_bytes: found.layout.frame_bytes,
            flags: found.layout.flags | if uses_musl { ruby::USES_MUSL } else { 0 },
            lines: found.layout.lines,
            line_bytes: found.layout.line_bytes,
            names: found.names.map_or(0, |names| names.0.wrapping_add(bias)),
            ..ruby::Ruby::default()
        };
        for (range, found) in ruby.loops.iter_mut().zip(&found.loops) {
            *range = AddressRange { start: found.start.wrapping_add(bias), bytes: found.end - found.start };
        }
        Ok(ruby)
    }
}

impl Runtime for Ruby {
    fn enter(&self, process: &Process) -> Result<Option<Entered>, String> {
        let &Process { pid, bias, uses_musl, .. } = process;
        let place = self.in_memory(&pid, bias, uses_musl).map_err(|reason| reason.to_string())?;
        Ok(Some(Entered { place: Arc::new(place), reader: None }))
    }
}

/// The module of thread-local storage, or 0 if it is at a fixed offset from the thread pointer, and the offset.
fn place(memory: &impl Memory, local: ThreadLocal, bias: u64) -> Option<(u64, u64)> {
    let word = |slot: u64, index: u64| memory.word(slot.wrapping_add(bias).wrapping_add(index * 8));
    let of_module = |at: u64, more: u64| {
        let (module, offset) = (memory.word(at)?, memory.word(at.wrapping_add(8))?);
        // Until the loader has relocated it.
        (module != 0).then(|| (module, offset.wrapping_add(more)))
    };
    match local {
        ThreadLocal::Fixed(offset) => Some((0, offset)),
        ThreadLocal::Loaded(slot, more) => Some((0, word(slot, 0)?.wrapping_add(more))),
        ThreadLocal::Module(slot, more) => of_module(slot.wrapping_add(bias), more),
        ThreadLocal::Descriptor(slot, more) => match word(slot, 1)? {
            offset if is_offset(offset) => Some((0, offset.wrapping_add(more))),
            at => of_module(at, more),
        },
    }
}

#[cfg(test)]
mod tests;
