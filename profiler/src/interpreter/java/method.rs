//! Names and lines of methods.

use std::sync::Arc;

use heapbpf_base::shown;
use rustc_hash::FxHashMap;

use super::super::memory::Memory;
use super::layout::{Layout, Source};
use crate::object::interpreted::{CodeLines, Function};

/// Names of methods, classes and files: longer ones are cut.
const NAME_BYTES_MAX: usize = 512;
/// A name of a blob.
const TEXT_BYTES_MAX: usize = 64;
/// A method has less than 64 KiB of bytecode, and real tables are shorter than it.
const LINES_BYTES_MAX: usize = 1 << 14;
/// Bytes that are read at first, and then: never beyond a multiple, so that no read reaches into another page.
const LINES_STEPS: [u64; 2] = [256, 4096];
/// Flag of a method with a table of lines.
const HAS_LINES: u32 = 1;

/// Methods whose names are kept, and their bytes; then all are forgotten.
const METHODS_MAX: usize = 1 << 16;
const METHODS_BYTES_MAX: usize = 16 << 20;

/// The methods of a machine, by their addresses, with their constant parts: those of removed classes can be replaced.
#[derive(Debug, Default)]
pub(super) struct Methods {
    by_address: FxHashMap<u64, (u64, Arc<Method>)>,
    bytes: usize,
}

