//! Names, files and lines of functions, from what closures of the same source share (`SharedFunctionInfo`).

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::super::memory::Memory;
use super::heap::{Heap, small};
use super::positions::entries;
use crate::object::script::{self, InScript, MapPlace, Spot, TargetFiles, TextIdentity};

/// Larger sources have no lines.
const SOURCE_UNITS_MAX: usize = 1 << 24;
/// Sources whose lines are kept: a program with a thousand modules has as many.
const SCRIPTS_MAX: usize = 4096;
/// Words of a scope behind its variables, with the position, and without it.
const SCOPE_WORDS_MAX: u64 = 8;
const SCOPE_NAME_WORDS_MAX: u64 = 4;
/// Variables of a scope that has their names itself (`kScopeInfoMaxInlinedLocalNamesSize`).
const INLINE_VARIABLES_MAX: u64 = 75;
const VARIABLES_MAX: u64 = 1 << 16;
/// In the shared part: bytecode, code, or data of the interpreter with bytecode.
pub(super) const SHARED_DATA: u64 = 8;
const INTERPRETER_DATA_BYTECODE: u64 = 8;
/// In a scope: the number of variables.
const SCOPE_VARIABLES_COUNT: u64 = 3 * 8;
const TABLE_BYTES_MAX: usize = 1 << 20;
/// Units between a function's name and its parameters: ` = async function* `.
const BEFORE_PARAMETERS_UNITS_MAX: usize = 64;
/// Bytes of the source maps within the scripts of a process.
const INLINE_BYTES_MAX: usize = 64 << 20;

const ANONYMOUS: &str = "(anonymous)";

/// Kinds of functions without a name that initialise classes (`FunctionKind` in `src/objects/function-kind.h` of V8 12 and 13), and
/// what the engine calls them.
const KIND_MASK: u32 = 31;
const INITIALIZERS: [(u32, &str); 2] = [(24, "<instance_members_initializer>"), (25, "<static_initializer>")];

