//! The text of a leak check. Programs read the JSON, or the last line, whose wording is stable.

use std::io;

use heapbpf_ledger::model::{Frame, TypeEvidence, TypeName};

use super::{BlockTotals, HeapKnowledge, Leak, Precision, Unreachable};
use crate::page::{HEADING, PLAIN, Page, WARNING};
use crate::text;

const ROW_BYTES: usize = 16;

/// Maximum characters of a type's name, so that the rest of the line stays visible.
const TYPE_CHARS_MAX: usize = 200;

/// Minimum characters of a function's name, even if the terminal wraps the line.
const FUNCTION_CHARS_MIN: usize = 40;
const REMARKS_MAX: usize = 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// The terminal's width, in columns; without one, lines are not truncated.
    pub width: Option<usize>,
    pub colour: bool,
    pub contents: bool,
}

pub fn write_text(check: &Unreachable, style: Style, out: &mut dyn io::Write) -> io::Result<()> {
    let mut text = Text { page: Page::new(style.width, style.colour), style };
    text.header(check);
    for heap in &check.heaps {
        text.heap(heap, check.watched_ns);
    }
    text.remarks("caveat: ", &check.caveats);
    for leak in &check.leaks {
        text.page.gap();
        text.leak(check, leak);
        // Write leaks one by one: the text of 100,000 leaks is large.
        out.write_all(std::mem::take(&mut text.page.text).as_bytes())?;
    }
    text.footer(check);
    out.write_all(text.page.text.as_bytes())
}

struct Text {
    page: Page,
    style: Style,
}

impl Text {
    fn line(&mut self, style: anstyle::Style, line: &str) {
        match self.style.width {
            Some(width) => self.page.line(style, &text::cut(line, width)),
            None => self.page.line(style, line),
        }
    }

    fn header(&mut self, check: &Unreachable) {
        let BlockTotals { count, bytes } = check.leaked;
        let line = match (count, check.known.count) {
            (0, 0) => "no unreachable allocation: no allocation is known".to_owned(),
            (0, _) => format!("no unreachable allocation among {}", amount(check.known)),
            _ => format!("{} in {}", size(bytes), text::counted(count, "unreachable allocation")),
        };
        self.line(HEADING, &line);
        let process = check.target().map_or_else(String::new, |target| {
            let command = text::printable(&target.facts.command);
            format!("process {} `{}` · ", target.facts.pid, text::cut(&command, TYPE_CHARS_MAX))
        });
        let when = match &check.signal {
            Some(signal) => format!("killed by {signal}, "),
            None if check.at_exit => "at exit, ".to_owned(),
            None => String::new(),
        };
        let paused = format!("stopped for {} (snapshot: {})", text::duration(check.pause_ns), check.method);
        self.line(PLAIN, &format!("{process}{when}{} · {paused}", text::moment(check.taken_unix_ns)));
        if check.indirect().count > 0 {
            let (direct, indirect) = (amount(check.direct), amount(check.indirect()));
            self.line(PLAIN, &format!("direct: {direct} · indirect, referenced by direct ones only: {indirect}"));
        }
        if check.unchecked_children > 0 {
            let count = text::counted(check.unchecked_children, "child process");
            let verb = if check.unchecked_children == 1 { "was" } else { "were" };
            self.line(WARNING, &format!("incomplete: {count} of the command {verb} not checked"));
        }
        if check.profile.interval_bytes > 1 {
            let every = text::round_size(check.profile.interval_bytes);
            self.line(WARNING, &format!("one block per {every} is sampled: others have no stack, and are unknown in heaps that were not walked"));
        }
        if check.suppressed.count > 0 {
            self.line(PLAIN, &format!("suppressed: {}", amount(check.suppressed)));
        }
    }

