//! Kills heapbpf's processes and its target at random times: nothing else may be harmed. `cargo xtask faults` runs more
//! of these.

use heapbpf_tests::faults::{Plan, run};

#[test]
fn kills_at_random_times_do_no_harm() {
    let plan = Plan::from_environment().unwrap_or_else(|error| panic!("{error}"));
    let tally = run(&plan);
    let table = tally.table();
    if let Some(path) = std::env::var_os("HEAPBPF_FAULTS_TABLE") {
        std::fs::write(&path, tally.summary()).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
    }
    assert_eq!(tally.harmed(), 0, "kills did harm; seed {}\n{table}", plan.seed());
    // If a report needs no names, no symbolizer is running.
    let (made, missed) = tally.made_and_missed();
    assert!(made > 4 * missed, "of {made} kills {missed} were given up; seed {}\n{table}", plan.seed());
}
