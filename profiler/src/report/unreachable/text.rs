//! A check in words, for people and for logs. Programs read the JSON, or the last line alone, whose words do not change.

use std::io;

use super::{HeapKnowledge, Leak, Precision, Sum, Unreachable};
use crate::model::{Frame, TypeEvidence, TypeName};
use crate::report::summary::{HEADING, PLAIN, Page, WARNING};
use crate::report::{ReportError, text};

/// Bytes in a row of contents.
const ROW_BYTES: usize = 16;

/// Most characters of a type's name: a line that is longer hides what stands behind it.
const TYPE_CHARS_MAX: usize = 200;

/// Characters of a function's name that are shown even where the terminal has to break the line.
const FUNCTION_CHARS_MIN: usize = 40;

/// Gaps and caveats of each kind that are listed.
const REMARKS_MAX: usize = 10;

/// How a check is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Style {
    /// The terminal's width, in columns; without one, lines are as long as they need to be.
    pub width: Option<usize>,
    /// ANSI escapes may be used.
    pub colour: bool,
    /// Blocks' first bytes are shown, as far as they are known.
    pub contents: bool,
}

/// Writes a check, with `\n` after each line.
pub(crate) fn write_text(check: &Unreachable, style: Style, out: &mut dyn io::Write) -> Result<(), ReportError> {
    let mut text = Text { page: Page::new(style.width, style.colour), style };
    text.header(check);
    for heap in &check.heaps {
        text.heap(heap, check.watched_ns);
    }
    text.remarks("caveat: ", &check.caveats);
    for leak in &check.leaks {
        text.page.gap();
        text.leak(check, leak);
        // As it comes: of 100,000 leaks the whole text is large.
        out.write_all(std::mem::take(&mut text.page.text).as_bytes())?;
    }
    text.footer(check);
    out.write_all(text.page.text.as_bytes())?;
    Ok(())
}

struct Text {
    page: Page,
    style: Style,
}

impl Text {
    /// A line as wide as the terminal at most.
    fn line(&mut self, style: anstyle::Style, line: &str) {
        match self.style.width {
            Some(width) => self.page.line(style, &text::cut(line, width)),
            None => self.page.line(style, line),
        }
    }

    fn header(&mut self, check: &Unreachable) {
        let Sum { count, bytes } = check.leaked;
        let line = match (count, check.known.count) {
            (0, 0) => "no unreachable allocation: none is known, so nothing could be looked at".to_owned(),
            (0, _) => format!("no unreachable allocation among {}", amount(check.known)),
            _ => format!("{} in {}", size(bytes), text::counted(count, "unreachable allocation")),
        };
        self.line(HEADING, &line);
        let process = check.target().map_or_else(String::new, |target| {
            let command = text::printable(&target.command);
            format!("process {} `{}` · ", target.pid, text::cut(&command, TYPE_CHARS_MAX))
        });
        let when = if check.at_exit { "as it ended, " } else { "" };
        let paused = format!("stopped for {} (snapshot: {})", text::duration(check.pause_ns), check.method);
        self.line(PLAIN, &format!("{process}{when}{} · {paused}", text::moment(check.taken_unix_ns)));
        if check.indirect().count > 0 {
            let (direct, indirect) = (amount(check.direct), amount(check.indirect()));
            self.line(PLAIN, &format!("direct: {direct} · indirect, held by those alone: {indirect}"));
        }
        if check.profile.interval_bytes > 1 {
            let every = text::round_size(check.profile.interval_bytes);
            self.line(WARNING, &format!("one block per {every} is watched: others have no stack, and are unknown where heaps were not walked"));
        }
        if check.suppressed.count > 0 {
            self.line(PLAIN, &format!("suppressed: {}", amount(check.suppressed)));
        }
    }

    /// What is known of a heap, and how.
    fn heap(&mut self, heap: &HeapKnowledge, watched_ns: Option<u64>) {
        let since = watched_ns.map(text::duration);
        let (style, how) = match (heap.precision, since) {
            (Precision::Watched, _) => (PLAIN, "all of its blocks, each seen to be made".to_owned()),
            (Precision::Walked, None) => {
                (PLAIN, "all of its blocks, from the allocator's bookkeeping; none has a stack".to_owned())
            }
            (Precision::Walked, Some(since)) => (
                PLAIN,
                format!("all of its blocks, from the allocator's bookkeeping; those of the last {since} have a stack"),
            ),
            (Precision::Partial, None) => {
                (WARNING, "none of its blocks could be found: it counts as reachable".to_owned())
            }
            (Precision::Partial, Some(since)) => (
                WARNING,
                format!("the blocks of the last {since} alone; older ones, and what they hold, count as reachable"),
            ),
        };
        self.line(style, &format!("heap {}: {} known: {how}", text::printable(&heap.name), amount(heap.known)));
        self.remarks("  not looked through: ", &heap.gaps);
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
        let line = format!("{} unreachable at {:#x}{known}{age}", size(leak.size_bytes), leak.address);
        self.line(HEADING, &line);
        if leak.cycle_count > 1 {
            let count = text::count(leak.cycle_count);
            self.line(PLAIN, &format!("  in a circle of {count} allocations that hold each other"));
        }
        self.referencing(leak.referenced);
        if leak.similar.count > 0 {
            let Sum { count, bytes } = leak.similar;
            let count = text::counted(count, "allocation");
            self.line(PLAIN, &format!("  and {} similar unreachable bytes in {count}", text::count(bytes)));
        }
        self.referencing(leak.similar_referenced);
        if self.style.contents && !leak.contents.is_empty() {
            self.contents(leak);
        }
        self.stack(check, leak);
    }

