//! Kills heapbpf's processes and its target: nothing else may be harmed. `cargo xtask faults` makes such kills at random times.

use heapbpf_tests::faults::{Plan, run};

#[test]
fn kills_do_no_harm() {
    let configured = Plan::from_environment().unwrap_or_else(|error| panic!("{error}"));
    let plan = configured.unwrap_or_else(Plan::of_named_points);
    let tally = run(&plan);
    let table = tally.table();
    if let Some(path) = std::env::var_os("HEAPBPF_FAULTS_TABLE") {
        std::fs::write(&path, tally.summary()).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
    }
    // What happened comes last: of a long output, the end is what is read.
    let harms = tally.harms().join("\n");
    assert!(tally.harmed() == 0, "kills did harm; seed {}\n{table}\n{harms}", plan.seed());
    // If a report needs no names, no symbolizer is running.
    let (made, missed) = tally.made_and_missed();
    assert!(made > 4 * missed, "of {made} kills {missed} were given up; seed {}\n{table}", plan.seed());
}
