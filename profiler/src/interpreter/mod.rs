//! Interpreters and virtual machines in processes, a folder for each language: where they keep the frames of the functions that they
//! execute, and the names of these. The kernel side reads the frames (`profiler-ebpf/src/interpreter.rs`, `machine.rs`).

mod arch;
mod control_block;
pub(crate) mod implementation;
pub(crate) mod java;
mod javascript;
mod loops;
pub(crate) mod memory;
mod php;
mod process;
mod python;
mod ruby;
#[cfg(test)]
mod saved;
mod version;

use profiler_common::interpreter::{CodeId, CodeKind, CodePlace, CodePlaceRecord};

pub(crate) use self::control_block::{control_block, may_define_threads};
use self::implementation::{Found, Implementation, Sent, Sign};
pub(crate) use self::process::{CodeMapping, Process};
use heapbpf_base::language::Language;
use heapbpf_ledger::ingest::field::{DecodeError, field};
use heapbpf_ledger::ingest::record::RawCode;

use crate::object::ObjectError;
use crate::object::interpreted::PlacedCode;
use crate::object::module::Module;
use crate::object::symbols::definitions;

/// Of several in one module, the first counts.
static IMPLEMENTATIONS: [Implementation; 5] = [
    java::IMPLEMENTATION,
    ruby::IMPLEMENTATION,
    python::IMPLEMENTATION,
    php::IMPLEMENTATION,
    javascript::IMPLEMENTATION,
];

/// The runtime that a module contains.
pub(crate) fn find(module: &Module) -> Result<Option<Found>, ObjectError> {
    let detect = |implementation: &Implementation| {
        let Implementation { language, detect, .. } = *implementation;
        let functions = language.functions();
        Ok(detect(module)?.zip(functions).map(|(runtime, functions)| Found { language, functions, runtime }))
    };
    let has_path = |it: &&Implementation| matches!(it.sign, Sign::Path(is_own) if is_own(module.path()));
    if let Some(implementation) = IMPLEMENTATIONS.iter().find(has_path) {
        return detect(implementation);
    }
    // Most modules contain none: their symbols are read once.
    let symbol = |it: &Implementation| if let Sign::Symbol(symbol) = it.sign { Some(symbol) } else { None };
    let signs: Vec<&str> = IMPLEMENTATIONS.iter().filter_map(symbol).collect();
    let image = module.image().map_err(Clone::clone)?;
    let elf = module.elf().map_err(Clone::clone)?;
    let signs = definitions(image, elf, &signs);
    for implementation in &IMPLEMENTATIONS {
        if symbol(implementation).is_some_and(|sign| signs.iter().any(|found| found.name == sign))
            && let Some(found) = detect(implementation)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Decodes code that the kernel side has sent.
pub(crate) fn decode(record: &RawCode) -> Result<Sent, DecodeError> {
    for Implementation { language, record: of_language, .. } in &IMPLEMENTATIONS {
        if let Some(of_language) = of_language
            && of_language.kind == record.kind
        {
            return (of_language.decode)(&record.bytes).map(|code| Sent::Named(*language, code));
        }
    }
    placed(&record.bytes).map(Sent::Placed)
}

fn placed(bytes: &[u8]) -> Result<PlacedCode, DecodeError> {
    let wire = field!(bytes, CodePlaceRecord, kind, u32);
    let kind = u8::try_from(wire).ok().and_then(CodeKind::from_wire);
    let (kind, language) =
        kind.and_then(|kind| Some((kind, Language::of_kind(kind)?))).ok_or(DecodeError::UnknownCode(wire))?;
    Ok(PlacedCode {
        id: CodeId(field!(bytes, CodePlaceRecord, code_id, u64)).in_frames(),
        language,
        kind,
        place: CodePlace {
            address: field!(bytes, CodePlaceRecord, place.address, u64),
            refers_to: field!(bytes, CodePlaceRecord, place.refers_to, u64),
            detail: field!(bytes, CodePlaceRecord, place.detail, u64),
        },
    })
}

#[cfg(test)]
mod tests;
