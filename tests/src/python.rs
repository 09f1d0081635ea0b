//! Stacks of `targets/frames.py` as CPython describes them, and as a report has them.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::report::{Callsite, Frame, Process};

/// Functions, files and lines, the innermost first.
pub type Stack = Vec<(String, String, u32)>;
/// Number of blocks and bytes.
pub type Sums = BTreeMap<Stack, [u64; 2]>;

/// Smallest mean size of the script's blocks.
const BYTES_MIN: u64 = 50_000;

/// Stacks that the script describes at least.
pub const STACKS_MIN: usize = 40;

/// A block as the interpreter describes it.
#[derive(Debug, Deserialize)]
struct Block {
    bytes: u64,
    stack: Stack,
}

/// What the script has written: a line of JSON per block, of at least so many stacks.
pub fn described(text: &str, stacks_min: usize) -> Result<Sums, String> {
    let mut sums = Sums::new();
    for line in text.lines() {
        let block: Block =
            serde_json::from_str(line).map_err(|error| format!("the target's line `{line}`: {error}"))?;
        add(&mut sums, block.stack, [1, block.bytes]);
    }
    if sums.len() >= stacks_min { Ok(sums) } else { Err(format!("the target describes {} stacks", sums.len())) }
}

/// Adds a number of blocks and their bytes.
pub fn add(sums: &mut Sums, stack: Stack, [count, bytes]: [u64; 2]) {
    let sum = sums.entry(stack).or_default();
    *sum = [sum[0] + count, sum[1] + bytes];
}

/// Whether an interpreter executes the function.
pub fn is_interpreted(frame: &&Frame) -> bool {
    frame.kind.as_deref() == Some("interpreted")
}

/// The functions that CPython executed.
pub fn interpreted(callsite: &Callsite) -> Stack {
    let location = |frame: &Frame| {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        (text(&frame.function), text(&frame.file), frame.line.unwrap_or(0))
    };
    callsite.stack.iter().filter(is_interpreted).map(location).collect()
}

/// Large blocks by the Python functions that allocated them: those of the script. Their totals are exact at every interval that is
/// smaller than they are.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers of blocks and bytes")]
pub fn recorded(process: &Process) -> Sums {
    let mut sums = Sums::new();
    for callsite in &process.callsites {
        let totals = [&callsite.totals.alloc_count, &callsite.totals.alloc_bytes];
        let [count, bytes] = totals.map(|number| number.as_f64().unwrap_or(0.0).round() as u64);
        let stack = interpreted(callsite);
        if !stack.is_empty() && count > 0 && bytes / count >= BYTES_MIN {
            add(&mut sums, stack, [count, bytes]);
        }
    }
    sums
}

/// Stacks that are expected and recorded with another number of blocks, or not at all; and recorded ones of the script that are not
/// expected.
pub fn differing<'a>(expected: &'a Sums, recorded: &'a Sums) -> [Vec<(&'a Stack, &'a [u64; 2])>; 2] {
    let missing = expected.iter().filter(|&(stack, sums)| recorded.get(stack) != Some(sums)).collect();
    // CPython's compiler allocates large blocks too.
    let is_by_script = |stack: &Stack| expected.keys().any(|known| known[0] == stack[0]);
    let others = recorded.iter().filter(|&(stack, _)| is_by_script(stack) && !expected.contains_key(stack)).collect();
    [missing, others]
}
