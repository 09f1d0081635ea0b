//! Fault injection: kills heapbpf's processes, or its target, at named or random points in time, and checks that nothing
//! else is harmed: by processes, files and the kernel log, without knowledge of how heapbpf works.
//!
//! Tests run [`Plan::of_named_points`]; `cargo xtask faults` sets environment variables: see [`Plan::from_environment`].

mod aftermath;
mod agent;
mod case;
mod companion;
mod injection;
mod kernel_log;
mod plan;
mod processes;
pub mod random;
mod subject;
mod tally;

pub use case::{Backend, Mode, Role};
pub use plan::Plan;
pub use tally::Tally;

use std::time::Duration;

use injection::Injector;

/// Maximum number of attempts at a kill before which heapbpf has exited.
const MISSES_MAX: u32 = 8;

/// Runs a plan and returns the counts. Progress and each fault are printed to standard error.
///
/// # Panics
///
/// When a requirement of the run is missing.
#[expect(clippy::print_stderr, reason = "a long run reports its progress, and each fault when it happens")]
pub fn run(plan: &Plan) -> Tally {
    crate::kernel::require_root();
    eprintln!("faults: {} kills, seed {}", plan.kills().len(), plan.seed());
    let mut injector = Injector::new(plan.seed());
    let mut tally = Tally::default();
    for (number, &(case, at)) in plan.kills().iter().enumerate() {
        let mut misses = 0;
        let outcome = loop {
            if let Some(outcome) = injector.inject(case, at) {
                break Some(outcome);
            }
            misses += 1;
            if misses == MISSES_MAX {
                break None;
            }
        };
        let Some(outcome) = outcome else {
            eprintln!("faults: {number:4} {case}: given up, heapbpf exited before the kill {misses} times in a row");
            tally.miss();
            continue;
        };
        if outcome.harms.is_empty() {
            eprintln!("faults: {number:4} {case} {}: unharmed after {} ms", outcome.time, millis(outcome.settled));
        } else {
            eprintln!("faults: {number:4} {case} {}: HARMED (seed {})", outcome.time, plan.seed());
            outcome.harms.iter().for_each(|(harm, detail)| eprintln!("    {harm}: {detail}"));
            eprintln!("    repeat: cargo xtask faults --kills 20 {} --at {}", case.options(), outcome.time);
        }
        tally.add(case, &outcome);
    }
    injector.finish();
    tally
}

fn millis(duration: Duration) -> u128 {
    duration.as_millis()
}
