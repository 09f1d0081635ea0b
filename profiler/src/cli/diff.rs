//! Command `heapbpf diff`: growth between two profiles.

use std::path::Path;

use anyhow::Result;
use heapbpf_base::shown::Shown;
use heapbpf_report::diff::{self, Delta, Diff, Drawing, Side};
use heapbpf_report::{ReportError, View};

use super::convert::read_whole;
use super::exit;
use super::output::{self, Access, Output, Written};
use super::report_args::DiffArgs;
use super::terminal::{self, say};
use super::values::Threshold;

pub(super) fn diff(args: &DiffArgs) -> Result<u8> {
    // Mistyped output paths are reported before the profiles are read.
    output::check_distinct(&args.output)?;
    let outputs = args.output.iter().map(|path| open_for_diff(path)).collect::<Result<Vec<_>>>()?;
    let (mut before, mut after) = (read_whole(&args.before, args.quiet)?, read_whole(&args.after, args.quiet)?);
    [&mut before, &mut after].into_iter().for_each(|input| input.judge(args.verdict.strict));
    let filter = args.filter.filter();
    [&mut before, &mut after].into_iter().for_each(|input| input.select(&filter));
    let [before_name, after_name] = [&args.before, &args.after].map(|path| Shown::of(path).to_string());
    let diff = Diff::new(
        Side { name: &before_name, profile: &before.profile },
        Side { name: &after_name, profile: &after.profile },
    );
    let drawing = Drawing { widths: args.widths, icicle: args.icicle };
    let mut written = Written::default();
    for output in outputs {
        written.write(output, |format, out| Ok(diff.write(format, args.view, drawing, out)?))?;
    }
    if !args.quiet {
        let (width, colour) = terminal::layout();
        let text = diff::table(&diff, args.view, args.top, args.threshold, width, colour) + &written.list("growth, ");
        terminal::print(text.trim_end(), written.to_stdout)?;
    }
    let is_damaged = before.is_damaged || after.is_damaged;
    match args.fail_above {
        Some(limit) if exceeds(&diff.total(), args.view, limit) => {
            let [growth, limit] = [describe(&diff, args.view), shown(limit, args.view)];
            say(&format!("heapbpf: {} grew by {growth}, above the limit of {limit}", args.view.title()));
            Ok(exit::GREW)
        }
        _ if diff.incomplete() || is_damaged => Ok(exit::INCOMPLETE),
        _ => Ok(exit::DONE),
    }
}

/// Whether the growth is certain to exceed the limit: the lower bound of its confidence interval does.
#[expect(clippy::cast_precision_loss, reason = "amounts below 2^53")]
fn exceeds(total: &Delta, view: View, limit: Threshold) -> bool {
    let [low, _] = if total.is_exact() { [total.growth(view); 2] } else { total.confidence(view) };
    let limit = match limit {
        Threshold::Share(millionths) => view.estimate(&total.before) * millionths as f64 / 1e6,
        Threshold::Amount(amount) => amount as f64,
    };
    low > limit
}

fn describe(diff: &Diff<'_>, view: View) -> String {
    let total = diff.total();
    let (before, growth) = (view.estimate(&total.before), total.growth(view));
    let share = if before > 0.0 { format!(" ({:.1} %)", 100.0 * growth / before) } else { String::new() };
    format!("{}{share}", diff::signed(view, growth))
}

#[expect(clippy::cast_precision_loss, reason = "amounts below 2^53")]
fn shown(limit: Threshold, view: View) -> String {
    match limit {
        Threshold::Share(millionths) => format!("{} %", millionths as f64 / 10_000.0),
        Threshold::Amount(amount) => view.amount(amount),
    }
}

fn open_for_diff(path: &Path) -> Result<Output> {
    let output = Output::open(path, None, Access::All)?;
    if !diff::FORMATS.contains(&output.format()) {
        return Err(output.refuse(&ReportError::NoDifference(output.format())));
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use heapbpf_base::units::{EstimatedBytes, EstimatedCount};
    use heapbpf_ledger::totals::Totals;

    use super::*;

    fn total(before: u64, after: u64) -> Delta {
        let side = |bytes| Totals {
            alloc_bytes: EstimatedBytes::exact(bytes),
            alloc_count: EstimatedCount::exact(1),
            ..Totals::default()
        };
        Delta { before: side(before), after: side(after), interval_bytes: [1, 1] }
    }

    #[test]
    fn growth_is_compared_with_a_share_or_an_amount() {
        let check = |delta: Delta, limit: Threshold, expected: bool| {
            assert_eq!(exceeds(&delta, View::LiveBytes, limit), expected, "{delta:?} {limit:?}");
        };
        check(total(1000, 1050), Threshold::Share(50_000), false);
        check(total(1000, 1051), Threshold::Share(50_000), true);
        check(total(1000, 900), Threshold::Share(0), false);
        check(total(1000, 1000), Threshold::Amount(0), false);
        check(total(1000, 1011), Threshold::Amount(10), true);
        check(total(0, 1), Threshold::Share(1_000_000), true);
    }

    #[test]
    fn sampled_growth_must_be_certain() {
        let mut delta = total(1000, 2000);
        delta.interval_bytes = [1 << 20; 2];
        assert!(!exceeds(&delta, View::LiveBytes, Threshold::Share(50_000)));
    }
}
