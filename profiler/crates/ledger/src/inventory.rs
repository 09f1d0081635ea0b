//! Blocks allocated before recording started. Their stacks are unknown: a stack of two frames without code stands for all blocks
//! of a size class. Its id and addresses, which no program has, follow from the size, so that a recording need not contain them.

use std::sync::Arc;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::StackId;
use profiler_common::stack::StackEnd;

use crate::ingest::event::Stack;

const ROOT: &str = "[allocated before recording]";

/// Upper bits of both ids and addresses: not canonical, so no code is there, and chosen at random, as ids are hashes.
const BASE: u64 = 0x8f1d_5a63_c49e_0000;
/// Class of the outermost frame, which all size classes share.
const ALL: u64 = 0xff;

/// Size class of a size: class `n` contains sizes of `n` bits.
fn class(size_bytes: u64) -> u64 {
    u64::from(u64::BITS - size_bytes.leading_zeros())
}

/// Class of an id or an address.
fn class_of(value: u64) -> Option<u64> {
    let class = value.wrapping_sub(BASE);
    (class <= u64::from(u64::BITS) || class == ALL).then_some(class)
}

/// The stack that stands for blocks of this size.
pub fn stack_id(size_bytes: u64) -> StackId {
    StackId(BASE + class(size_bytes))
}

pub fn is_inventory(stack: StackId) -> bool {
    class_of(stack.0).is_some()
}

pub fn stack(id: StackId) -> Stack {
    Stack { frames: Arc::new([TargetAddr(id.0), TargetAddr(BASE + ALL)]), end: StackEnd::Complete }
}

/// Whether this is the stack of blocks allocated before recording started.
pub fn is_stack(stack: &Stack) -> bool {
    matches!(*stack.frames, [of_class, all] if class_of(of_class.0).is_some() && all.0 == BASE + ALL)
}

/// Name of a frame of a stack of blocks allocated before recording started.
pub fn name(frame: TargetAddr) -> String {
    let class = class_of(frame.0).unwrap_or(ALL);
    match u32::try_from(class) {
        Ok(0) => "[0 B]".to_owned(),
        Ok(1) => "[1 B]".to_owned(),
        Ok(bits @ 2..=10) => format!("[{} to {} B]", 1 << (bits - 1), (1 << bits) - 1),
        Ok(bits @ 11..=64) => {
            const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
            let unit = (bits - 11) / 10;
            let low = 1_u32 << ((bits - 11) % 10);
            format!("[{low} to {} {}]", low * 2, UNITS[unit as usize])
        }
        _ => ROOT.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_stand_for_size_classes() {
        let named = |size_bytes| {
            let id = stack_id(size_bytes);
            let stack = stack(id);
            assert!(is_inventory(id) && is_stack(&stack));
            stack.frames.iter().map(|frame| name(*frame)).collect::<Vec<_>>()
        };
        for (size_bytes, class) in [
            (0, "[0 B]"),
            (1, "[1 B]"),
            (2, "[2 to 3 B]"),
            (127, "[64 to 127 B]"),
            (128, "[128 to 255 B]"),
            (1023, "[512 to 1023 B]"),
            (1024, "[1 to 2 KiB]"),
            ((1 << 20) - 1, "[512 to 1024 KiB]"),
            (1 << 20, "[1 to 2 MiB]"),
            (5 << 30, "[4 to 8 GiB]"),
            (u64::MAX, "[8 to 16 EiB]"),
        ] {
            assert_eq!(named(size_bytes), [class, "[allocated before recording]"], "{size_bytes}");
        }
    }

    #[test]
    fn other_stacks_are_none() {
        assert!(!is_inventory(StackId(BASE - 1)) && !is_inventory(StackId(BASE + 65)) && !is_inventory(StackId(0)));
        let own = stack(stack_id(100));
        let with = |frames: &[TargetAddr]| Stack { frames: frames.into(), ..own.clone() };
        assert!(!is_stack(&with(&own.frames[..1])) && !is_stack(&with(&[])));
        assert!(!is_stack(&with(&[own.frames[0], own.frames[1], own.frames[1]])));
        assert!(!is_stack(&with(&[TargetAddr(0x1000), own.frames[1]])));
    }
}
