//! Explains why no block of a process is known.

use super::heap_snapshot::HeapSnapshot;
use crate::object::symbols::{Search, Symbols};
use crate::walk::{self, Absence, Scene};

/// Explains why a heap snapshot without recorded blocks has no block at all; `None` if it has one.
pub(crate) fn explain(snapshot: &HeapSnapshot) -> Option<String> {
    if snapshot.coverage.is_some() || snapshot.walks.iter().any(|walk| !walk.blocks.is_empty()) {
        return None;
    }
    let (pid, collected) = (snapshot.collected.pid, &snapshot.collected);
    let gaps: Vec<&str> = snapshot.walks.iter().flat_map(|walk| &walk.gaps).map(String::as_str).collect();
    let gaps = gaps.join("; ");
    let scene = Scene::new(&*collected.memory, &collected.regions, &collected.threads);
    Some(match state(snapshot, &scene) {
        Absence::Starting => format!(
            "process `{pid}` has no heap yet: its dynamic linker is still loading it; try again when it runs, or start it with `heapbpf leaks -- COMMAND`"
        ),
        Absence::Unused => format!(
            "process `{pid}` has not allocated any memory: its C library's allocator was never called, so there are no blocks to check"
        ),
        Absence::Empty => format!(
            "process `{pid}` has no allocated memory now: it has freed every block, so there are no blocks to check"
        ),
        Absence::Changing => format!(
            "the heap of process `{pid}` was being changed in each heap snapshot: {gaps}; try again when it is less busy"
        ),
        Absence::Damaged => {
            let what = if gaps.is_empty() { "the lists of free chunks are overwritten" } else { &gaps };
            format!(
                "the heap of process `{pid}` is damaged: {what}; the program has written outside of a block, or to a freed one: AddressSanitizer or `valgrind` show where"
            )
        }
        Absence::Unknown => {
            let reason = if gaps.is_empty() { walk::unsupported() } else { gaps };
            format!(
                "no block of process `{pid}` is known: {reason}; to record its allocations first: `heapbpf leaks --pid {pid} --watch 60s`"
            )
        }
    })
}

fn state(snapshot: &HeapSnapshot, scene: &Scene<'_>) -> Absence {
    let absence = walk::absence(scene, &snapshot.walks);
    // The C library's allocator is not called where another one replaces it.
    let may_be_unused = matches!(absence, Absence::Unused | Absence::Empty);
    if may_be_unused && allocator_count(snapshot) > 1 { Absence::Unknown } else { absence }
}

/// Number of mapped modules that define `malloc`, without the dynamic linker, which has one for itself.
fn allocator_count(snapshot: &HeapSnapshot) -> usize {
    let Some(target) = snapshot.state.targets.first() else { return 0 };
    let modules = target.space.modules().into_iter().map(|id| snapshot.state.modules.get(id));
    let defines = |symbols: Symbols| !symbols.functions.is_empty();
    let others =
        modules.filter(|module| !module.path().rsplit('/').next().is_some_and(|name| name.starts_with("ld-linux")));
    others.filter(|module| Symbols::of(module, &["malloc"], &[], Search::Exported).is_ok_and(defines)).count()
}