    fn heap(&mut self, heap: &HeapKnowledge, watched_ns: Option<u64>) {
        let since = watched_ns.map(text::duration);
        let style = if heap.precision == Precision::Partial { WARNING } else { PLAIN };
        let how = match (heap.precision, since) {
            (Precision::Watched, _) => "all of its blocks, from recorded allocations".to_owned(),
            (Precision::Walked, since) => {
                let stacks = since
                    .map_or("none has a stack".to_owned(), |since| format!("those of the last {since} have a stack"));
                format!("all of its blocks, from the allocator's data structures; {stacks}")
            }
            (Precision::Partial, None) if heap.known.count > 0 => {
                "only a part of its blocks could be found; the rest, and everything it references, counts as reachable"
                    .to_owned()
            }
            (Precision::Partial, None) => "none of its blocks could be found: it counts as reachable".to_owned(),
            (Precision::Partial, Some(since)) => {
                let older = "older ones, and everything they reference, count as reachable";
                format!("only the blocks of the last {since}; {older}")
            }
        };
        self.line(style, &format!("heap {}: {} known: {how}", text::printable(&heap.name), amount(heap.known)));
        self.remarks("  not walked: ", &heap.gaps);
    }

    fn remarks(&mut self, prefix: &str, remarks: &[String]) {
        for remark in remarks.iter().take(REMARKS_MAX) {
            self.line(WARNING, &format!("{prefix}{}", text::printable(remark)));
        }
        if remarks.len() > REMARKS_MAX {
            let more = text::count((remarks.len() - REMARKS_MAX) as u64);
            self.line(WARNING, &format!("{prefix}and {more} more"));
        }
    }

    fn leak(&mut self, check: &Unreachable, leak: &Leak) {
        let known = leak.type_name.as_ref().map(of_type).unwrap_or_default();
        let age = leak.age_ns.map(age).unwrap_or_default();
        let bytes = if leak.usable_size { usable(leak.size_bytes) } else { size(leak.size_bytes) };
        let line = format!("{bytes} unreachable at {:#x}{known}{age}", leak.address);
        self.line(HEADING, &line);
        if leak.cycle_count > 1 {
            let count = text::count(leak.cycle_count);
            self.line(PLAIN, &format!("  in a cycle of {count} allocations that reference each other"));
        }
        self.referencing(leak.referenced);
        if leak.similar.count > 0 {
            let BlockTotals { count, bytes } = leak.similar;
            let count = text::counted(count, "allocation");
            self.line(PLAIN, &format!("  and {} similar unreachable bytes in {count}", text::count(bytes)));
        }
        self.referencing(leak.similar_referenced);
        if self.style.contents && !leak.contents.is_empty() {
            self.contents(leak);
        }
        self.stack(check, leak);
    }

    fn referencing(&mut self, sum: BlockTotals) {
        if sum.count > 0 {
            let count = text::counted(sum.count, "allocation");
            self.line(PLAIN, &format!("  referencing {} unreachable bytes in {count}", text::count(sum.bytes)));
        }
    }

    fn contents(&mut self, leak: &Leak) {
        let shown = leak.contents.len() as u64;
        let first = if shown < leak.size_bytes { format!("first {shown} bytes of ") } else { String::new() };
        self.line(PLAIN, &format!("  {first}contents:"));
        for (address, row) in (leak.address..).step_by(ROW_BYTES).zip(leak.contents.chunks(ROW_BYTES)) {
            let mut digits: String = row.iter().map(|byte| format!(" {byte:02x}")).collect();
            digits.extend(std::iter::repeat_n("   ", ROW_BYTES - row.len()));
            let letters: String =
                row.iter().map(|&byte| if matches!(byte, b' '..=b'~') { char::from(byte) } else { '.' }).collect();
            self.line(PLAIN, &format!("    {address:#x}:{digits}  {letters}"));
        }
    }

