//! Ranges of addresses: union and difference.

use std::ops::Range;

use crate::address::TargetAddr;

/// A range of addresses.
pub(crate) type Span = Range<TargetAddr>;

/// Sorts and joins overlapping or adjacent spans; removes empty ones.
pub(crate) fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.retain(|span| span.start < span.end);
    spans.sort_by_key(|span| span.start);
    spans.dedup_by(|later, earlier| {
        let joins = later.start <= earlier.end;
        if joins {
            earlier.end = earlier.end.max(later.end);
        }
        joins
    });
    spans
}

/// Spans without the cuts, both by rising address and without overlaps.
pub(crate) fn without(spans: Vec<Span>, cuts: &[Span]) -> Vec<Span> {
    let mut rest = Vec::with_capacity(spans.len());
    let mut first = 0;
    for span in spans {
        first += cuts[first..].partition_point(|cut| cut.end <= span.start);
        let mut start = span.start;
        for cut in cuts[first..].iter().take_while(|cut| cut.start < span.end) {
            if start < cut.start {
                rest.push(start..cut.start);
            }
            start = start.max(cut.end);
        }
        if start < span.end {
            rest.push(start..span.end);
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_removed_from_spans() {
        let spans = |all: &[(u64, u64)]| -> Vec<Span> {
            all.iter().map(|&(start, end)| TargetAddr(start)..TargetAddr(end)).collect()
        };
        let check = |of: &[(u64, u64)], holes: &[(u64, u64)], expected: &[(u64, u64)]| {
            assert_eq!(without(joined(spans(of)), &joined(spans(holes))), spans(expected), "{of:?} without {holes:?}");
        };
        check(&[(10, 20), (20, 30), (40, 50)], &[], &[(10, 30), (40, 50)]);
        check(&[(40, 50), (10, 30)], &[(12, 14), (20, 22)], &[(10, 12), (14, 20), (22, 30), (40, 50)]);
        check(&[(10, 30), (40, 50)], &[(10, 12), (25, 45)], &[(12, 25), (45, 50)]);
        check(&[(10, 30), (40, 50)], &[(5, 60)], &[]);
        check(&[(10, 30), (40, 50)], &[(30, 40), (50, 60)], &[(10, 30), (40, 50)]);
    }
}
