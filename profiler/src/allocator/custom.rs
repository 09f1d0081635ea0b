//! User-defined functions: `[HEAP=]LIB:FUNCTION(KEY=VALUE, …)[@INTERVAL]` (docs/hooks.md).
//! The presence of `size`, `ptr` and `old` determines the shape: a function that takes a block frees it, a function that returns
//! a block allocates, and one that does both reallocates. `entry` leaves the return alone: the block is an argument, or not
//! known.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use profiler_common::arch::ARGUMENTS;
use profiler_common::hook::CallShape;

use super::no_return;
use super::selection::{ALL, GO, MMAP, PAGES, interval_bytes};
use super::spec::HookSpec;
use crate::process::pattern::ModulePattern;

const HEAP_NAME_BYTES_MAX: usize = 64;
/// Name of the heap of functions in any module, unless one is given.
const DEFAULT_HEAP: &str = "custom";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomHook {
    pub heap: String,
    pub modules: ModulePattern,
    /// The function. Its name is leaked, once per parsed hook.
    pub spec: HookSpec,
    /// Mean bytes between the heap's samples, if the interval differs from the recording's.
    pub interval_bytes: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookError {
    text: String,
    at: Range<usize>,
    reason: String,
}

/// Maximum number of characters of a text in an error, and maximum before the position.
const SHOWN_MAX: usize = 160;
const SHOWN_BEFORE_MAX: usize = 80;
/// Maximum number of characters of a reason, which may contain a mangled name.
const REASON_MAX: usize = 280;

fn start_of(text: &str, count_max: usize) -> String {
    match text.char_indices().nth(count_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl std::error::Error for HookError {}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = |range: Range<usize>| self.text.get(range).map_or(0, |part| part.chars().count());
        let (before, width) = (columns(0..self.at.start), columns(self.at.clone()).max(1));
        writeln!(f, "{}", start_of(&self.reason, REASON_MAX))?;
        // Show only the part of a long text around the position: a formatter's width is limited.
        let cut_before = before.saturating_sub(SHOWN_BEFORE_MAX);
        let (mark, mark_width) = if cut_before > 0 { ("…", 1) } else { ("", 0) };
        let from = self.text.char_indices().nth(cut_before).map_or(0, |(at, _)| at);
        writeln!(f, "  {mark}{}", start_of(&self.text[from..], SHOWN_MAX))?;
        write!(f, "  {}{}", " ".repeat(before - cut_before + mark_width), "^".repeat(width.min(SHOWN_MAX)))
    }
}

#[derive(Clone, Copy)]
struct Part<'a> {
    text: &'a str,
    start: usize,
    end: usize,
}

impl<'a> Part<'a> {
    const fn whole(text: &'a str) -> Self {
        Self { text, start: 0, end: text.len() }
    }

    fn str(self) -> &'a str {
        self.text.get(self.start..self.end).unwrap_or_default()
    }

    fn trim(self) -> Self {
        let front = self.str().len() - self.str().trim_start().len();
        Self { start: self.start + front, end: self.start + front + self.str().trim().len(), ..self }
    }

    /// The parts before and after a position, without `bytes` bytes in between.
    fn cut(self, at: usize, bytes: usize) -> (Self, Self) {
        (Self { end: self.start + at, ..self }, Self { start: self.start + at + bytes, ..self })
    }

    fn error(self, reason: impl Into<String>) -> HookError {
        HookError { text: self.text.to_owned(), at: self.start..self.end, reason: reason.into() }
    }
}

impl FromStr for CustomHook {
    type Err = HookError;

