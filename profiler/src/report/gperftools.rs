//! The text format of gperftools' heap profiler: a line of hexadecimal addresses per stack, and where files were mapped.
//!
//! It has no names: its reader looks them up in the files. Nor has it room for heaps, threads, processes, losses, and what is
//! missing from stacks. All processes are brought into one address space (`space.rs`), and numbers are written such that what
//! the reader makes of them is ours (`unsampled.rs`).

use std::io::{self, Write};

use rustc_hash::FxHashMap;

use super::{Presentation, Report, ReportError, View};
use crate::model::{CallsiteProfile, Profile};
use space::{Scope, Space};
use unsampled::Unsampled;

mod space;
mod unsampled;

/// The address of stacks without any: none has code there. A line without an address would be passed over.
const NO_STACK: u64 = 1;

/// Quantities of a line, in its order.
const VIEWS: [View; 4] = [View::LiveCount, View::LiveBytes, View::AllocCount, View::AllocBytes];

/// Writes gperftools' format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gperftools;

impl Report for Gperftools {
    fn write(&self, profile: &Profile, _: &Presentation, out: &mut dyn io::Write) -> Result<(), ReportError> {
        let mut space = Space::default();
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
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = sum.saturating_add(value);
            }
            write!(lines, "{} @", numbers(values))?;
            stack.iter().try_for_each(|address| write!(lines, " {address:#x}"))?;
            writeln!(lines)?;
        }
        // The reader takes each line for samples at this interval: our numbers are estimates of what there was, so 1.
        writeln!(out, "heap profile: {} @ heap_v2/1", numbers(sums))?;
        out.write_all(&lines)?;
        writeln!(out, "\nMAPPED_LIBRARIES:")?;
        space.write(out)?;
        Ok(())
    }
}

/// The stacks of all processes by their addresses, each once, in the order in which they come, with the quantities of a line.
fn stacks(profile: &Profile, space: &mut Space) -> Vec<(Box<[u64]>, [u64; 4])> {
    let mut numbers: FxHashMap<Box<[u64]>, usize> = FxHashMap::default();
    let mut stacks: Vec<(Box<[u64]>, [u64; 4])> = Vec::new();
    let mut add = |stack: &[u64], values: [u64; 4]| {
        if values == [0; 4] {
            return;
        }
        let number = *numbers.entry(stack.into()).or_insert_with(|| {
            stacks.push((stack.into(), [0; 4]));
            stacks.len() - 1
        });
        for (sum, value) in stacks[number].1.iter_mut().zip(values) {
            *sum = sum.saturating_add(value);
        }
    };
    for target in &profile.targets {
        let mut scope = Scope::new(profile, target);
        for callsite in &target.callsites {
            let values = VIEWS.map(|view| view.of_callsite(callsite));
            add(&addresses(callsite, &mut scope, space), values);
        }
    }
    add(&[NO_STACK], super::pprof::folded(profile, VIEWS));
    stacks
}

/// Addresses of a stack, leaf first: the leaf's call, and what the other calls return to. The reader takes one from all but the leaf, to be
/// in the call.
fn addresses(callsite: &CallsiteProfile, scope: &mut Scope<'_>, space: &mut Space) -> Vec<u64> {
    let mut addresses = scope.addresses(&callsite.stack, space);
    match addresses.first_mut() {
        Some(leaf) => *leaf = leaf.saturating_sub(1),
        None => addresses.push(NO_STACK),
    }
    addresses
}

fn numbers([live_count, live_bytes, alloc_count, alloc_bytes]: [u64; 4]) -> String {
    format!("{live_count}: {live_bytes} [{alloc_count}: {alloc_bytes}]")
}