fn initializer_name(heap: &Heap<'_, impl Memory>, shared: u64) -> Option<&'static str> {
    if heap.layout.shared_flags == 0 {
        return None;
    }
    let flags = heap.memory.integer(shared.wrapping_add(heap.layout.shared_flags))?;
    INITIALIZERS.iter().find(|(kind, _)| *kind == flags & KIND_MASK).map(|(_, name)| *name)
}

/// What is known of a function.
#[derive(Clone, Debug)]
pub(super) struct SharedFunction {
    pub(super) name: Arc<str>,
    /// `None` for functions of the engine's own.
    pub(super) script: Option<Arc<Script>>,
    /// Position of its parameters in the source.
    start: Option<u32>,
    /// Where its name is written.
    name_spot: Option<Spot>,
}

/// A source.
#[derive(Debug)]
pub(super) struct Script {
    /// Words that verify that another script has not replaced it.
    identity: [u64; 2],
    pub(super) file: Option<Arc<str>>,
    /// Positions of the ends of lines.
    line_ends: Vec<u32>,
    /// What finds its source map; `None` if it can have none.
    translated: Option<Arc<script::Script>>,
}

impl Script {
    /// `None` if the source was not read.
    pub(super) fn spot(&self, unit: u32) -> Option<Spot> {
        if self.line_ends.is_empty() {
            return None;
        }
        let before = self.line_ends.partition_point(|&end| end < unit);
        let start = before.checked_sub(1).map_or(0, |last| self.line_ends[last] + 1);
        Some(Spot { line: u32::try_from(before + 1).ok()?, column: unit.saturating_sub(start) })
    }
}

impl SharedFunction {
    pub(super) fn first_spot(&self) -> Option<Spot> {
        self.spot(self.start?)
    }

    pub(super) fn spot(&self, unit: u32) -> Option<Spot> {
        self.script.as_ref()?.spot(unit)
    }

    pub(super) fn in_script(&self) -> Option<InScript> {
        let script = Arc::clone(self.script.as_ref()?.translated.as_ref()?);
        Some(InScript { script, name: self.name_spot })
    }

    pub(super) fn file(&self) -> Option<Arc<str>> {
        self.script.as_ref()?.file.clone()
    }
}

/// Sources that were read, by the addresses of their objects.
#[derive(Debug, Default)]
pub(super) struct Scripts {
    by_address: FxHashMap<u64, Arc<Script>>,
    /// By their files: a script stays the same when the engine moves its object.
    translated: FxHashMap<Arc<str>, Arc<script::Script>>,
    inline_bytes: usize,
    /// Opens source maps later.
    files: Option<Arc<TargetFiles>>,
}

impl Scripts {
    pub(super) fn new(files: Option<TargetFiles>) -> Self {
        Self { files: files.map(Arc::new), ..Self::default() }
    }

    /// The function with this shared part. `None` if it is none, or cannot be read.
    pub(super) fn function(&mut self, heap: &Heap<'_, impl Memory>, shared: u64) -> Option<SharedFunction> {
        let name = heap.field(shared, heap.layout.shared_name)?;
        let script = heap.field(shared, heap.layout.shared_script)?;
        let script = heap.of_kind(script, heap.layout.kinds.script).and_then(|script| self.script(heap, script));
        let (name, start) = if heap.is_string(name) {
            (heap.text(name), None)
        } else {
            let scope = heap.of_kind(name, heap.layout.kinds.scope)?;
            scope_name(heap, scope)
        };
        let name = initializer_name(heap, shared).map(str::to_owned).or(name).filter(|name| !name.is_empty());
        let name_spot = script.as_ref().zip(name.as_ref()).zip(start).and_then(|((script, name), start)| {
            let _ = script.translated.as_ref()?;
            script.spot(name_unit(heap, script.identity[1], name, start)?)
        });
        Some(SharedFunction { name: name.as_deref().unwrap_or(ANONYMOUS).into(), script, start, name_spot })
    }

    fn script(&mut self, heap: &Heap<'_, impl Memory>, script: u64) -> Option<Arc<Script>> {
        let (name, source) =
            (heap.field(script, heap.layout.script_name)?, heap.field(script, heap.layout.script_source)?);
        let identity = [name, source];
        if let Some(known) = self.by_address.get(&script).filter(|known| known.identity == identity) {
            return Some(Arc::clone(known));
        }
        let file: Option<Arc<str>> = heap.text(name).filter(|name| !name.is_empty()).map(Into::into);
        let units = heap.units(source, SOURCE_UNITS_MAX).unwrap_or_default();
        let translated = file.as_ref().filter(|_| !units.is_empty()).and_then(|file| self.translated(file, &units));
        let script_read = Script { identity, file, line_ends: line_ends(&units), translated };
        let read = Arc::new(script_read);
        if self.by_address.len() < SCRIPTS_MAX {
            self.by_address.insert(script, Arc::clone(&read));
        }
        Some(read)
    }

    fn translated(&mut self, file: &Arc<str>, units: &[u16]) -> Option<Arc<script::Script>> {
        if file.starts_with("node:") {
            return None;
        }
        let (text, map) = (TextIdentity::of(units), MapPlace::of(units));
        let script = script::Script::new(Arc::clone(file), text, map, self.files.clone());
        if let Some(known) = self.translated.get(file).filter(|known| ***known == script) {
            return Some(Arc::clone(known));
        }
        self.inline_bytes += script.inline_bytes();
        let script = if self.inline_bytes > INLINE_BYTES_MAX {
            self.inline_bytes -= script.inline_bytes();
            script.without_inline()
        } else {
            script
        };
        let script = Arc::new(script);
        if self.translated.len() < SCRIPTS_MAX {
            self.translated.insert(Arc::clone(file), Arc::clone(&script));
        }
        Some(script)
    }
}

/// The position of a function's name in the source, by that of its parameters.
fn name_unit(heap: &Heap<'_, impl Memory>, source: u64, name: &str, parameters: u32) -> Option<u32> {
    // The engine adds what the source has before the name.
    let name: Vec<u16> =
        ["get ", "set "].iter().find_map(|word| name.strip_prefix(word)).unwrap_or(name).encode_utf16().collect();
    let end = usize::try_from(parameters).ok()?;
    let start = end.saturating_sub(name.len() + BEFORE_PARAMETERS_UNITS_MAX);
    let before = heap.units_between(source, start..end)?;
    u32::try_from(start + name_before(&before, &name)?).ok()
}

/// Where a name is, at the end of a source up to the parameters of its function: `name`, `name = async function`, `name: `.
fn name_before(source: &[u16], name: &[u16]) -> Option<usize> {
    let is_space = |unit: &u16| matches!(unit, 0x20 | 0x09 | 0x0a | 0x0d);
    let is_word = |unit: u16| {
        let is_ascii_word = |byte: u8| byte.is_ascii_alphanumeric() || b"$_".contains(&byte);
        unit > 0x7f || u8::try_from(unit).is_ok_and(is_ascii_word)
    };
    let trimmed = |source: &[u16]| source.iter().rposition(|unit| !is_space(unit)).map_or(0, |last| last + 1);
    let at = |length: usize| {
        let start = length.checked_sub(name.len()).filter(|_| !name.is_empty())?;
        let is_whole = start == 0 || !is_word(source[start - 1]);
        (source[start..length] == *name && is_whole).then_some(start)
    };
    let mut length = trimmed(source);
    if let Some(start) = at(length) {
        return Some(start);
    }
    for word in ["*", "function", "async", "(", "=", ":"] {
        let word: Vec<u16> = word.encode_utf16().collect();
        if source[..length].ends_with(&word) {
            length = trimmed(&source[..length - word.len()]);
        }
    }
    at(length)
}

/// The last line ends with the source.
fn line_ends(units: &[u16]) -> Vec<u32> {
    let is_end = |index: usize| match units[index] {
        // A carriage return before a line feed ends no line of its own.
        0x0d => units.get(index + 1) != Some(&0x0a),
        unit => matches!(unit, 0x0a | 0x2028 | 0x2029),
    };
    let ends = (0..units.len()).filter(|&index| is_end(index));
    let all = ends.chain((!units.is_empty()).then_some(units.len()));
    all.filter_map(|index| u32::try_from(index).ok()).collect()
}

/// The function's name, and its position. Behind the variables of a scope come, each if the function has it: its name, an inferred
/// name, its position, and the outer scope. Which ones it has is in flags that versions number differently, but their types
/// distinguish them.
fn scope_name(heap: &Heap<'_, impl Memory>, scope: u64) -> (Option<String>, Option<u32>) {
    let Some(variables) =
        heap.field(scope, SCOPE_VARIABLES_COUNT).and_then(small).and_then(|it| u64::try_from(it).ok())
    else {
        return (None, None);
    };
    if variables > VARIABLES_MAX {
        return (None, None);
    }
    // Names of variables, or a table of them; and a word of each.
    let words = if variables < INLINE_VARIABLES_MAX { 2 * variables } else { 1 + variables };
    let first = heap.layout.scope_variables + words;
    let count = if heap.layout.scope_has_position_first { SCOPE_NAME_WORDS_MAX } else { SCOPE_WORDS_MAX };
    let (mut name, mut start, mut previous) = (None, None, None);
    for index in first..first + count {
        let Some(word) = heap.field(scope, 8 + index * 8) else { break };
        if let Some(value) = small(word) {
            // Beginning and end of the function. A name is followed by the number of its variable, which is mostly negative.
            start = previous.filter(|&begin| 0 <= begin && begin < value);
            if start.is_some() {
                break;
            }
            previous = Some(value);
        } else if heap.is_string(word) {
            previous = None;
            name = name.or_else(|| heap.text(word).filter(|name| !name.is_empty()));
        } else if heap.of_kind(word, heap.layout.kinds.oddball).is_some() {
            previous = None;
        } else {
            break;
        }
    }
    let start = if heap.layout.scope_has_position_first {
        heap.field(scope, 8 + (heap.layout.scope_variables - 2) * 8).and_then(small)
    } else {
        start
    };
    (name, start.and_then(|start| u32::try_from(start).ok()))
}

/// Places of bytecode by its offset in frames, the first of them for what comes before.
pub(super) fn bytecode_lines(
    heap: &Heap<'_, impl Memory>,
    shared: u64,
    function: &SharedFunction,
) -> Option<Vec<(u32, Spot)>> {
    let bytecode = bytecode_of(heap, heap.field(shared, SHARED_DATA)?)?;
    let table = heap.array_bytes(heap.field(bytecode, heap.layout.bytecode_positions)?, TABLE_BYTES_MAX)?;
    // Offsets in frames are those of tagged pointers.
    let data = u32::try_from(heap.layout.bytecode_data.checked_sub(1)?).ok()?;
    let lines = entries(&table).into_iter().filter_map(|entry| {
        let spot = function.spot(entry.position.unit?)?;
        Some((entry.offset.checked_add(data)?, spot))
    });
    Some(lines.collect())
}

/// The bytecode that a word refers to, maybe by way of code or other data.
pub(super) fn bytecode_of(heap: &Heap<'_, impl Memory>, mut word: u64) -> Option<u64> {
    let kinds = &heap.layout.kinds;
    for _ in 0..3 {
        let (object, kind) = heap.object(word)?;
        if kind == kinds.bytecode {
            return Some(object);
        } else if kind == kinds.interpreter_data {
            word = heap.field(object, INTERPRETER_DATA_BYTECODE)?;
        } else if kind == kinds.code {
            word = heap.field(object, heap.layout.code.data)?;
        } else {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(units: &[u16]) -> Script {
        Script { identity: [0; 2], file: None, line_ends: line_ends(units), translated: None }
    }

    #[test]
    fn lines_end_as_in_the_language() {
        let units: Vec<u16> = "a\nb\r\nc\rd\u{2028}xe".encode_utf16().collect();
        let script_read = script(&units);
        let at = ["a", "b", "c", "d", "e"].map(|letter| {
            let text = String::from_utf16(&units).expect("valid");
            let before = text.find(letter).expect("there");
            let spot = script_read.spot(u32::try_from(text[..before].encode_utf16().count()).expect("short"));
            spot.map(|spot| (spot.line, spot.column))
        });
        assert_eq!(at, [(1, 0), (2, 0), (3, 0), (4, 0), (5, 1)].map(Some));
        assert_eq!(script(&[]).spot(3), None);
    }

    #[test]
    fn names_are_found_before_parameters() {
        let found = |source: &str, name: &str| {
            let [source, name] = [source, name].map(|text| text.encode_utf16().collect::<Vec<u16>>());
            name_before(&source, &name)
        };
        for (source, name, at) in [
            ("function leak", "leak", 9),
            ("const a=", "a", 6),
            ("const a = async ", "a", 6),
            ("const a=async function", "a", 6),
            ("{ a: function* ", "a", 2),
            (";#a", "#a", 1),
            ("var a=(", "a", 4),
        ] {
            assert_eq!(found(source, name), Some(at), "{source}");
        }
        for (source, name) in [("function leaka", "a"), ("", "a"), ("f(", "a"), ("x", ""), ("a=b.c=", "a")] {
            assert_eq!(found(source, name), None, "{source}");
        }
    }
}
