//! The frames of a flame graph: from sorted stacks to rectangles.

use crate::folded::Stacks;
use crate::text;

/// Maximum characters of a frame: all lines are in memory at once, and the target chooses the names.
const FRAME_CHARS_MAX: usize = 1000;

/// Sums up to here are exact in inferno's and the browser's floating-point arithmetic.
const SUM_MAX: u128 = 1 << 53;

/// The lines that inferno draws. Leaves out stacks without a width. Widths are shifted right so that their sum stays exact.
pub(crate) fn lines<V: Copy>(stacks: &mut Stacks<V>, width: impl Fn(&V) -> u64) -> (Vec<String>, u32) {
    stacks.sort_by_frame();
    let sum: u128 = stacks.stacks.iter().map(|(_, value)| u128::from(width(value))).sum();
    let shift = (0..64).find(|&shift| sum >> shift <= SUM_MAX).unwrap_or(0);
    let lines = stacks.stacks.iter().filter_map(|(frames, value)| {
        let width = width(value) >> shift;
        let frames = frames.iter().map(|&label| text::cut(&stacks.labels[label as usize], FRAME_CHARS_MAX));
        (width > 0).then(|| format!("{} {width}", frames.collect::<Vec<_>>().join(";")))
    });
    (lines.collect(), shift)
}

/// Where a frame is drawn: its left edge, in units of width, and its distance to the root.
pub(crate) type Position = (u64, usize);

/// A frame that has a width.
pub(crate) struct Node<'a, V> {
    pub(crate) position: Position,
    pub(crate) width: u64,
    /// `None` for the common root, which is not in the stacks.
    pub(crate) label: Option<u32>,
    /// The stacks through it.
    pub(crate) stacks: &'a [(Box<[u32]>, V)],
}

/// Calls `each` for each frame. The stacks are sorted by frame.
pub(crate) fn nodes<V>(stacks: &Stacks<V>, width: impl Fn(&V) -> u64, mut each: impl FnMut(Node<'_, V>)) {
    let stacks = &stacks.stacks;
    // Of the open frames: the left edge, and the first stack.
    let mut open: Vec<(u64, usize)> = Vec::new();
    let mut close = |open: &mut Vec<(u64, usize)>, depth: usize, at: u64, behind: usize| {
        while open.len() > depth {
            let Some((start, first)) = open.pop() else { return };
            if at > start {
                let label = open.len().checked_sub(1).map(|place| stacks[first].0[place]);
                let position = (start, open.len());
                each(Node { position, width: at - start, label, stacks: &stacks[first..behind] });
            }
        }
    };
    let (mut at, mut last): (u64, &[u32]) = (0, &[]);
    for (place, (stack, value)) in stacks.iter().enumerate() {
        let shared = if place == 0 { 0 } else { 1 + stack.iter().zip(last).take_while(|(a, b)| a == b).count() };
        close(&mut open, shared, at, place);
        open.extend((open.len()..=stack.len()).map(|_| (at, place)));
        at += width(value);
        last = stack;
    }
    close(&mut open, 0, at, stacks.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_with_a_width_have_a_position() {
        let labels = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let stack = |frames: &[u32], width: u64| (frames.into(), width);
        let mut stacks =
            Stacks { labels, stacks: vec![stack(&[0, 2], 0), stack(&[0, 1, 3], 2), stack(&[0, 1], 1), stack(&[1], 4)] };
        let (lines, shift) = lines(&mut stacks, |&width| width);
        assert_eq!((lines, shift), (["a;b 1", "a;b;d 2", "b 4"].map(str::to_owned).to_vec(), 0));
        let mut found = Vec::new();
        nodes(&stacks, |&width| width, |node| found.push((node.position, node.width, node.label, node.stacks.len())));
        found.sort_unstable();
        let expected = [
            ((0, 0), 7, None, 4),
            ((0, 1), 3, Some(0), 3),
            ((0, 2), 3, Some(1), 2),
            ((1, 3), 2, Some(3), 1),
            ((3, 1), 4, Some(1), 1),
        ];
        assert_eq!(found, expected);
    }
}