    /// Prints frames like the sanitizers, so that tools can parse them.
    fn stack(&mut self, check: &Unreachable, leak: &Leak) {
        let stack = check.callsite(leak).map_or(&[][..], |callsite| &callsite.stack);
        if !leak.watched {
            // The placeholder frame names the reason.
            let frame = stack.first().and_then(|id| check.profile.frames.get(id.0 as usize));
            let why = frame.and_then(|frame| frame.function.as_deref()?.strip_prefix('[')?.strip_suffix(']'));
            return self.line(PLAIN, &format!("    {}: no stack", why.unwrap_or("allocated before recording started")));
        }
        if stack.is_empty() {
            return self.line(PLAIN, "    stack lost");
        }
        for (number, id) in stack.iter().enumerate() {
            let Some(frame) = check.profile.frames.get(id.0 as usize) else { continue };
            let (start, location) = (format!("    #{number} {:#x}", frame.address), location(frame));
            let function = function(
                frame,
                self.style.width.map(|width| {
                    // The other parts of the line are short, and more useful than the end of a long name.
                    let others = start.chars().count() + location.chars().count() + " in ".len();
                    width.saturating_sub(others).max(FUNCTION_CHARS_MIN)
                }),
            );
            self.page.line(PLAIN, &format!("{start}{function}{location}"));
        }
    }

    fn no_stacks(&mut self, check: &Unreachable) {
        let is_complete = check.heaps.iter().all(|heap| heap.precision == Precision::Watched);
        if is_complete || check.at_exit || check.leaks.iter().all(|leak| leak.watched) {
            return;
        }
        let Some(target) = check.target() else { return };
        self.line(PLAIN, "only blocks allocated while heapbpf records have stacks:");
        self.line(PLAIN, &format!("  heapbpf leaks --pid {} --watch 60s", target.facts.pid));
        self.line(PLAIN, "  heapbpf leaks -- COMMAND");
    }

    fn footer(&mut self, check: &Unreachable) {
        self.page.gap();
        let more = check.leak_count.saturating_sub(check.leaks.len() as u64);
        if more > 0 {
            self.line(PLAIN, &format!("{} not shown (`--limit`)", text::counted(more, "more leak")));
        }
        self.no_stacks(check);
        // Stable for grep: never truncated or coloured, numbers without separators, nouns always in the plural.
        let (leaked, known) = (check.leaked, check.known);
        let line = format!(
            "{} bytes in {} allocations unreachable out of {} bytes in {} allocations",
            leaked.bytes, leaked.count, known.bytes, known.count
        );
        self.page.line(PLAIN, &line);
    }
}

fn size(bytes: u64) -> String {
    let exact = text::counted(bytes, "byte");
    if bytes < 1024 { exact } else { format!("{exact} ({})", text::size(bytes)) }
}

fn usable(bytes: u64) -> String {
    let exact = text::counted(bytes, "usable byte");
    if bytes < 1024 { exact } else { format!("{exact} ({})", text::size(bytes)) }
}

fn amount(sum: BlockTotals) -> String {
    format!("{} of {}", text::counted(sum.count, "allocation"), text::size(sum.bytes))
}

fn of_type(known: &TypeName) -> String {
    let name = text::printable(&known.name);
    let name = text::cut(&name, TYPE_CHARS_MAX);
    match known.evidence {
        TypeEvidence::Vtable => format!(": a {name}"),
        TypeEvidence::Stack => format!(": of {name}, by its stack"),
    }
}

fn function(frame: &Frame, chars_max: Option<usize>) -> String {
    match frame.function.as_deref().map(text::printable) {
        Some(name) if !name.is_empty() => format!(" in {}", text::cut(&name, chars_max.unwrap_or(usize::MAX))),
        _ => String::new(),
    }
}

/// ` /src/cache.c:42 (/usr/bin/cached+0x1234)`, as far as known.
fn location(frame: &Frame) -> String {
    let mut location = String::new();
    if let Some(file) = &frame.file {
        location.push(' ');
        location.push_str(&text::printable(file));
        location.extend(frame.line.map(|line| format!(":{line}")));
    }
    if let Some(module) = &frame.module {
        let offset = frame.module_offset.map(|offset| format!("+{offset:#x}")).unwrap_or_default();
        location.push_str(&format!(" ({}{offset})", text::printable(module)));
    }
    if frame.inlined {
        location.push_str(" [inlined]");
    }
    location
}

/// Formats an age. Its resolution is a sixtieth of a second.
fn age(age_ns: u64) -> String {
    const RESOLUTION_NS: u64 = 1 << 24;
    if age_ns < RESOLUTION_NS { ", just allocated".to_owned() } else { format!(", {} old", text::duration(age_ns)) }
}