impl Methods {
    pub(super) fn get(&mut self, memory: &impl Memory, layout: &Layout, address: u64) -> Option<Arc<Method>> {
        let constant = memory.word(address.wrapping_add(layout.method_constant))?;
        if let Some((_, known)) = self.by_address.get(&address).filter(|(of, _)| *of == constant) {
            return Some(Arc::clone(known));
        }
        let method = Arc::new(Method::read(memory, layout, constant)?);
        self.bytes += method.bytes();
        if self.by_address.len() >= METHODS_MAX || self.bytes > METHODS_BYTES_MAX {
            self.by_address.clear();
            self.bytes = method.bytes();
        }
        self.by_address.insert(address, (constant, Arc::clone(&method)));
        Some(method)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Method {
    /// With its class: `java.util.HashMap.put`.
    pub(super) name: Arc<str>,
    pub(super) file: Option<Arc<str>>,
    /// Lines from these indices in the bytecode on.
    lines: Arc<[(u32, u32)]>,
}

impl Method {
    /// Of the constant part.
    fn read(memory: &impl Memory, layout: &Layout, constant: u64) -> Option<Self> {
        let at = |offset: u64| constant.wrapping_add(offset);
        let short = |address: u64| memory.bytes(address).map(u16::from_le_bytes);
        let pool = memory.word(at(layout.constant_pool))?;
        let symbol = |index: u16| {
            let entry = pool.wrapping_add(layout.pool_bytes).wrapping_add(u64::from(index) * 8);
            symbol(memory, layout, memory.word(entry)?)
        };
        let name = symbol(short(at(layout.constant_name))?)?;
        let class = memory.word(pool.wrapping_add(layout.pool_holder))?;
        let source = match layout.source {
            Source::Pool(offset) => pool.wrapping_add(offset),
            Source::Class(offset) => class.wrapping_add(offset),
        };
        let source = short(source).filter(|&index| index != 0);
        let class = self::symbol(memory, layout, memory.word(class.wrapping_add(layout.class_name))?)?;
        let mut lines = lines(memory, layout, constant).unwrap_or_default();
        lines.sort_by_key(|(index, _)| *index);
        let name = format!("{}.{name}", class_name(&class)).into();
        Some(Self { name, file: source.and_then(symbol).map(Into::into), lines: lines.into() })
    }

    fn bytes(&self) -> usize {
        self.name.len() + self.file.as_ref().map_or(0, |file| file.len()) + size_of_val(&*self.lines)
    }

    pub(super) fn function(&self) -> Function {
        let lines = CodeLines::Starts(Arc::clone(&self.lines));
        Function { name: Some(Arc::clone(&self.name)), file: self.file.clone(), lines, script: None }
    }

    pub(super) fn line(&self, index: u32) -> Option<u32> {
        CodeLines::Starts(Arc::clone(&self.lines)).at(index)
    }
}

/// `java/util/HashMap` as `java.util.HashMap`. The internal names of hidden classes end in an address, which differs between runs.
fn class_name(internal: &str) -> String {
    let name = match internal.rsplit_once("+0x") {
        Some((name, digits)) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => name,
        _ => internal,
    };
    name.replace('/', ".")
}

pub(super) fn symbol(memory: &impl Memory, layout: &Layout, address: u64) -> Option<String> {
    let length = memory.bytes(address.wrapping_add(layout.symbol_length)).map(u16::from_le_bytes)?;
    let start = address.wrapping_add(layout.symbol_body);
    let length = usize::from(length).min(NAME_BYTES_MAX);
    let bytes = memory.range(start, start.checked_add(length as u64)?, NAME_BYTES_MAX)?;
    let text = decode(&bytes);
    (!text.is_empty()).then_some(text)
}

/// Of modified UTF-8 (JVM specification, 4.4.7): each UTF-16 unit is encoded on its own, in one to three bytes.
fn decode(bytes: &[u8]) -> String {
    let mut units = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    let low = |byte: u8, shift: u32| u16::from(byte & 0x3f) << shift;
    while let Some((&first, after)) = rest.split_first() {
        let (unit, after) = match (first >> 4, after) {
            (0..8, after) => (first.into(), after),
            (0xc | 0xd, [second, after @ ..]) => (u16::from(first & 0x1f) << 6 | low(*second, 0), after),
            (0xe, [second, third, after @ ..]) => (u16::from(first) << 12 | low(*second, 6) | low(*third, 0), after),
            (_, after) => (REPLACEMENT, after),
        };
        units.push(unit);
        rest = after;
    }
    String::from_utf16_lossy(&units)
}

/// `char::REPLACEMENT_CHARACTER`.
const REPLACEMENT: u16 = 0xfffd;

/// A text that ends in a zero.
pub(super) fn text(memory: &impl Memory, address: u64) -> Option<Arc<str>> {
    let mut bytes = Vec::new();
    for at in address..address.checked_add(TEXT_BYTES_MAX as u64)? {
        match memory.bytes(at)? {
            [0] => break,
            [byte] => bytes.push(byte),
        }
    }
    let text = shown::text(&bytes);
    (!text.is_empty()).then(|| text.into())
}

/// The table of lines, which follows the bytecode.
fn lines(memory: &impl Memory, layout: &Layout, constant: u64) -> Option<Vec<(u32, u32)>> {
    let flags = memory.bytes(constant.wrapping_add(layout.constant_flags)).map(u16::from_le_bytes)?;
    if u32::from(flags) & HAS_LINES == 0 {
        return None;
    }
    let code_bytes = memory.bytes(constant.wrapping_add(layout.constant_code_bytes)).map(u16::from_le_bytes)?;
    let start = constant.wrapping_add(layout.constant_bytes).wrapping_add(code_bytes.into());
    // Its length is unknown.
    let mut bytes = Vec::new();
    loop {
        let at = start.wrapping_add(bytes.len() as u64);
        let step = LINES_STEPS[usize::from(!bytes.is_empty())];
        let end = (at / step + 1).checked_mul(step)?;
        let more = memory.range(at, end, LINES_BYTES_MAX);
        bytes.extend(more.iter().flatten());
        let (lines, is_whole) = layout.encoding.lines(&bytes);
        if is_whole || more.is_none() || bytes.len() >= LINES_BYTES_MAX {
            return Some(lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_modified_utf_8() {
        assert_eq!(decode("größe 数".as_bytes()), "größe 数");
        // U+10300 as two surrogates, and zero in two bytes.
        assert_eq!(decode(&[0xed, 0xa0, 0x80, 0xed, 0xbc, 0x80, b'a', 0xc0, 0x80]), "𐌀a\0");
        for (bytes, expected) in
            [(&[b'a', 0x80][..], "a\u{fffd}"), (&[0xe6, 0x95], "\u{fffd}\u{fffd}"), (&[0xf0], "\u{fffd}")]
        {
            assert_eq!(decode(bytes), expected, "malformed, or cut");
        }
    }

    #[test]
    fn names_of_hidden_classes_lose_their_address() {
        for (internal, expected) in [
            ("java/util/HashMap", "java.util.HashMap"),
            ("Alloc$$Lambda$14+0x0000000800c03000", "Alloc$$Lambda$14"),
            ("a/B+0xyz", "a.B+0xyz"),
        ] {
            assert_eq!(class_name(internal), expected);
        }
    }
}
