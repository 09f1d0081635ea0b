//! docs/troubleshooting.md explains every line of the summary's health section, and every name in it.

use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use heapbpf_ledger::model::{Defect, Loss};
use profiler_common::counter::Counter;
use strum::{VariantArray as _, VariantNames as _};

use crate::View;
use crate::summary::summary;
use crate::testing as profiles;

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/troubleshooting.md");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Code in the first column of tables.
fn first_cells(page: &str) -> Vec<&str> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |").map(|(cell, _)| cell));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

/// `…` matches anything.
fn matcher(pattern: &str) -> GlobMatcher {
    let pattern = globset::escape(pattern).replace('…', "*");
    GlobBuilder::new(&pattern).build().expect("it is a pattern").compile_matcher()
}

#[test]
fn every_name_has_a_row() {
    let page = page();
    let cells = first_cells(&page);
    let ends = Counter::ALL.iter().filter(|counter| counter.is_stack_end()).map(|counter| counter.name());
    let drops = Counter::ALL.iter().filter(|counter| counter.is_loss()).map(|counter| counter.name());
    let losses = Loss::VARIANTS.iter().copied().filter(|name| *name != "unknown");
    let defects = Defect::VARIANTS.iter().map(|defect| defect.name());
    for name in ends.chain(drops).chain(losses).chain(defects) {
        assert!(cells.contains(&name), "docs/troubleshooting.md has no row for `{name}`");
    }
}

/// Lines below another with more indentation are details or advice.
#[test]
fn every_line_of_health_has_a_row() {
    let page = page();
    let mut patterns: Vec<_> = first_cells(&page).into_iter().map(matcher).collect();
    patterns.push(matcher("… lost, …"));
    let all = [
        profiles::exact(),
        profiles::sampled(),
        profiles::mixed(),
        profiles::nameless(),
        profiles::empty(),
        profiles::unhooked(),
        profiles::freed(),
        profiles::nobody(),
    ];
    let mut lines = 0;
    for profile in all {
        let text = summary(&profile, View::LiveBytes, 10, None, false);
        let health = text.lines().skip_while(|line| !line.starts_with("health: "));
        for line in health.filter(|line| !line.starts_with("    ")) {
            lines += 1;
            let line = line.trim_start();
            assert!(patterns.iter().any(|pattern| pattern.is_match(line)), "docs/troubleshooting.md lacks: {line}");
        }
    }
    assert!(lines > 20, "{lines}");
}
