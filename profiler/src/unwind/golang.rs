//! Rules for Go's code. It has no unwind information that C code could use, but since Go 1.7 its functions keep frame pointers.
//!
//! Calls of C code run on the stack of the thread (`runtime.asmcgocall`), calls from C code on that of a goroutine
//! (`runtime.cgocallback`). In both, the frame pointer still points to the frame on the other stack.

use std::ops::Range;

use super::cfi::{Function, FunctionRow, Functions};
use super::image::Image;
use super::table::{END, FRAME_POINTER, GAP, RuleTable};

/// Continue on another stack, which may be at a lower address.
const SWITCHES: [&str; 4] = ["runtime.asmcgocall", "runtime.cgocallback", "runtime.mcall", "runtime.systemstack"];
/// Called first on their stacks.
const FIRST: [&str; 3] = ["runtime.goexit", "runtime.mstart", "runtime.rt0_go"];
/// Called by C code; saves its registers without a frame pointer.
const CALLED_BY_C: &str = "crosscall2";
const CALLED_BY_C_BYTES_MAX: u64 = 512;

/// Adds functions without gaps between them; returns the address and length of code that determined a rule.
pub(super) fn add(image: &Image<'_>, functions: &mut Functions, rules: &mut RuleTable) -> Vec<(u64, u32)> {
    let Some(known) = image.go_functions() else { return Vec::new() };
    let switch = image.processor.switched_stack().and_then(|rule| rules.number(rule));
    let mut samples = Vec::new();
    let mut spans: Vec<(Range<u64>, u16)> = Vec::new();
    for function in known.iter() {
        let range = function.range.clone();
        let rule = match &*function.name {
            name if SWITCHES.contains(&name) => switch.unwrap_or(GAP),
            name if FIRST.contains(&name) => END,
            CALLED_BY_C => {
                let length = u32::try_from((range.end - range.start).min(CALLED_BY_C_BYTES_MAX)).unwrap_or(0);
                samples.push((range.start, length));
                let rule = image.processor.rule_at_first_call(&image.read_code(range.start, length), range.start);
                rule.and_then(|rule| rules.number(rule)).unwrap_or(GAP)
            }
            _ => FRAME_POINTER,
        };
        match spans.last_mut() {
            Some((last, same)) if *same == rule && last.end == range.start => last.end = range.end,
            _ => spans.push((range, rule)),
        }
    }
    for (range, rule) in spans {
        let is_code = image.code.iter().any(|code| code.start <= range.start && range.end <= code.end);
        let Ok(first_row) = u32::try_from(functions.rows.len()) else { break };
        if is_code && range.start < range.end {
            functions.rows.push(FunctionRow { offset: 0, rule });
            functions.functions.push(Function { start: range.start, end: range.end, first_row, row_count: 1 });
        }
    }
    samples
}
