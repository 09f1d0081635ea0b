//! A stack in one line for people: `cache_insert (cache.c:42) ← handle_request ← main`.
//!
//! Owns which frames are worth naming. It leaves frames out, so it is for the terminal; files carry whole stacks.

use profiler_common::stack::StackEnd;

use super::function;
use super::text;
use crate::model::{Frame, FrameId, Profile};

/// Functions in a line; terminals cut it sooner.
const FUNCTIONS_MAX: usize = 8;

/// Characters of one function's name, so that one monstrous name does not push out its callers.
const NAME_CHARS_MAX: usize = 60;

/// The stack from its leaf outwards: named functions of the program, or what there is.
pub(super) fn chain(profile: &Profile, stack: &[FrameId], end: Option<StackEnd>) -> String {
    if stack.is_empty() {
        return missing(end).unwrap_or_else(|| "[no frames]".to_owned());
    }
    let frames: Vec<&Frame> = stack.iter().map(|&id| profile.frame(id)).collect();
    let mut names = collapse(&worth_naming(&frames));
    if names.len() > FUNCTIONS_MAX {
        names.truncate(FUNCTIONS_MAX);
        names.push("…".to_owned());
    }
    names.extend(missing(end));
    names.join(" ← ")
}

/// The program's named frames; where there are none, its frames; where there are none either, all frames.
fn worth_naming<'a>(frames: &[&'a Frame]) -> Vec<&'a Frame> {
    let program: Vec<&Frame> = frames.iter().copied().filter(|frame| !function::is_plumbing(frame)).collect();
    let named: Vec<&Frame> = program.iter().copied().filter(|frame| frame.function.is_some()).collect();
    match (named.is_empty(), program.is_empty()) {
        (false, _) => named,
        (true, false) => program,
        (true, true) => frames.to_vec(),
    }
}

/// The frames' names, the first one with its source line; what calls itself is named once, with how often.
fn collapse(frames: &[&Frame]) -> Vec<String> {
    let mut names: Vec<(String, usize)> = Vec::new();
    for frame in frames {
        let name = name(frame);
        match names.last_mut() {
            Some((last, times)) if *last == name => *times += 1,
            _ => names.push((name, 1)),
        }
    }
    let place = frames.first().and_then(|frame| place(frame));
    let place = std::iter::once(place).chain(std::iter::repeat(None));
    names
        .into_iter()
        .zip(place)
        .map(|((name, times), place)| {
            let times = if times > 1 { format!(" ×{times}") } else { String::new() };
            let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
            format!("{name}{times}{place}")
        })
        .collect()
}

fn name(frame: &Frame) -> String {
    let name = match frame.function.as_deref() {
        Some(function) if !text::printable(function).is_empty() => function::short(&text::printable(function)),
        _ => Frame { function: None, ..frame.clone() }.label(),
    };
    text::cut(&text::printable(&name), NAME_CHARS_MAX).into_owned()
}

/// `file.c:42`, without the file's folders.
fn place(frame: &Frame) -> Option<String> {
    let file = text::printable(frame.file.as_deref()?);
    let file = text::cut(crate::model::base_name(&file), NAME_CHARS_MAX).into_owned();
    Some(match frame.line {
        Some(line) => format!("{file}:{line}"),
        None => file,
    })
}

/// What is missing from the stack, if something is.
fn missing(end: Option<StackEnd>) -> Option<String> {
    match end {
        None => Some("[stack lost]".to_owned()),
        Some(StackEnd::Complete) => None,
        Some(end) => Some(format!("[unwind: {}]", end.counter().name())),
    }
}
