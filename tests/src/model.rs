//! Random programs with known truth, and a judge of the reports about them.
//!
//! [`Plan::draw`] makes a script of a seed and of the features that it may use, and options of the recording. The program
//! `targets/scripted.c` runs the script and counts what it does; [`attempt`] records it meanwhile, and holds each number,
//! interval and verdict of the report against these counts. [`reduced`] removes what a failure does not need.
//!
//! What is judged:
//!
//! - At an interval of 1, allocated, freed and live blocks and bytes of each function in each program are exact, and so are sums.
//! - Otherwise estimates are unbiased, and intervals contain the truth.
//! - Where a number is wrong, the verdict is `incomplete` for a reason that explains it. "From the first allocation on" is stated only of
//!   programs whose blocks are all there.
//! - Programs without anything that may be missed are `complete`.

mod check;
mod generate;
mod plan;
mod reduce;
mod run;
mod truth;

pub use check::{Coverage, Failure, Judgement, attempt};
pub use generate::{Feature, KNOWN_WRONG, features};
pub use plan::{Operation, Plan};
pub use reduce::reduced;