    fn from_str(text: &str) -> Result<Self, HookError> {
        let whole = Part::whole(text);
        let open = whole.str().find('(').ok_or_else(|| {
            let end = Part { start: text.len(), ..whole };
            end.error("missing `(` after the function; write it like `libx.so:x_alloc(size=arg1, ptr=ret)`")
        })?;
        let (name, _) = whole.cut(open, 0);
        let colon = name.str().rfind(':').ok_or_else(|| {
            name.error(format!("`{}` specifies no module; write `LIB:FUNCTION`, or `*:FUNCTION` for any", name.str()))
        })?;
        let (module, _) = name.cut(colon, 1);
        let (_, function) = whole.cut(colon, 1);
        let (heap, module) = split_heap(module)?;
        let module = module.trim();
        if module.str().is_empty() {
            return Err(module.error("the module is missing; write a file name like `libx.so*`, a full path, or `*`"));
        }
        let (spec, interval) = parse_function(function)?;
        let modules = ModulePattern::new(module.str());
        Ok(Self { heap: heap.unwrap_or_else(|| default_heap(&modules)), modules, spec, interval_bytes: interval })
    }
}

impl fmt::Display for CustomHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}:{}", self.heap, self.modules, function_text(&self.spec))?;
        self.interval_bytes.map_or(Ok(()), |bytes| write!(f, "@{bytes}"))
    }
}

/// Parses a function of a spec file, without module and heap: `FUNCTION(KEY=VALUE, …)`.
pub fn function(text: &str) -> Result<HookSpec, HookError> {
    let part = Part::whole(text).trim();
    let (spec, interval) = parse_function(part)?;
    let behind = Part { start: part.str().rfind('@').map_or(part.start, |at| part.start + at), ..part };
    if interval.is_some() {
        Err(behind.error("the interval belongs to the heap: write it as `interval`"))
    } else {
        Ok(spec)
    }
}

pub(crate) fn check_heap_name(name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+');
    if name.is_empty() || name.len() > HEAP_NAME_BYTES_MAX || !name.bytes().all(allowed) {
        return Err(format!(
            "`{name}` is not a valid heap name; use letters, digits, `_`, `-`, `.` and `+`, at most {HEAP_NAME_BYTES_MAX}"
        ));
    }
    if matches!(name, MMAP | PAGES | GO | ALL) {
        return Err(format!("`{name}` is reserved; choose another heap name"));
    }
    Ok(())
}

/// Splits off a heap's name, which ends at the first `=`. In a full path, `=` is part of the path.
fn split_heap(module: Part<'_>) -> Result<(Option<String>, Part<'_>), HookError> {
    let Some(equals) = module.str().find('=').filter(|_| !module.trim().str().starts_with('/')) else {
        return Ok((None, module));
    };
    let (heap, module) = module.cut(equals, 1);
    let heap = heap.trim();
    check_heap_name(heap.str()).map_err(|reason| heap.error(reason))?;
    Ok((Some(heap.str().to_owned()), module))
}

/// Derives a heap's name from the module's file name without version and wildcards.
fn default_heap(modules: &ModulePattern) -> String {
    let file = modules.as_str().rsplit('/').next().unwrap_or_default();
    let stem = file.split(".so").next().unwrap_or_default().trim_matches(['*', '?', '.']);
    if check_heap_name(stem).is_ok() { stem.to_owned() } else { DEFAULT_HEAP.to_owned() }
}

fn parse_function(part: Part<'_>) -> Result<(HookSpec, Option<u32>), HookError> {
    let text = part.str();
    let open =
        text.find('(').ok_or_else(|| part.error("missing `(` after the function; write it like `x_free(old=arg1)`"))?;
    let (name, inside) = part.cut(open, 1);
    let name = name.trim();
    let symbol = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$');
    if name.str().is_empty() || !name.str().bytes().all(symbol) {
        let reason = "is not a function's symbol; for C++ and Rust give the mangled name, as `nm -D` prints it";
        return Err(name.error(format!("`{}` {reason}", name.str())));
    }
    let close = inside.str().find(')').ok_or_else(|| inside.error("missing `)` after the arguments"))?;
    let (inside, behind) = inside.cut(close, 1);
    let behind = behind.trim();
    let interval = match behind.str().strip_prefix('@') {
        Some(bytes) => Some(interval_bytes(bytes.trim()).map_err(|error| behind.error(error.to_string()))?),
        None if behind.str().is_empty() => None,
        None => {
            return Err(
                behind.error(format!("unexpected `{}` after the function; only `@INTERVAL` is allowed", behind.str()))
            );
        }
    };
    let mut keys = Keys::default();
    let mut rest = inside;
    while !rest.trim().str().is_empty() {
        let comma = rest.str().find(',').unwrap_or(rest.str().len());
        let (key, next) = rest.cut(comma, usize::from(comma < rest.str().len()));
        keys.take(key.trim())?;
        rest = next;
    }
    Ok((keys.spec(name.str(), inside)?, interval))
}

