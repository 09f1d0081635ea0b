//! The frames of a flame graph, each with its own growth: its colour and what it shows when pointed at.
//!
//! inferno colours a frame by what changed in the frame itself and not in what it calls, so that only the tips of stacks
//! would have a colour. Here every frame has one. Owns the tree of frames and where its colours go in inferno's image.

use std::io::{self, Write};

use rustc_hash::FxHashMap;

use super::{Change, words};
use crate::report::View;
use crate::report::folded::Stacks;

/// Pixels from one row of frames to the next.
const ROW_HEIGHT: i64 = 16;

/// What begins a frame in inferno's image, and what stands between its title and its colour.
const FRAME: &str = "<g><title>";
const TITLE_END: &str = "</title>";
const FILL: &str = "fill=\"rgb(";

/// The frames that have a width, by where they begin and how deep they lie.
pub(super) struct Tree {
    frames: FxHashMap<(u64, usize), Growth>,
    whole: f64,
}

/// What a frame and all that it calls did.
#[derive(Clone, Copy)]
struct Growth {
    before: f64,
    after: f64,
    growth: f64,
    is_noise: bool,
    width: u64,
}

/// A frame whose stacks are still coming.
struct Open {
    start: u64,
    change: Change,
}

impl Tree {
    /// The tree of stacks that are in the order of their frames.
    pub(super) fn new(stacks: &Stacks<Change>, view: View, width: impl Fn(&Change) -> u64) -> Self {
        let mut tree = Self { frames: FxHashMap::default(), whole: 0.0 };
        let mut open: Vec<Open> = Vec::new();
        let mut last: &[u32] = &[];
        let mut at = 0_u64;
        for (stack, change) in &stacks.stacks {
            let shared =
                if open.is_empty() { 0 } else { 1 + stack.iter().zip(last).take_while(|(a, b)| a == b).count() };
            tree.close(&mut open, shared, at, view);
            open.iter_mut().for_each(|open| open.change.add(change));
            // The root, which all stacks share, is not in them.
            open.extend((open.len()..=stack.len()).map(|_| Open { start: at, change: *change }));
            at += width(change);
            last = stack;
        }
        tree.close(&mut open, 0, at, view);
        tree
    }

    fn close(&mut self, open: &mut Vec<Open>, depth: usize, at: u64, view: View) {
        while open.len() > depth {
            let Some(Open { start, change }) = open.pop() else { return };
            if at > start {
                let growth = Growth {
                    before: view.estimate(&change.before),
                    after: view.estimate(&change.after),
                    growth: change.growth(view),
                    is_noise: change.is_noise(view),
                    width: at - start,
                };
                self.frames.insert((start, open.len()), growth);
                self.whole = if open.is_empty() { (at - start) as f64 } else { self.whole };
            }
        }
    }
}

impl Growth {
    /// White where nothing changed, grey where that may be chance, else the redder or bluer the larger the part of it that is
    /// new or has gone.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 255")]
    fn colour(&self) -> String {
        if self.growth == 0.0 {
            return "250,250,250".to_owned();
        }
        if self.is_noise {
            return "205,205,205".to_owned();
        }
        let part = (self.growth.abs() / self.before.max(self.after)).clamp(0.0, 1.0);
        // From a tint that can be told from white to a full colour.
        let pale = (215.0 - 105.0 * part) as u8;
        if self.growth > 0.0 { format!("255,{pale},{pale}") } else { format!("{pale},{pale},255") }
    }

    /// `+1.0 MiB, 95 %: … to …; 2.0 MiB → 3.0 MiB; 12.34% of the width`, without brackets, which the image's script cuts off.
    fn words(&self, view: View, whole: f64) -> String {
        let [before, after] = [self.before, self.after].map(|amount| words::unsigned(view, amount));
        let noise = if self.is_noise && self.growth != 0.0 { ", within the noise" } else { "" };
        let percent = self.width as f64 / whole * 100.0;
        format!("{}{noise}; {before} → {after}; {percent:.2}%", words::signed(view, self.growth))
    }
}

/// Writes the image with its frames coloured and described anew.
pub(super) fn coloured(image: &str, tree: &Tree, view: View, icicle: bool, out: &mut dyn Write) -> io::Result<()> {
    let mut pieces = image.split(FRAME);
    out.write_all(pieces.next().unwrap_or_default().as_bytes())?;
    let pieces: Vec<&str> = pieces.collect();
    // The root is the lowest of them, or the highest.
    let rows = pieces.iter().filter_map(|piece| number(piece, " y=\""));
    let root_y = if icicle { rows.min() } else { rows.max() }.unwrap_or_default();
    for piece in pieces {
        out.write_all(FRAME.as_bytes())?;
        match frame(piece, tree, root_y).and_then(|growth| redrawn(piece, &growth, view, tree.whole)) {
            Some(piece) => out.write_all(piece.as_bytes())?,
            None => out.write_all(piece.as_bytes())?,
        }
    }
    writeln!(out)
}

fn frame(piece: &str, tree: &Tree, root_y: i64) -> Option<Growth> {
    let depth = usize::try_from((root_y - number(piece, " y=\"")?).abs() / ROW_HEIGHT).ok()?;
    let start = u64::try_from(number(piece, "fg:x=\"")?).ok()?;
    tree.frames.get(&(start, depth)).copied()
}

/// The number behind a mark in the rectangle; names come before it and are escaped.
fn number(piece: &str, mark: &str) -> Option<i64> {
    let rectangle = &piece[piece.find(TITLE_END)?..];
    let digits = &rectangle[rectangle.find(mark)? + mark.len()..];
    digits[..digits.find('"')?].parse().ok()
}

fn redrawn(piece: &str, growth: &Growth, view: View, whole: f64) -> Option<String> {
    let (title, rest) = piece.split_once(TITLE_END)?;
    let name = &title[..title.rfind(" (")?];
    let (before, rest) = rest.split_once(FILL)?;
    let (_, rest) = rest.split_once(')')?;
    let words = growth.words(view, whole);
    Some(format!("{name} ({words}){TITLE_END}{before}{FILL}{}){rest}", growth.colour()))
}
