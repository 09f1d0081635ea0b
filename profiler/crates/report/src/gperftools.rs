//! The text format of gperftools' heap profiler: a line of hexadecimal addresses per stack, and where files were mapped.
//! The format has no names (its reader looks them up in the files), heaps, threads, processes, losses or incomplete stacks. All processes
//! are mapped into one address space, and numbers are corrected for the reader's own unsampling.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use heapbpf_ledger::model::{FrameId, Profile, TargetProfile};
use rustc_hash::FxHashMap;

use super::presentation::{Presentation, View};
use super::tables::{CodeLocation, OrderedMap, calls, frame};

/// The address of stacks without any; no code has it. Readers skip lines without an address.
const NO_STACK: u64 = 1;
const VIEWS: [View; 4] = [View::LiveCount, View::LiveBytes, View::AllocCount, View::AllocBytes];

pub(super) fn write(profile: &Profile, _: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let mut space = AddressSpace::default();
    let stacks = stacks(profile, &mut space);
    let mut live = Unsampled::default();
    let mut allocated = Unsampled::default();
    let mut sums = [0_u64; 4];
    let mut lines = Vec::new();
    for (stack, [live_count, live_bytes, alloc_count, alloc_bytes]) in stacks {
        let (live_count, live_bytes) = live.written(live_count, live_bytes);
        let (alloc_count, alloc_bytes) = allocated.written(alloc_count, alloc_bytes);
        let values = [live_count, live_bytes, alloc_count, alloc_bytes];
        if values == [0; 4] {
            continue;
        }
        add(&mut sums, values);
        write!(lines, "{} @", numbers(values))?;
        stack.iter().try_for_each(|address| write!(lines, " {address:#x}"))?;
        writeln!(lines)?;
    }
    // The reader scales samples by this interval; the numbers are estimates of the real amounts already, so it is 1.
    writeln!(out, "heap profile: {} @ heap_v2/1", numbers(sums))?;
    out.write_all(&lines)?;
    writeln!(out, "\nMAPPED_LIBRARIES:")?;
    space.write(out)
}

fn stacks(profile: &Profile, space: &mut AddressSpace) -> OrderedMap<Vec<u64>, [u64; 4]> {
    let mut stacks = OrderedMap::default();
    let mut add_stack = |stack: Vec<u64>, values: [u64; 4]| {
        if values != [0; 4] {
            add(stacks.entry(stack).or_default(), values);
        }
    };
    for target in &profile.targets {
        let mut known = FxHashMap::default();
        for callsite in &target.callsites {
            let calls = calls(profile, &callsite.stack).filter_map(|call| call.last());
            let address = |&id: &FrameId| *known.entry(id).or_insert_with(|| space.address(profile, target, id));
            let mut stack: Vec<u64> = calls.map(address).collect();
            // Leaf first. The reader subtracts one from return addresses, but not from the leaf's.
            match stack.first_mut() {
                Some(leaf) => *leaf = leaf.saturating_sub(1),
                None => stack.push(NO_STACK),
            }
            add_stack(stack, VIEWS.map(|view| view.of_callsite(callsite)));
        }
    }
    add_stack(vec![NO_STACK], VIEWS.map(|view| view.of_folded(profile)));
    stacks
}

fn add(sums: &mut [u64; 4], values: [u64; 4]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum = sum.saturating_add(value);
    }
}

fn numbers([live_count, live_bytes, alloc_count, alloc_bytes]: [u64; 4]) -> String {
    format!("{live_count}: {live_bytes} [{alloc_count}: {alloc_bytes}]")
}

/// Start of the range for mappings whose own addresses are taken. In practice, programs map nothing there.
const FREE_START: u64 = 0x1000_0000_0000;
const PAGE_BYTES: u64 = 4096;