    fn referencing(&mut self, sum: Sum) {
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

    /// Frames as sanitizers print them, so that what reads theirs reads these.
    fn stack(&mut self, check: &Unreachable, leak: &Leak) {
        let stack = check.callsite(leak).map_or(&[][..], |callsite| &callsite.stack);
        if !leak.watched {
            // What stands for its stack says why there is none.
            let frame = stack.first().and_then(|id| check.profile.frames.get(id.0 as usize));
            let why = frame.and_then(|frame| frame.function.as_deref()?.strip_prefix('[')?.strip_suffix(']'));
            return self.line(PLAIN, &format!("    {}: no stack", why.unwrap_or("made before heapbpf watched")));
        }
        if stack.is_empty() {
            return self.line(PLAIN, "    its stack was lost");
        }
        for (number, id) in stack.iter().enumerate() {
            let Some(frame) = check.profile.frames.get(id.0 as usize) else { continue };
            let (start, place) = (format!("    #{number} {:#x}", frame.address), place(frame));
            let function = function(
                frame,
                self.style.width.map(|width| {
                    // What else is in the line is short, and worth more than the end of a long name.
                    let others = start.chars().count() + place.chars().count() + " in ".len();
                    width.saturating_sub(others).max(FUNCTION_CHARS_MIN)
                }),
            );
            self.page.line(PLAIN, &format!("{start}{function}{place}"));
        }
    }

    /// How the next check gets stacks, where leaks that are shown have none because they were made before.
    fn no_stacks(&mut self, check: &Unreachable) {
        let is_complete = check.heaps.iter().all(|heap| heap.precision == Precision::Watched);
        if is_complete || check.at_exit || check.leaks.iter().all(|leak| leak.watched) {
            return;
        }
        let Some(target) = check.target() else { return };
        self.line(PLAIN, "stacks are known of what is made while heapbpf watches:");
        self.line(PLAIN, &format!("  heapbpf leaks --pid {} --watch 60s", target.pid));
        self.line(PLAIN, "  heapbpf leaks -- COMMAND");
    }

    fn footer(&mut self, check: &Unreachable) {
        self.page.gap();
        let more = check.leak_count.saturating_sub(check.leaks.len() as u64);
        if more > 0 {
            self.line(PLAIN, &format!("{} not shown (`--limit`)", text::counted(more, "more leak")));
        }
        self.no_stacks(check);
        // Never cut or coloured, numbers without separators and nouns without numbers: for whoever greps.
        let (leaked, known) = (check.leaked, check.known);
        let line = format!(
            "{} bytes in {} allocations unreachable out of {} bytes in {} allocations",
            leaked.bytes, leaked.count, known.bytes, known.count
        );
        self.page.line(PLAIN, &line);
    }
}

/// `1 byte`, `4,096 bytes (4.0 KiB)`.
fn size(bytes: u64) -> String {
    let exact = text::counted(bytes, "byte");
    if bytes < 1024 { exact } else { format!("{exact} ({})", text::size(bytes)) }
}

/// `3 allocations of 96 B`.
fn amount(sum: Sum) -> String {
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

/// ` in insert`, where its name is known.
fn function(frame: &Frame, chars_max: Option<usize>) -> String {
    match frame.function.as_deref().map(text::printable) {
        Some(name) if !name.is_empty() => format!(" in {}", text::cut(&name, chars_max.unwrap_or(usize::MAX))),
        _ => String::new(),
    }
}

/// ` /src/cache.c:42 (/usr/bin/cached+0x1234)`, as far as it is known.
fn place(frame: &Frame) -> String {
    let mut place = String::new();
    if let Some(file) = &frame.file {
        place.push(' ');
        place.push_str(&text::printable(file));
        place.extend(frame.line.map(|line| format!(":{line}")));
    }
    if let Some(module) = &frame.module {
        let offset = frame.module_offset.map(|offset| format!("+{offset:#x}")).unwrap_or_default();
        place.push_str(&format!(" ({}{offset})", text::printable(module)));
    }
    if frame.inlined {
        place.push_str(" [inlined]");
    }
    place
}

/// How old a block is. Ages are known to a sixtieth of a second.
fn age(age_ns: u64) -> String {
    const KNOWN_NS: u64 = 1 << 24;
    if age_ns < KNOWN_NS { ", just made".to_owned() } else { format!(", {} old", text::duration(age_ns)) }
}
