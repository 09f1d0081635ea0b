//! Describes from when on processes were recorded, and what is known of them from before; which processes were not.

use heapbpf_ledger::model::{Beginning, Inventory, Origin, Profile};

use super::describe::some;
use super::{others, text};

pub(super) fn beginnings(profile: &Profile) -> Vec<String> {
    let beginnings = || profile.targets.iter().map(|target| &target.facts.beginning);
    let whole = beginnings().filter(|beginning| beginning.from_first_call).count() as u64;
    let is_late = |it: &&Beginning| it.origin != Origin::Running && !it.from_first_call;
    let is_forked = |it: &Beginning| matches!(it.origin, Origin::Forked(_));
    // What a forked child has from before is its parent's, and is in the report.
    let delays = |forked: bool| -> Vec<u64> {
        let late = beginnings().filter(is_late).filter(|beginning| is_forked(beginning) == forked);
        late.filter_map(|beginning| beginning.delay_ns).collect()
    };
    let late = |forked: bool, noun: &str, event: &str| {
        let delays = delays(forked);
        let latest = text::duration(*delays.iter().max()?);
        some(delays.len() as u64, noun, &format!("from at most {latest} after the {event}"))
    };
    let mut lines = Vec::new();
    if profile.targets.len() > 1 {
        let running = beginnings().filter(|beginning| beginning.origin == Origin::Running).count() as u64;
        let parts = [
            some(whole, "process", "from the first allocation on"),
            late(false, "process", "start"),
            late(true, "process", "fork"),
            some(running, "process", "found running"),
        ];
        let has_begun_meanwhile = parts[..3].iter().any(Option::is_some);
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if has_begun_meanwhile {
            lines.push(format!("recorded: {}", parts.join(", ")));
        }
    } else if let Some(delay) = [false, true].into_iter().flat_map(delays).next() {
        lines.push(format!("recorded from {} after its start", text::duration(delay)));
    } else if whole > 0 {
        lines.push("recorded from its first allocation on".to_owned());
    }
    lines.extend(inventories(profile));
    lines.extend(others::callsites(profile));
    let others = &profile.others;
    lines.extend(some(others.short_lived_count, "process", "exited before probes were attached"));
    if let Some(first) = others.skipped.first() {
        let count = text::counted(others.skipped_count, "process");
        let command = text::command(&first.command);
        let pid = first.pid;
        let name = if command.is_empty() { format!("pid {pid}") } else { format!("`{command}` (pid {pid})") };
        let reason = text::printable(&first.reason);
        lines.push(format!("{count} could not be profiled, such as {name}: {reason}"));
    }
    lines
}

/// What is known of blocks from before the recording, if that was requested.
fn inventories(profile: &Profile) -> Vec<String> {
    let known = || profile.targets.iter().filter_map(|target| target.memory.inventory());
    let taken: Vec<&Inventory> = known().filter(|inventory| inventory.error.is_none()).collect();
    let mut lines = Vec::new();
    if !taken.is_empty() {
        let sum = |part: fn(&Inventory) -> u64| taken.iter().map(|it| part(it)).fold(0, u64::saturating_add);
        let pause_ns = taken.iter().map(|inventory| inventory.pause_ns).max().unwrap_or_default();
        let of = some(taken.len() as u64, "process", "").filter(|_| taken.len() > 1);
        lines.push(format!(
            "allocated before the recording{}: {} in {}; stopped for {}",
            of.map(|of| format!(" by {}", of.trim_end())).unwrap_or_default(),
            text::size(sum(|inventory| inventory.bytes)),
            text::counted(sum(|inventory| inventory.blocks), "block"),
            text::duration(pause_ns)
        ));
    }
    let gap = taken.iter().flat_map(|inventory| &inventory.gaps).next();
    lines.extend(gap.map(|gap| format!("of these, some may be missing: {}", text::printable(gap))));
    let error = known().find_map(|inventory| inventory.error.as_deref());
    lines.extend(
        error.map(|error| format!("blocks from before the recording are not included: {}", text::printable(error))),
    );
    lines
}
