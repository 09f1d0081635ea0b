//! Statements about where the resident memory is, and about what the profile does not show.

use heapbpf_base::language::Language;
use heapbpf_base::language::facts::RECORD_MAPPINGS;
use heapbpf_ledger::model::{HeapProfile, MemoryClass, MemoryGrowth, MemoryPart, Profile, TargetProfile};

use super::{describe, text};

const PARTS_MAX: usize = 4;

/// Resident memory that grew without the hooked heaps.
pub(super) struct Unexplained {
    /// What grew by how much, and how much of it the hooked heaps explain.
    pub(super) statement: String,
    /// Where it grew, and how to see more.
    pub(super) details: Vec<String>,
}

/// Of each target whose growth the hooked heaps do not explain.
pub(super) fn unexplained(profile: &Profile) -> Vec<Unexplained> {
    let of_target = |target| growth(target).map(|growth| statement(profile, target, &growth));
    profile.targets.iter().filter_map(of_target).collect()
}

pub(super) fn growth(target: &TargetProfile) -> Option<MemoryGrowth> {
    target.memory.unexplained_growth()
}

fn statement(profile: &Profile, target: &TargetProfile, growth: &MemoryGrowth) -> Unexplained {
    let whose = if profile.targets.len() > 1 { format!(" of {}", describe::target(target)) } else { String::new() };
    let explained = match u64::try_from(growth.hooked_bytes) {
        Ok(bytes) if bytes > 0 => format!("{} of it", text::size(bytes)),
        _ => "none of it".to_owned(),
    };
    let statement = format!(
        "this profile misses most of the growth: resident memory{whose} grew by {}, and hooked heaps explain {explained}",
        text::size(growth.bytes.unsigned_abs()),
    );
    let mut details = vec![format!("the rest grew in: {}", list(&growth.others))];
    details.extend(remedies(target, growth));
    Unexplained { statement, details }
}

fn remedies(target: &TargetProfile, growth: &MemoryGrowth) -> Vec<String> {
    let Some(largest) = growth.others.first() else { return Vec::new() };
    let may_be_runtime = matches!(largest.class, MemoryClass::Unexplained | MemoryClass::OtherAllocator);
    // Runtimes that reserve their heap at the start do not map what grows later.
    let of_languages = target.memory.runtimes().iter().filter(|_| may_be_runtime).map(|language| {
        let facts = language.facts();
        (facts.heap, facts.remedies)
    });
    let mut advice: Vec<_> = of_languages.collect();
    if advice.is_empty() {
        advice.extend(class_advice(largest.class));
    }
    advice.into_iter().map(|advice| sentence(target, advice)).collect()
}

fn list(parts: &[MemoryPart]) -> String {
    let named = |part: &MemoryPart| format!("{} {}", text::printable(&part.title()), text::size(part.bytes));
    let mut listed: Vec<String> = parts.iter().take(PARTS_MAX).map(named).collect();
    let rest: u64 = parts.iter().skip(PARTS_MAX).map(|part| part.bytes).fold(0, u64::saturating_add);
    if rest > 0 {
        listed.push(format!("others {}", text::size(rest)));
    }
    listed.join(", ")
}

/// One line on the last sample of the resident memory; `None` where there is none.
pub(super) fn resident(target: &TargetProfile) -> Option<String> {
    let last = target.memory.points().last()?;
    let change = target.memory.growth().map_or(String::new(), |growth| format!(" ({})", text::change(growth.bytes)));
    let mut parts = last.parts.clone();
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    let parts = list(&parts);
    // Where pages are recorded, what nothing explains has not been touched since then.
    let has_pages = target.heaps.iter().any(HeapProfile::is_pages);
    let parts = if has_pages { parts.replace(MemoryClass::Unexplained.title(), FROM_BEFORE) } else { parts };
    Some(format!("resident memory: {}{change}: {parts}", text::size(last.rss_bytes())))
}

/// One line on the profile that Go's runtime keeps, where it is not recorded.
pub(super) fn of_go(target: &TargetProfile) -> Option<&'static str> {
    let is_recorded = target.heaps.iter().any(|heap| heap.name == HeapProfile::GO);
    let is_go = target.memory.runtimes().contains(&Language::Go) && !is_recorded;
    is_go.then_some(
        "a Go program: `--heap go` shows its live objects by the stack that allocated them, also those from before",
    )
}

/// One line on pages that are in no heap; `None` where there are none.
pub(super) fn undecided(targets: &[TargetProfile]) -> Option<String> {
    let bytes = targets.iter().map(|target| target.memory.undecided_bytes()).fold(0, u64::saturating_add);
    let size = text::size(bytes);
    (bytes > 0).then(|| {
        format!("pages: {size} were given back, or the program ended, before it was known whether a heap had them: not counted")
    })
}

const FROM_BEFORE: &str = "from before";

fn class_advice(class: MemoryClass) -> Option<(&'static str, &'static [&'static str])> {
    Some(match class {
        MemoryClass::OtherAllocator | MemoryClass::Unexplained => {
            ("the program maps it itself, or an allocator that is not hooked", &[RECORD_MAPPINGS])
        }
        MemoryClass::Shared => ("shared memory is not allocated on the heap", &[RECORD_MAPPINGS]),
        MemoryClass::Files => (
            "variables of programs and libraries, and pages of mapped files, which the kernel can drop when memory is short",
            &[],
        ),
        MemoryClass::Stacks => ("stacks of threads: look for threads that do not end", &[]),
        MemoryClass::GeneratedCode => ("code of a just-in-time compiler", &[]),
        MemoryClass::LiveBlocks | MemoryClass::HeapOverhead => return None,
    })
}

/// Without the advice to do what was done.
fn sentence(target: &TargetProfile, (fact, remedies): (&str, &[&str])) -> String {
    let records_mappings = target.heaps.iter().any(|heap| heap.name == "mmap");
    let remedies: Vec<&str> =
        remedies.iter().copied().filter(|it| *it != RECORD_MAPPINGS || !records_mappings).collect();
    if remedies.is_empty() { fact.to_owned() } else { format!("{fact}: {}", remedies.join(", or ")) }
}