/// One address space: mappings have the range of the first process that maps them, or a free one.
#[derive(Default)]
struct AddressSpace {
    starts: FxHashMap<Mapped, u64>,
    ranges: BTreeMap<u64, Mapped>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Mapped {
    path: Box<str>,
    offset: u64,
    size_bytes: u64,
}

impl AddressSpace {
    /// Translates a return address. Addresses outside of known mappings stay the same.
    fn address(&mut self, profile: &Profile, target: &TargetProfile, id: FrameId) -> u64 {
        let Some(frame) = frame(profile, id) else { return NO_STACK };
        let CodeLocation { module: Some(module), mapping: Some(mapping) } = CodeLocation::of(profile, target, frame)
        else {
            return frame.address;
        };
        let size_bytes = mapping.end - mapping.start;
        let mapped = Mapped { path: (*module.path).into(), offset: mapping.offset, size_bytes };
        self.map(mapped, mapping.start).saturating_add(frame.address - mapping.start)
    }

    /// Returns the start of a mapping that is at `start` in some process.
    fn map(&mut self, mapped: Mapped, start: u64) -> u64 {
        if let Some(&known) = self.starts.get(&mapped) {
            return known;
        }
        let mut free = start;
        if start.checked_add(mapped.size_bytes).is_none() || self.overlap(start, mapped.size_bytes).is_some() {
            free = FREE_START;
            while let Some(end) = self.overlap(free, mapped.size_bytes) {
                free = end.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES);
            }
        }
        self.ranges.insert(free, mapped.clone());
        self.starts.insert(mapped, free);
        free
    }

    fn overlap(&self, start: u64, size_bytes: u64) -> Option<u64> {
        let end = start.saturating_add(size_bytes);
        let (&last, mapped) = self.ranges.range(..end).next_back()?;
        let last_end = last.saturating_add(mapped.size_bytes);
        (last_end > start && last_end < u64::MAX).then_some(last_end)
    }

    fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        for (start, Mapped { path, offset, size_bytes }) in &self.ranges {
            let end = start.saturating_add(*size_bytes);
            let path = octal(path);
            writeln!(out, "{start:08x}-{end:08x} r-xp {offset:08x} 00:00 0 {path}")?;
        }
        Ok(())
    }
}

/// Control characters as the kernel writes that of a new line in `/proc/PID/maps`: they would end the line, or reach a terminal.
fn octal(path: &str) -> Cow<'_, str> {
    if !path.contains(char::is_control) {
        return Cow::Borrowed(path);
    }
    let mut bytes = [0; 4];
    let mut escaped = String::with_capacity(path.len() + 16);
    for character in path.chars() {
        let bytes = character.encode_utf8(&mut bytes).as_bytes();
        match character.is_control() {
            true => escaped.extend(bytes.iter().map(|byte| format!("\\{byte:03o}"))),
            false => escaped.push(character),
        }
    }
    Cow::Owned(escaped)
}

/// Mean size from which 1 − e^(−mean) is exactly 1 in floating-point arithmetic.
const MEAN_BYTES_PLAIN: u64 = 38;

/// google-pprof takes a line's blocks for samples of their mean size, and multiplies by 1 / (1 − e^(−mean/T)). At T = 1 that is exactly 1
/// from a mean of 38 bytes on, and nearly so from 16 on; for smaller blocks, smaller numbers must be written. Numbers are whole, so they
/// are rounded up, never down, and the excess is subtracted from the following lines, so that sums are right.
#[derive(Default)]
struct Unsampled {
    blocks: f64,
    bytes: f64,
}