#[derive(Default)]
struct Keys {
    size: Option<usize>,
    count: Option<usize>,
    old: Option<usize>,
    out: Option<usize>,
    returned: bool,
    /// Number of the argument that is the block.
    block: Option<usize>,
    flags: Vec<&'static str>,
}

const FLAGS: [&str; 5] = ["pages", "leaf", "throws", "frees-on-failure", ENTRY];
const ENTRY: &str = "entry";

impl Keys {
    fn take(&mut self, part: Part<'_>) -> Result<(), HookError> {
        let Some(equals) = part.str().find('=') else { return self.take_flag(part) };
        let (key, value) = part.cut(equals, 1);
        let (key, value) = (key.trim(), value.trim());
        let slot = match key.str() {
            "size" => &mut self.size,
            "count" => &mut self.count,
            "old" => &mut self.old,
            "ptr" if self.returned || self.out.is_some() || self.block.is_some() => {
                return Err(key.error("duplicate `ptr`"));
            }
            "ptr" if value.str() == "ret" => {
                self.returned = true;
                return Ok(());
            }
            "ptr" => {
                if value.str().starts_with("arg") {
                    self.block = Some(argument_number(value)?);
                    return Ok(());
                }
                let Some(argument) = value.str().strip_prefix('*') else {
                    let reason = "is not a location of a block; use `ret` for the result, `*arg1` for a pointer argument, or `arg1` with `entry`";
                    return Err(value.error(format!("`{}` {reason}", value.str())));
                };
                let (_, argument) = value.cut(value.str().len() - argument.len(), 0);
                self.out = Some(argument_number(argument.trim())?);
                return Ok(());
            }
            unknown => {
                return Err(key.error(format!("unknown key `{unknown}`; valid are `size`, `count`, `ptr` and `old`")));
            }
        };
        if slot.replace(argument_number(value)?).is_some() {
            return Err(key.error(format!("duplicate `{}`", key.str())));
        }
        Ok(())
    }

    fn take_flag(&mut self, part: Part<'_>) -> Result<(), HookError> {
        let Some(flag) = FLAGS.iter().find(|flag| **flag == part.str()) else {
            let reason = "is neither `KEY=VALUE` nor one of `pages`, `leaf`, `throws`, `frees-on-failure` and `entry`";
            return Err(part.error(format!("`{}` {reason}", part.str())));
        };
        self.flags.push(flag);
        Ok(())
    }