impl Unsampled {
    /// Blocks with a mean size below 1 byte are not written: without bytes the reader would divide by 0.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the reader has floats, and casts saturate"
    )]
    fn written(&mut self, blocks: u64, bytes: u64) -> (u64, u64) {
        if blocks == 0 || bytes < blocks {
            return (0, bytes);
        }
        if bytes / blocks >= MEAN_BYTES_PLAIN && self.blocks < 1.0 && self.bytes < 1.0 {
            return (blocks, bytes);
        }
        let (wanted_blocks, wanted_bytes) = (blocks as f64 - self.blocks, bytes as f64 - self.bytes);
        let part = -(-(bytes as f64) / blocks as f64).exp_m1();
        let up = |wanted: f64| ((wanted * part - ROUNDING).ceil() as u64).max(1);
        let (mut blocks, mut bytes) = (up(wanted_blocks), up(wanted_bytes));
        // Rounding and the subtracted excess change the mean, and with it the factor.
        for _ in 0..STEPS_MAX {
            let [read_blocks, read_bytes] = read(blocks, bytes);
            match (read_blocks < wanted_blocks - ROUNDING, read_bytes < wanted_bytes - ROUNDING) {
                (true, _) => blocks += 1,
                (false, true) => bytes += 1,
                (false, false) => break,
            }
        }
        let [read_blocks, read_bytes] = read(blocks, bytes);
        self.blocks = read_blocks - wanted_blocks;
        self.bytes = read_bytes - wanted_bytes;
        (blocks, bytes)
    }
}

/// Maximum number of corrections after rounding up.
const STEPS_MAX: usize = 8;

/// Tolerated rounding error, in blocks and bytes.
const ROUNDING: f64 = 1e-6;

/// google-pprof's unsampling of a line's blocks and bytes.
#[expect(clippy::cast_precision_loss, reason = "as the reader does")]
fn read(blocks: u64, bytes: u64) -> [f64; 2] {
    let mean = bytes as f64 / blocks as f64;
    let factor = 1.0 / (1.0 - (-mean).exp());
    [blocks as f64 * factor, bytes as f64 * factor]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn control_characters_of_paths_are_escaped() {
        assert_eq!(octal("/a b/\u{e9}"), "/a b/\u{e9}");
        assert_eq!(octal("/x\n\u{1b}[m\u{9b}"), r"/x\012\033[m\302\233");
    }

    #[test]
    fn amounts_of_blocks_of_usual_size_are_unchanged() {
        for (blocks, bytes) in
            [(0, 0), (1, 38), (1, 16), (1, 24), (100, 3200), (7, 1 << 40), (0, 4096), (1_000, 20_000)]
        {
            assert_eq!(Unsampled::default().written(blocks, bytes), (blocks, bytes));
        }
    }

    #[test]
    fn small_blocks_are_corrected_for_unsampling() {
        for (blocks, bytes, expected) in [
            (1, 1, (1, 1)),
            (1000, 1000, (633, 633)),
            (1_000_000, 3_000_000, (950_213, 2_850_639)),
            (10_000_000, 160_000_000, (9_999_999, 159_999_982)),
            // Blocks without bytes would make the reader divide by 0.
            (5, 0, (0, 0)),
            (5, 4, (0, 4)),
        ] {
            let written = Unsampled::default().written(blocks, bytes);
            assert_eq!(written, expected, "{blocks} of {bytes}");
            if written.0 > 0 {
                let [read_blocks, read_bytes] = read(written.0, written.1);
                #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                let off = (read_blocks - blocks as f64, read_bytes - bytes as f64);
                assert!((-2e-6..2.0).contains(&off.0) && (-2e-6..6.0).contains(&off.1), "{blocks} of {bytes}: {off:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn sums_are_never_too_small_and_excess_is_subtracted_later(
            lines in proptest::collection::vec((1..2000_u64, 1..60_u64), 0..40),
        ) {
            let mut unsampled = Unsampled::default();
            let mut sums = [0.0, 0.0];
            let mut wanted = [0.0, 0.0];
            for (blocks, bytes) in lines.into_iter().map(|(blocks, mean)| (blocks, blocks * mean)).chain([(1 << 20, 1 << 32)]) {
                let written = unsampled.written(blocks, bytes);
                let read = read(written.0, written.1);
                #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                for (i, amount) in [blocks as f64, bytes as f64].into_iter().enumerate() {
                    wanted[i] += amount;
                    sums[i] += read[i];
                    prop_assert!(sums[i] - wanted[i] > -1e-3, "{sums:?} is less than {wanted:?}");
                }
            }
            for i in 0..2 {
                prop_assert!(sums[i] - wanted[i] < 2.0, "{sums:?} is more than {wanted:?}");
            }
        }
    }
}