    fn spec(&self, name: &str, inside: Part<'_>) -> Result<HookSpec, HookError> {
        let has = |flag: &str| self.flags.contains(&flag);
        if has(ENTRY) {
            return self.entry_spec(name, inside);
        }
        if let Some(block) = self.block {
            let argument = format!("arg{}", block + 1);
            return Err(inside.error(format!(
                "`ptr={argument}` requires `entry`, by which {argument} is the block; if the block is stored where {argument} points, write `ptr=*{argument}`"
            )));
        }
        let need_size =
            || self.size.ok_or_else(|| inside.error("missing `size`: which argument is the size of the block?"));
        let shaped = |function: &'static str| {
            match (self.old, self.out, self.returned) {
            (Some(old), None, true) => Ok(HookSpec::realloc(function, old, need_size()?)),
            (None, None, true) => Ok(HookSpec::alloc(function, need_size()?)),
            (None, Some(out), false) => Ok(HookSpec::alloc_out(function, out, need_size()?)),
            (Some(old), None, false) if self.size.is_none() && self.count.is_none() => {
                Ok(HookSpec::free(function, old))
            }
            (Some(_), None, false) => {
                Err(inside.error("a function that frees has only `old`; one that reallocates has `ptr=ret` too"))
            }
            (Some(_), Some(_), false) => {
                Err(inside.error("`old` requires `ptr=ret`; a block stored by `ptr=*arg` cannot be reallocated"))
            }
            (None, None, false) => {
                Err(inside.error("missing block: specify `ptr=ret` or `ptr=*argN`, `old=argN` if it frees one, or `entry` if it has none"))
            }
            (_, Some(_), true) => Err(inside.error("duplicate `ptr`")),
        }
        };
        let spec = shaped("")?;
        let reallocates = spec.shape == CallShape::Realloc;
        if has("frees-on-failure") && !reallocates {
            return Err(inside.error("`frees-on-failure` requires `old` and `ptr=ret`"));
        }
        if spec.shape.allocates()
            && let Some(reason) = no_return::reason(name)
        {
            return Err(inside.error(no_return::refusal(name, reason)));
        }
        Ok(HookSpec {
            function: leaked(name),
            count: self.count,
            page_rounded: has("pages"),
            delegates: spec.delegates && !has("leaf"),
            may_throw: has("throws"),
            frees_on_failure: has("frees-on-failure"),
            ..spec
        })
    }

    /// Parses a hook whose return is left alone.
    fn entry_spec(&self, name: &str, inside: Part<'_>) -> Result<HookSpec, HookError> {
        if self.returned || self.out.is_some() {
            let reason = "with `entry`, the block must be an argument: `ptr=argN`, or no `ptr` if it is not known";
            return Err(inside.error(format!("the result is not known at the entry; {reason}")));
        }
        if self.old.is_some() {
            return Err(inside
                .error("`old` cannot be combined with `entry`; a hook with only `old` is always one of the entry"));
        }
        if let Some(flag) = self.flags.iter().find(|flag| !matches!(**flag, ENTRY | "pages")) {
            return Err(
                inside.error(format!("`{flag}` concerns the return, which `entry` leaves alone; remove one of them"))
            );
        }
        let size = self.size.ok_or_else(|| inside.error("missing `size`: which argument is the size of the block?"))?;
        let function = leaked(name);
        let spec =
            self.block.map_or(HookSpec::entry(function, size), |block| HookSpec::entry_of(function, block, size));
        Ok(HookSpec { count: self.count, page_rounded: self.flags.contains(&"pages"), ..spec })
    }
}

fn leaked(name: &str) -> &'static str {
    Box::leak(name.to_owned().into_boxed_str())
}

/// Parses `argN`; `arg1` is argument 0.
fn argument_number(part: Part<'_>) -> Result<usize, HookError> {
    let number = part.str().strip_prefix("arg").and_then(|digits| digits.parse::<usize>().ok());
    let known = number.filter(|number| (1..=ARGUMENTS.len()).contains(number));
    known
        .map(|number| number - 1)
        .ok_or_else(|| part.error(format!("`{}` is not a valid argument; use `arg1` to `arg6`", part.str())))
}

fn function_text(spec: &HookSpec) -> String {
    let argument = |key: &str, number: usize| format!("{key}arg{}", number + 1);
    let mut keys = Vec::new();
    match (spec.shape, spec.pointer) {
        (CallShape::AllocOut, Some(out)) => keys.push(argument("ptr=*", out)),
        (CallShape::Entry, block) => keys.extend(block.map(|block| argument("ptr=", block))),
        (CallShape::Free, Some(old)) => keys.push(argument("old=", old)),
        (_, Some(old)) => keys.extend([argument("old=", old), "ptr=ret".to_owned()]),
        (_, None) => keys.push("ptr=ret".to_owned()),
    }
    if spec.shape != CallShape::Free {
        keys.push(argument("size=", spec.size));
    }
    keys.extend(spec.count.map(|count| argument("count=", count)));
    let is_entry = spec.shape == CallShape::Entry;
    let leaf = !spec.delegates && !is_entry && spec.shape != CallShape::Free;
    let flags = [spec.page_rounded, leaf, spec.may_throw, spec.frees_on_failure, is_entry];
    keys.extend(FLAGS.iter().zip(flags).filter(|(_, is_set)| *is_set).map(|(flag, _)| (*flag).to_owned()));
    format!("{}({})", spec.function, keys.join(", "))
}

#[cfg(test)]
mod tests;
